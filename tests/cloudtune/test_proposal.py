from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from cloudtune.codec import decode
from cloudtune.plan import Limits, Plan
from cloudtune.proposal import to_json
from tests.proposals import COMPARED, MIXED, STATIC, outlook, proposal


def test_json_is_strict_and_holds_the_plan_itself() -> None:
    told = proposal(comparison=COMPARED, worst_dollars=math.inf)
    text = json.dumps(to_json(told), allow_nan=False)
    data = json.loads(text)
    assert decode(Plan, data["plan"]) == MIXED
    assert data["worst"]["dollars"] is None
    assert data["outlook"]["dollars"]["p95"] == pytest.approx(MIXED.estimate.dollars * 1.3)
    assert [row["planner"] for row in data["comparison"]] == ["exact", "greedy", "ilp"]
    assert data["comparison"][2]["plan"] is None


def test_json_says_what_is_launched_and_what_the_choice_saves() -> None:
    data = to_json(proposal())
    launched = [(one["instance_type"], one["market"], one["instances"]) for one in data["launches"]]
    assert launched == [("p9.big", "spot", 1), ("g9.small", "on-demand", 4)]
    static = data["alternatives"][0]
    assert static["name"] == "best static"
    assert static["saves"] == {
        "dollars": pytest.approx(STATIC.estimate.dollars - MIXED.estimate.dollars),
        "seconds": pytest.approx(STATIC.estimate.seconds - MIXED.estimate.seconds),
    }
    assert static["breaks"] == ["budget"]
    assert [one["breaks"] for one in data["alternatives"][1:]] == [["deadline"], []]
    assert [point["seconds"] for point in data["front"]] == sorted(
        point["seconds"] for point in data["front"]
    )


def test_without_a_confidence_the_estimate_decides_what_a_plan_breaks() -> None:
    unsure = proposal(confidence=None, limits=Limits(deadline=100.0, budget=1000.0))
    assert unsure.broken(MIXED, outlook(MIXED.estimate, 1.0)) == ("deadline",)
    assert replace(unsure, limits=Limits()).broken(MIXED, None) == ()


def test_limits_that_are_kept_one_by_one_but_not_at_once_are_both_broken() -> None:
    seen = replace(outlook(MIXED.estimate), in_time=0.96, in_money=0.97, within=0.93)
    assert proposal(confidence=0.95).broken(MIXED, seen) == ("deadline", "budget")
    assert proposal(confidence=0.9).broken(MIXED, seen) == ()
