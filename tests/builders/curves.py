"""Made-up learning curves and what to train them on, for tests of simulations."""

import math
import random

from benchmarks.compare.benchmark import Benchmark, Delays, benchmark
from benchmarks.compare.curves import Curve, Curves
from benchmarks.compare.speeds import Scaling
from tests.builders import offer

SUBLINEAR = Scaling({1.0: 1.0, 2.0: 1.7, 4.0: 2.6, 8.0: 3.2})


def curves(count: int = 24, epochs: int = 9, seed: int = 0) -> Curves:
    """Return curves that rise, cross and sometimes diverge; each has a last epoch of its own."""
    chance = random.Random(seed)
    return Curves("acc", "max", tuple(_curve(n, epochs, chance) for n in range(count)))


def _curve(number: int, epochs: int, chance: random.Random) -> Curve:
    top, pace = chance.uniform(0.3, 0.9), chance.uniform(0.1, 0.6)
    last, lr = chance.randint(max(1, epochs // 2), epochs), 10 ** chance.uniform(-4, 0)
    values = tuple(top * (1 - math.exp(-pace * epoch)) for epoch in range(1, last + 1))
    if chance.random() < 0.15:
        values = (*values[: chance.randint(0, last - 1)], math.nan)
    seconds = (chance.uniform(40.0, 80.0),) * len(values)
    return Curve(f"c{number:03d}", values, last, {"lr": lr, "momentum": pace}, seconds)


def small_benchmark(
    made: Curves | None = None, *, gpus: int = 4, spread: float = 0.02, scaling: Scaling = SUBLINEAR
) -> Benchmark:
    """Return a benchmark on small instances that cost $12 an hour."""
    return benchmark(
        made or curves(),
        [scaling],
        [offer(gpus, 12.0)],
        epoch_seconds=60.0,
        delays=Delays(launch=5.0, boot=30.0, start=4.0, resize=6.0, release=2.0, spread=spread),
        max_instances=8,
    )
