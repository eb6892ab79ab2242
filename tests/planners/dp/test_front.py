"""The front of cost against time, and the points of it that say most."""

import pytest

from cloudtune.planners.dp import front
from cloudtune.planners.dp.front import knees, whole_front
from cloudtune.planners.dp.search import Search
from cloudtune.planners.exact import ExactPlanner
from tests.builders import SUBLINEAR, Setting, offer, profile

R6 = [(25.5, 21.34), (28.2, 18.11), (32.7, 16.28), (46.2, 15.25), (52.8, 14.97), (390.0, 14.5)]


def test_r6_the_knee_comes_before_evenly_spread_points() -> None:
    assert [R6[place] for place in knees(R6, 5)] == [*R6[:3], R6[4], R6[5]]
    assert knees(R6, 15) == [0, 1, 2, 3, 4, 5]


def test_too_many_options_need_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Setting(offer=offer(4, 36.0), profile=profile(SUBLINEAR), max_instances=8).request()
    whole = {(result.seconds, result.dollars) for result in whole_front(job)}
    assert whole == {(result.seconds, result.dollars) for result in Search(job).front()}
    monkeypatch.setattr(front, "_PAIRS", 0)
    monkeypatch.setattr(Search, "front", None)
    some = [(result.seconds, result.dollars) for result in whole_front(job)]
    assert len(some) >= min(len(whole), 4)
    assert all(any(a <= s + 1e-9 and b <= d + 1e-9 for a, b in whole) for s, d in some), (
        "no better than the front"
    )
    assert {some[0], some[-1]} <= whole, "the ends are the ends"


def test_points_of_the_front_are_plans() -> None:
    job = Setting(offer=offer(4, 36.0), profile=profile(SUBLINEAR), max_instances=8).request()
    plans = ExactPlanner().front(job, 15)
    assert 2 <= len(plans) <= 15
    seconds = [plan.estimate.seconds for plan in plans]
    dollars = [plan.estimate.dollars for plan in plans]
    assert seconds == sorted(seconds)
    assert dollars == sorted(dollars, reverse=True)
