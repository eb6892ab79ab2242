"""The schedule of the SEER reconstruction."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.plans import Stage
from cloudtune.strategies.seer_barrier import SeerBarrier

SEER = SeerBarrier(trials=10, min_epochs=1, max_epochs=6, eta=2, mode="max")


def test_each_rung_keeps_half_rounded_up() -> None:
    assert SEER.stages() == (Stage(10, 0, 1), Stage(5, 1, 2), Stage(3, 2, 4), Stage(2, 4, 6))


def test_the_rest_begins_where_the_survivors_are() -> None:
    assert SEER.rest(4, 2, 6) == (Stage(4, 2, 4), Stage(2, 4, 6))
    assert SEER.rest(4, 3, 6) == (Stage(4, 3, 4), Stage(2, 4, 6)), "between two rungs, to the next"
    assert SEER.rest(1, 0, 3) == (Stage(1, 0, 1), Stage(1, 1, 2), Stage(1, 2, 3))
    assert SEER.rest(3, 6, 6) == ()


def test_the_best_come_first_those_without_numbers_last() -> None:
    results = {"a": 0.2, "b": None, "c": 0.9, "d": math.nan, "e": 0.9}
    assert SEER.ranked(results)[:3] == ("c", "e", "a")
    less = SeerBarrier(trials=10, min_epochs=1, max_epochs=6, eta=2, mode="min")
    assert less.ranked(results)[:3] == ("a", "c", "e")


@given(
    trials=st.integers(1, 70),
    more=st.integers(0, 9),
    begin=st.integers(0, 20),
    epochs=st.integers(1, 40),
    further=st.integers(0, 9),
    eta=st.integers(2, 4),
    first=st.integers(1, 4),
)
def test_more_trials_or_epochs_are_never_less_work(
    *, trials: int, more: int, begin: int, epochs: int, further: int, eta: int, first: int
) -> None:
    """What the search by halves of `seer_plan` needs; and stages follow each other without gaps."""
    schedule = SeerBarrier(trials, first, begin + epochs, eta, "max")
    small = schedule.rest(trials, begin, begin + epochs)
    large = schedule.rest(trials + more, begin, begin + epochs + further)
    for one, other in zip(small, large, strict=False):
        assert one.trials <= other.trials
        assert one.start_epoch == other.start_epoch
        assert one.end_epoch <= other.end_epoch
    assert len(small) <= len(large)
    assert (small[0].start_epoch, small[-1].end_epoch) == (begin, begin + epochs)
    assert all(a.end_epoch == b.start_epoch for a, b in itertools.pairwise(small))
