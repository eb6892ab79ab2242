import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.strategies.successive_halving import SuccessiveHalving


def counts(sha: SuccessiveHalving) -> list[tuple[int, int, int]]:
    return [(stage.trials, stage.start_epoch, stage.end_epoch) for stage in sha.stages()]


@pytest.mark.parametrize(
    ("sha", "expected"),
    [
        (SuccessiveHalving(27, 1, 27, 3, "max"), [(27, 0, 1), (9, 1, 3), (3, 3, 9), (1, 9, 27)]),
        (SuccessiveHalving(12, 2, 20, 3, "max"), [(12, 0, 2), (4, 2, 6), (1, 6, 18), (1, 18, 20)]),
        (SuccessiveHalving(5, 1, 5, 2, "max"), [(5, 0, 1), (2, 1, 2), (1, 2, 4), (1, 4, 5)]),
        (SuccessiveHalving(1, 4, 4, 2, "max"), [(1, 0, 4)]),
        (SuccessiveHalving(3, 9, 4, 2, "max"), [(3, 0, 4)]),
    ],
)
def test_stages(sha: SuccessiveHalving, expected: list[tuple[int, int, int]]) -> None:
    assert counts(sha) == expected


def test_the_best_go_on_best_first() -> None:
    results = {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.7}
    assert SuccessiveHalving(4, 1, 4, 2, "max").promote(0, results) == ("b", "d")
    assert SuccessiveHalving(4, 1, 4, 2, "min").promote(0, results) == ("a", "c")


def test_ties_go_by_trial_id() -> None:
    sha = SuccessiveHalving(4, 1, 4, 2, "max")
    assert sha.promote(0, {"d": 0.5, "b": 0.5, "a": 0.5, "c": 0.5}) == ("a", "b")


def test_nan_and_none_go_on_only_without_others() -> None:
    sha = SuccessiveHalving(4, 1, 4, 2, "min")
    assert sha.promote(0, {"a": math.nan, "b": None, "c": 9.0, "d": 8.0}) == ("d", "c")
    assert sha.promote(0, {"a": math.nan, "c": 9.0}) == ("c", "a")


def test_fewer_results_than_planned_go_on_as_they_are() -> None:
    sha = SuccessiveHalving(8, 1, 4, 2, "max")
    assert sha.promote(0, {"a": 0.1, "b": 0.2}) == ("b", "a")
    assert sha.promote(0, {}) == ()


def test_none_goes_on_from_the_last_rung() -> None:
    sha = SuccessiveHalving(4, 1, 4, 2, "max")
    assert sha.promote(len(sha.stages()) - 1, {"a": 0.1}) == ()


@given(
    trials=st.integers(1, 100),
    first=st.integers(1, 10),
    last=st.integers(1, 100),
    eta=st.integers(2, 5),
)
def test_stages_follow_each_other(trials: int, first: int, last: int, eta: int) -> None:
    stages = SuccessiveHalving(trials, first, last, eta, "max").stages()
    assert (stages[0].trials, stages[0].start_epoch, stages[-1].end_epoch) == (trials, 0, last)
    for before, after in itertools.pairwise(stages):
        assert after.start_epoch == before.end_epoch
        assert after.trials == max(1, before.trials // eta)
    assert all(stage.epochs > 0 for stage in stages)
