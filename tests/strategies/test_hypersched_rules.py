from collections.abc import Sequence
from statistics import median
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.plans import Limits
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Trial
from cloudtune.strategies.base import View
from cloudtune.strategies.hypersched_rules import (
    Admission,
    Cutoff,
    Median,
    Overhead,
    Switches,
    open_rungs,
    percentile,
)

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)
PLENTY, LITTLE = 1e9, 0.0


def view(left: float = PLENTY, *, setups: Sequence[float] = (), deadline: float = 100.0) -> View:
    return cast(
        "View",
        SimpleNamespace(seconds_left=left, setups=list(setups), limits=Limits(deadline, None)),
    )


def rung(*scores: float, eta: int = 4, ranked: bool = False) -> Cutoff:
    """Return a rung with records of trials t0, t1 …"""
    made = Cutoff(1, eta, ranked=ranked)
    for number, score in enumerate(scores):
        made.record(f"t{number}", score)
    return made


def trained(epoch_seconds: float, width: float = 1.0, name: str = "t") -> TrialProgress:
    """Return a trial whose last epoch took that long; its set-ups took far longer."""
    made = TrialProgress(Trial(name, {}))
    made.epoch_seconds = epoch_seconds
    made.width = width
    made.seconds = epoch_seconds + 1000.0
    return made


def test_h1_rungs_stand_at_powers_of_eta_and_one_past_the_end() -> None:
    assert open_rungs(2, 200, 4) == (2, 8, 32, 128, 512)
    assert open_rungs(1, 1000, 10) == (1, 10, 100, 1000, 10_000)
    assert open_rungs(5, 500, 4) == (5, 20, 80, 320, 1280)
    assert open_rungs(9, 3, 2) == (9,)


@given(NUMBERS, st.integers(2, 6))
def test_h2_the_cutoff_is_numpys_percentile(scores: list[float], eta: int) -> None:
    value = rung(*scores, eta=eta).value
    if len(scores) == 1:
        assert value is None
    else:
        assert value == np.percentile(scores, (1 - 1 / eta) * 100), "to the last digit"


def test_h2_a_single_record_is_held_back_by_nothing() -> None:
    assert rung(0.1).passes("t0")
    assert not rung(0.1, 0.2).passes("t0")


def test_equal_records_all_pass() -> None:
    """Though 0.1 + 0.2 and their like don't come out even."""
    score = 0.1 + 0.2
    alike = rung(*[score] * 7, eta=3)
    assert all(alike.passes(f"t{n}") for n in range(7))


def test_by_rank_the_best_floor_of_n_over_eta_pass() -> None:
    assert not rung(0.5, 0.4, 0.3, ranked=True).passes("t0")
    ranked = rung(0.5, 0.4, 0.3, 0.9, 0.1, 0.2, 0.0, 0.8, ranked=True)
    assert [n for n in range(8) if ranked.passes(f"t{n}")] == [3, 7]


def test_those_that_wait_are_in_order_of_their_records() -> None:
    made = rung(0.5, 0.9, 0.5)
    for name in ("t2", "t1", "t0"):
        made.rest(name)
    assert list(made.resting()) == ["t1", "t0", "t2"]
    made.leave("t0")
    made.leave("t0")
    assert list(made.resting()) == ["t1", "t2"]


def test_an_infinite_record_is_a_record() -> None:
    assert rung(-float("inf"), 0.2, 0.3, eta=2).value == 0.2
    assert not rung(-float("inf"), 0.2, eta=2).passes("t0")


@given(NUMBERS)
def test_the_median_is_kept_as_numbers_come(numbers: list[float]) -> None:
    kept = Median()
    for count, number in enumerate(numbers, start=1):
        kept.add(number)
        assert kept.value == pytest.approx(median(numbers[:count]))


def test_no_number_has_no_median() -> None:
    assert Median().value is None


@given(NUMBERS)
def test_h13_overhead_is_the_90th_percentile_of_the_setups(setups: list[float]) -> None:
    assert Overhead().seconds(view(setups=setups)) == pytest.approx(
        np.percentile(setups, 90), abs=1e-6
    )
    assert percentile(sorted(setups), 100) == max(setups)


def test_h13_overhead_follows_the_setups_as_they_come() -> None:
    seen, overhead = view(), Overhead()
    assert overhead.seconds(seen) == 0.0
    cast("list[float]", seen.setups).extend([4.0, 2.0])
    assert overhead.seconds(seen) == pytest.approx(3.8)
    cast("list[float]", seen.setups).append(8.0)
    assert overhead.seconds(seen) == pytest.approx(np.percentile([4, 2, 8], 90))


def admission(**switches: bool | float) -> Admission:
    """Return the rule for 200 epochs and eta 4."""
    made = Switches(**switches)  # type: ignore[arg-type]
    return Admission(max_epochs=200, eta=4, atom=1.0, switches=made)


def test_h6_anything_may_start_before_the_first_result() -> None:
    assert admission().admits(view(LITTLE))


def test_h6_the_time_left_has_to_be_eta_times_that_of_the_longest() -> None:
    """(L - s) * eta = (30 - 5) * 4, where L has no set-up in it."""
    rule = admission()
    for name, seconds in (("t", 10.0), ("t", 20.0), ("u", 12.0)):
        rule.note(trained(seconds, name=name))
    assert rule.admits(view(100.0, setups=[5.0]))
    assert not rule.admits(view(99.9, setups=[5.0]))


def test_h6_or_a_whole_training_on_one_atom_if_less() -> None:
    """R * t1 = 200 * 2, the median of epochs at one atom alone."""
    rule = admission()
    for seconds, width in ((1.0, 1.0), (2.0, 1.0), (50.0, 1.0), (0.1, 4.0), (1000.0, 4.0)):
        rule.note(trained(seconds, width))
    assert rule.admits(view(400.0))
    assert not rule.admits(view(399.9))


def test_h19_without_overhead_the_longest_counts_whole() -> None:
    rule = admission(ignore_overhead=True)
    rule.note(trained(30.0))
    assert not rule.admits(view(119.9, setups=[5.0]))
    assert rule.admits(view(120.0, setups=[5.0]))


def test_h19_fixed_exploration_ends_at_its_share_of_the_deadline() -> None:
    rule = admission(fixed_exploration=True, exploration_ratio=0.25)
    rule.note(trained(1000.0))
    assert rule.admits(view(75.0, deadline=100.0))
    assert not rule.admits(view(74.0, deadline=100.0))
