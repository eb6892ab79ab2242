"""F15: halving, Hyperband and their kin decide as algorithms that are written apart, at any width.

`hyperband` below is the paper's algorithm 1 on plain numbers (Li et al., JMLR 2018): it knows the
trials, in the order in which the sampler gives them, and their metrics, and says how far each is
trained. ASHA, which decides as results come in, is in `policy/test_promoted.py`.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from cloudtune.policy.registry import ALLOCATORS
from tests.builders import Setting, by_name, offer, play, profile

FROM_A_QUARTER = {0.25: 28.0, 0.5: 15.0, 1.0: 8.0, 2.0: 4.4, 3.0: 3.2, 4.0: 2.6, 6.0: 2.1, 8.0: 1.8}


def brackets(eta: int, most: int) -> Iterator[tuple[int, list[int]]]:
    """Yield trials and rungs of Hyperband's brackets, over and over; the least resource is 1."""
    s_max = 0
    while eta ** (s_max + 1) <= most:
        s_max += 1
    while True:
        for s in range(s_max, -1, -1):
            count = (s_max + 1) * eta**s / (s + 1)
            rungs = [round(most / eta**k) for k in range(s, -1, -1)]
            yield int(count) + (count > int(count)), rungs


def halved(
    trials: Sequence[int], rungs: Sequence[int], eta: int, metric: Callable[[int, int], float]
) -> tuple[dict[int, int], int]:
    """Return how far each trial of a bracket is trained, and how many decisions that took."""
    reached: dict[int, int] = {}
    left, size, decisions = list(trials), len(trials), 0
    for rung in rungs:
        reached |= dict.fromkeys(left, rung)
        decisions += len(left)
        size = max(1, size // eta)
        left = sorted(left, key=lambda number: (-metric(number, rung), number))[:size]
    return reached, decisions


def hyperband(
    count: int, eta: int, most: int, metric: Callable[[int, int], float]
) -> tuple[dict[int, int], int]:
    reached: dict[int, int] = {}
    decisions, begin = 0, 0
    for size, rungs in brackets(eta, most):
        own = range(begin, min(count, begin + size))
        if not own:
            return reached, decisions
        found, more = halved(own, rungs, eta, metric)
        reached, decisions, begin = reached | found, decisions + more, begin + size
    raise AssertionError


def everything(
    count: int, _eta: int, most: int, _metric: Callable[[int, int], float]
) -> tuple[dict[int, int], int]:
    return dict.fromkeys(range(count), most), count


def one_bracket(
    count: int, eta: int, most: int, metric: Callable[[int, int], float]
) -> tuple[dict[int, int], int]:
    rungs = [eta**k for k in range(10) if eta**k < most]
    return halved(range(count), [*rungs, most], eta, metric)


APART = {
    "grid": everything,
    "random": everything,
    "halving": one_bracket,
    "hyperband": hyperband,
    "bohb": hyperband,
    "sync-bohb": hyperband,
}


def differing(strategy: str, allocator: str, seed: int, trials: int = 0) -> tuple[int, int]:
    """Return the decisions of a drawn job, and how many trials came as far as they shouldn't."""
    luck = random.Random(f"{strategy} {seed}")
    count, eta = luck.randint(9, 40), luck.choice([2, 3])
    count = trials or count
    levels = [luck.random() for _ in range(count)]
    swings = [luck.uniform(-0.4, 0.4) for _ in range(count)]
    paces = [luck.uniform(0.5, 3.0) for _ in range(count)]

    def metric(number: int, epoch: int) -> float:
        return levels[number] + swings[number] * epoch / 9

    made = Setting(
        count,
        metric=metric,
        pace=lambda config, _epoch: paces[int(str(config["x"]))],
        offer=offer(luck.choice([4, 8])),
        max_instances=luck.choice([1, 2]),
        profile=profile(FROM_A_QUARTER, start=1.0, resize=luck.choice([0.0, 2.0]), boot=0.0),
    )
    made = made.but(allocator=lambda: ALLOCATORS[allocator](made.context()))
    run = play(made, by_name(strategy, eta=eta, max_epochs=9, trials=count))
    expected, decisions = APART[strategy](count, eta, 9, metric)
    got = {int(name[1:]): epochs for name, epochs in run.epochs.items()}
    return decisions, sum(got.get(number) != epochs for number, epochs in expected.items())


# Hyperband with all of them; the others with every second one, in turns, and none that is slow.
PAIRS = [
    (strategy, allocator)
    for number, strategy in enumerate(APART)
    for at, allocator in enumerate(sorted(ALLOCATORS), start=number)
    if strategy == "hyperband" or (at % 2 == 0 and not allocator.startswith("hypersched"))
]


@pytest.mark.parametrize(("strategy", "allocator"), PAIRS)
def test_f15_it_decides_as_an_algorithm_written_apart(strategy: str, allocator: str) -> None:
    decisions, wrong = differing(strategy, allocator, 0)
    assert decisions >= 9
    assert wrong == 0
