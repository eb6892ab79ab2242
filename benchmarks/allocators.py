"""Makespans of the allocators against the integer program and against the bound: random groups.

    python -m benchmarks.allocators [--groups 500] [--seed 0]

Groups of 2 to 10 trials on 1 to 3 nodes of 1, 2, 4 or 8 GPUs, with 1, 2, 4 or 8 trials to a GPU at
most; budgets are uniform, of a long tail, or those of a halving rung; twice the GPUs are twice as
fast (linear), less so (sublinear), or over a node's edge even slower (uneven). Each is a ratio to
the integer program's schedule, and to its proven bound: 1 is as good. DynamicFluid is the real
allocator in the real policy, in virtual time with a resize cost of 2 % of the mean budget; it can
beat the program, whose trials keep their width.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

from cloudtune.bookkeeping import Brakes, Metric
from cloudtune.catalog import InstanceType, Offer
from cloudtune.elastic import ElasticPolicy
from cloudtune.engine import run
from cloudtune.events import EpochDone
from cloudtune.ledger import MemoryLedger
from cloudtune.plan import Limits, Rentable
from cloudtune.planners.fleets import ConstantFleet
from cloudtune.planners.fluid import static_fluid
from cloudtune.planners.fluid_widths import DynamicFluid
from cloudtune.planners.ilp_widths import best_widths, makespan
from cloudtune.scaling import Measurement, ScalingProfile
from cloudtune.simulator import SimWorld
from cloudtune.strategies.grid import GridSearch
from cloudtune.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.trial import Width

_EPOCHS = 20
"""Each budget is cut into so many epochs, at whose ends DynamicFluid may resize."""


@dataclass(frozen=True)
class Group:
    """Trials by their seconds at one GPU, what an epoch takes at each width, and the nodes."""

    budgets: tuple[float, ...]
    speed: dict[Width, float]
    gpus: int
    nodes: int
    packed: int

    @property
    def heights(self) -> list[dict[Width, float]]:
        """Seconds of each trial's budget at each width."""
        return [{w: b / rate for w, rate in self.speed.items()} for b in self.budgets]


def group(seed: int) -> Group:
    """Return the group of a seed."""
    rng = random.Random(seed)
    gpus, nodes = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2, 3))
    packed = rng.choice((1, 2, 4, 8))
    count = rng.randrange(2, 11)
    kind = rng.choice(("uniform", "tail", "rung"))
    if kind == "uniform":
        budgets = [rng.uniform(10, 100) for _ in range(count)]
    elif kind == "tail":
        budgets = [10 * rng.paretovariate(1.2) for _ in range(count)]
    else:
        budgets = [rng.choice((30.0, 90.0)) * rng.uniform(0.9, 1.1) for _ in range(count)]
    curve = rng.choice(("linear", "sublinear", "uneven"))
    widest = gpus * nodes if curve == "uneven" else gpus
    whole = (w for w in (1, 2, 3, 4, 6, 8, 16, 24) if w <= widest)
    wide = [float(w) for w in whole if w <= gpus or w % gpus == 0]
    speed: dict[Width, float] = {w: _speed(w, curve, gpus) for w in wide}
    for part in (2, 4, 8):
        if part <= packed:
            speed[1 / part] = 1 / part * (1.0 if curve == "linear" else part**0.25)
    return Group(tuple(budgets), dict(sorted(speed.items())), gpus, nodes, packed)


def _speed(width: float, curve: str, gpus: int) -> float:
    if curve == "linear":
        return width
    speed: float = width**0.8
    return speed * 0.55 if width > gpus else speed


