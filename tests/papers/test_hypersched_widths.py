import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.plans import Rentable
from cloudtune.model.progress import Status, TrialProgress
from cloudtune.model.trial import Mode, Trial
from cloudtune.papers.hypersched_widths import (
    POLICIES,
    HyperSchedAllocator,
    shared_out,
    speed,
)
from cloudtune.strategies.base import View
from tests.builders import offer, profile

SPEEDUPS = {1.0: 1.0, 2.0: 1.870, 4.0: 3.421, 8.0: 5.598}
RESNET50 = Rentable(offer(8), profile({w: 100 / s for w, s in SPEEDUPS.items()}), 1)
ALL = Rentable(offer(8), profile({float(w): 100 / w**0.9 for w in range(1, 9)}), 1)


@dataclass
class Stand:
    running: list[TrialProgress]
    seconds_left: float = math.inf
    setups: list[float] = field(default_factory=list)
    mode: Mode = "max"
    gpus: int = 8
    rentables: tuple[Rentable, ...] = (ALL,)

    @property
    def trials(self) -> dict[str, TrialProgress]:
        return {trial.id: trial for trial in self.running}

    @property
    def view(self) -> View:
        return cast("View", self)


def trial(
    name: str, metric: float | None, *, width: float = 1.0, status: Status = "training"
) -> TrialProgress:
    """Return a trial at its sixth result."""
    made = TrialProgress(Trial(name, {}), status=status, sessions=1, width=width, metric=metric)
    made.offer, made.epoch = ALL.offer, 6
    return made


def ready(**options: object) -> HyperSchedAllocator:
    return HyperSchedAllocator(recharge=0, **options)  # type: ignore[arg-type]


def shares(stand: Stand, allocator: HyperSchedAllocator | None = None) -> list[float]:
    """Return the width that each would get if it reported now."""
    made = allocator or ready()
    return [made.resized(stand.view, trial) for trial in stand.running]


def spread(policy: str, scores: Sequence[float], atoms: int = 8, seed: int = 0) -> list[int]:
    return shared_out(policy, scores, atoms, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (1, [8]),
        (2, [4, 4]),
        (3, [3, 3, 2]),
        (4, [2, 2, 2, 2]),
        (5, [2, 2, 2, 1, 1]),
        (8, [1] * 8),
        (10, [1] * 8 + [0, 0]),
    ],
)
def test_h7_uniform_goes_round_from_the_best(trials: int, expected: list[int]) -> None:
    assert spread("UNIFORM", [0.5] * trials) == expected


def test_h7_the_best_take_what_rounding_leaves() -> None:
    """Three of 8 have 3, 3, 2: of the widths 1, 2, 4 and 8 that leaves two GPUs."""
    three = [trial(name, metric) for name, metric in (("a", 0.9), ("b", 0.8), ("c", 0.7))]
    assert shares(Stand(three, rentables=(RESNET50,))) == [4.0, 2.0, 2.0]
    assert shares(Stand(three, rentables=(ALL,))) == [3.0, 3.0, 2.0], "as published"
    top = ready(policy="TOP_JOB")
    assert shares(Stand(three, rentables=(RESNET50,)), top) == [4.0, 2.0, 2.0]
    assert shares(Stand(three, rentables=(ALL,)), top) == [6.0, 1.0, 1.0], "as published"
    none = ready(policy="NONE")
    assert shares(Stand(three, rentables=(RESNET50,)), none) == [1.0, 1.0, 1.0]


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12), st.integers(0, 40))
def test_h8_softmax_is_the_published_rule(scores: list[float], atoms: int) -> None:
    """Written apart: shares of what is spare, cut off; then one by one to the greatest share."""
    scores = sorted(scores, reverse=True)
    spare = max(0, atoms - len(scores))
    weights = [math.exp(score - scores[0]) for score in scores]
    result = spread("SOFTMAX", scores, atoms)
    first = [1] * min(atoms, len(scores)) + [0] * max(0, len(scores) - atoms)
    differences = []
    for last_digit in (0.0, 1e-9):
        wanted = [int(spare * (weight / math.fsum(weights)) + last_digit) for weight in weights]
        while sum(wanted) < spare:
            wanted[wanted.index(max(wanted))] += 1
        expected = [a + b for a, b in zip(first, wanted, strict=True)]
        differences.append(sum(abs(a - b) for a, b in zip(result, expected, strict=True)))
    assert min(differences) <= 2


SCORES = st.lists(st.floats(allow_nan=False), min_size=1, max_size=20)


@given(st.sampled_from(list(POLICIES)), SCORES, st.integers(0, 40), st.integers(0, 3))
def test_h7_h8_an_atom_each_first(policy: str, scores: list[float], atoms: int, seed: int) -> None:
    result = spread(policy, sorted(scores, reverse=True), atoms, seed)
    assert sum(result) <= atoms
    assert len(result) == len(scores)
    assert all(share >= 1 for share in result[:atoms])
    if policy != "NONE" and atoms >= len(scores):
        assert sum(result) == atoms


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown allocation policy 'BEST'; choose one of UNIFORM"):
        HyperSchedAllocator(policy="BEST")


def pays(left: float, width: float, other: float, setup: float = 1.0) -> bool:
    """Whether ResNet-50 is to grow, in the time left, with such a set-up."""
    stand = Stand([], left, [setup], rentables=(RESNET50,))
    return ready().gain(stand.view, RESNET50, width, other) > 1.1


@pytest.mark.parametrize(
    ("width", "other", "least"),
    [(1.0, 2.0, 2.43), (2.0, 4.0, 2.51), (4.0, 8.0, 3.05), (3.0, 4.0, 6.7), (7.0, 8.0, 144)],
)
def test_h9_growth_pays_from_some_setups_on(width: float, other: float, least: float) -> None:
    assert not pays(least * 0.98 * 7.0, width, other, setup=7.0)
    assert pays(least * 1.02 * 7.0, width, other, setup=7.0)


def test_h9_a_trial_that_would_gain_little_stays() -> None:
    best = trial("a", 1.0)
    assert ready().resized(Stand([best], 4.5, [4.0]).view, best) == 1.0
    assert ready().resized(Stand([best], 50.0, [4.0]).view, best) == 8.0


def test_h10_shrinking_needs_no_gain() -> None:
    wide = [trial("a", 0.9, width=8.0), trial("b", 0.8)]
    assert shares(Stand(wide, 0.1, [50.0]))[0] == 4.0


def test_h10_resizes_every_six_results() -> None:
    allocator, best = HyperSchedAllocator(), trial("a", 1.0)
    stand, result = Stand([best]), []
    for session, epoch in [*((1, e) for e in range(1, 8)), *((2, e) for e in range(8, 15))]:
        best.sessions, best.epoch = session, epoch
        result.append(allocator.resized(stand.view, best))
    assert result == [*[1.0] * 5, 8.0, 8.0, *[1.0] * 5, 8.0, 8.0]


def test_h14_speed_is_interpolated_and_clamped() -> None:
    one = speed(RESNET50.profile, 1.0)
    result = [
        speed(RESNET50.profile, width) / one for width in (0.5, 1.0, 2.0, 3.0, 6.0, 8.0, 64.0)
    ]
    assert result == pytest.approx([1.0, 1.0, 1.870, 2.6455, 4.5095, 5.598, 5.598])


def test_h17_least_metric_is_best() -> None:
    stand = Stand([trial("a", 0.1), trial("b", 0.9), trial("c", None)], mode="min")
    assert shares(stand, ready(policy="TOP_JOB")) == [6.0, 1.0, 1.0]
