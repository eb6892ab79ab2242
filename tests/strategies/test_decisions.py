"""F15: each strategy decides as an algorithm that is written apart, at any width."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from cloudtune.policy.registry import ALLOCATORS
from tests.builders import Setting, by_name, offer, play, profile
from tests.strategies.written_apart import (
    breed,
    model_decisions,
    pbt_decisions,
    peak_metric,
    play_model,
)

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


def count_decisions(
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
        result, more = count_decisions(own, rungs, eta, metric)
        reached, decisions, begin = reached | result, decisions + more, begin + size
    raise AssertionError


def everything(
    count: int, _eta: int, most: int, _metric: Callable[[int, int], float]
) -> tuple[dict[int, int], int]:
    return dict.fromkeys(range(count), most), count


def one_bracket(
    count: int, eta: int, most: int, metric: Callable[[int, int], float]
) -> tuple[dict[int, int], int]:
    rungs = [eta**k for k in range(10) if eta**k < most]
    return count_decisions(range(count), [*rungs, most], eta, metric)


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
    made = made.but(allocator=lambda: ALLOCATORS[allocator].build(made.context()))
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


NAMES = sorted(name for name in ALLOCATORS if not name.startswith("hypersched"))  # which are slow


@pytest.mark.parametrize(
    ("allocator", "last"),
    [*((name, 9) for name in NAMES), ("hypersched", 9), ("same", 24), ("dynamic-fluid", 24)],
)
def test_f15_pbt_exploits_as_truncation_selection_does(allocator: str, last: int) -> None:
    """Judged after each epoch, and after each second one."""
    result = breed(allocator, 0, 32, last)
    count, differing = pbt_decisions(result)
    assert count > 200
    assert len(result.exploits) >= 8
    assert differing == 0


@pytest.mark.parametrize(
    ("strategy", "allocator"),
    [*(("bohb", name) for name in NAMES), ("sync-bohb", "same"), ("sync-bohb", "dynamic-fluid")],
)
def test_f15_bohb_is_tpe_and_hyperband(strategy: str, allocator: str) -> None:
    result = play_model(strategy, allocator, 0, 26)
    count, by_model, differing = model_decisions(result)
    assert count == 26
    assert by_model >= 6
    assert differing == 0
    expected, _ = hyperband(
        26, 3, 9, lambda number, epoch: peak_metric(result.configs[number], epoch)
    )
    assert result.epochs == tuple(expected[number] for number in range(26))


def test_f15_what_was_reported_counts_and_when() -> None:
    """The comparison notices a best result that is the worst, and one that came too late."""
    result = play_model("sync-bohb", "dynamic-fluid", 0, 26)
    first = [at for at, (_, epoch, _) in enumerate(result.steps) if epoch == 1][:9]  # a bracket's
    best = max(first, key=lambda at: result.steps[at][2] or 0.0)
    before, (trial, epoch, value), after = (
        result.steps[:best],
        result.steps[best],
        result.steps[best:],
    )
    assert value is not None
    worst = (*before, (trial, epoch, value - 9.0), *after[1:])
    assert model_decisions(replace(result, steps=worst))[2]
    assert model_decisions(replace(result, steps=(*before, *after[1:], after[0])))[2]