def ends(one: Group) -> tuple[dict[str, float], float, float]:
    """Return the makespan of each allocator, of the program's schedule, and the bound."""
    heights, known = one.heights, list(one.speed)
    found = best_widths(heights, one.gpus, one.nodes)
    even = max((w for w in known if w <= one.gpus * one.nodes / len(heights)), default=min(known))
    chosen: dict[str, Sequence[Width]] = {
        "one GPU each": [1.0] * len(heights),
        "uniform": [even] * len(heights),
        "StaticFluid, published": _fluid(one, repaired=False),
        "StaticFluid, repaired": _fluid(one, repaired=True),
    }
    took = {name: makespan(widths, heights, one.gpus, one.nodes) for name, widths in chosen.items()}
    took["DynamicFluid"] = _dynamic(one)
    return took, found.seconds, found.bound


def _fluid(one: Group, *, repaired: bool) -> list[Width]:
    known = list(one.speed)
    shares = static_fluid(
        one.budgets, one.gpus * one.nodes, one.packed, int(max(known)), repaired=repaired
    )
    return [max((w for w in known if w <= share + 1e-9), default=min(known)) for share in shares]


def _dynamic(one: Group) -> float:
    """Return when the last trial was done in the real policy with the real allocator."""
    mean = sum(one.budgets) / len(one.budgets)
    unit = min(one.budgets) / _EPOCHS
    trials = [Trial(f"t{n:02d}", {}, max(1, round(b / unit))) for n, b in enumerate(one.budgets)]
    rentable = Rentable(_offer(one.gpus), _profile(one, unit, 0.02 * mean), one.nodes)
    policy = ElasticPolicy(
        strategy=GridSearch(_Given(trials), max_epochs=10**6),
        allocator=DynamicFluid(),
        fleet_rule=ConstantFleet(rentable.offer, one.nodes),
        rentables=(rentable,),
        max_instances=one.nodes,
        metric=Metric("score", "max"),
        limits=Limits(),
        brakes=Brakes(),
        heartbeat=False,
        checked=False,
    )
    ledger = MemoryLedger()
    run(policy, SimWorld((rentable,), "score", lambda _config, _epoch: 0.0), ledger)
    return max(e.event.at for e in ledger.entries if isinstance(e.event, EpochDone))


class _Given:
    """A sampler of given trials."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = iter(trials)

    def ask(self) -> Trial | None:
        """Return the next trial."""
        return next(self._left, None)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn nothing."""


def _offer(gpus: int) -> Offer:
    return Offer(InstanceType("x", gpus, "T4", 16384, 4, 1024), "on-demand", "x", 1.0)


def _profile(one: Group, unit: float, resize: float) -> ScalingProfile:
    def measured(seconds: float) -> Measurement:
        return Measurement(seconds, 0.0, 1)

    none = measured(0.0)
    epoch = {width: measured(unit / rate) for width, rate in one.speed.items()}
    return ScalingProfile(
        "x", epoch, none, none, none, measured(resize), none, "", "2026-11-21", "made up"
    )


# ---- the table -----------------------------------------------------------------------------------


def main() -> None:
    """Play the groups, and print the ratios."""
    parser = argparse.ArgumentParser(description="allocators against the integer program")
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    against_best: dict[str, list[float]] = {}
    against_bound: dict[str, list[float]] = {}
    for seed in range(given.seed, given.seed + given.groups):
        took, best, bound = ends(group(seed))
        for name, seconds in {**took, "integer program": best}.items():
            against_best.setdefault(name, []).append(seconds / best)
            against_bound.setdefault(name, []).append(seconds / bound)
    print(f"{given.groups} groups: ratio to the program's schedule, and to its bound")
    print(f"{'':24} {'median':>7} {'p90':>6} {'worst':>6}   {'median':>7} {'p90':>6} {'worst':>6}")
    for name, ratios in against_best.items():
        print(f"{name:24} {_row(ratios)}   {_row(against_bound[name])}")


def _row(ratios: Sequence[float]) -> str:
    return f"{median(ratios):7.3f} {quantiles(ratios, n=10)[-1]:6.3f} {max(ratios):6.3f}"


if __name__ == "__main__":
    main()
