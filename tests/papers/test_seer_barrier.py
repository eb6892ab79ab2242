"""The schedule of the SEER reconstruction."""

import math

from cloudtune.model.plans import Stage
from cloudtune.papers.seer_barrier import SeerBarrier

SEER = SeerBarrier(trials=10, min_epochs=1, max_epochs=6, eta=2, mode="max")


def test_each_rung_keeps_half_rounded_up() -> None:
    assert SEER.stages() == (Stage(10, 0, 1), Stage(5, 1, 2), Stage(3, 2, 4), Stage(2, 4, 6))


def test_the_best_come_first_those_without_numbers_last() -> None:
    results = {"a": 0.2, "b": None, "c": 0.9, "d": math.nan, "e": 0.9}
    assert SEER.rank_trials(results)[:3] == ("c", "e", "a")
    less = SeerBarrier(trials=10, min_epochs=1, max_epochs=6, eta=2, mode="min")
    assert less.rank_trials(results)[:3] == ("a", "c", "e")
