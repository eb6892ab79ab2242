import json
import math
from dataclasses import replace

import pytest

from cloudtune.forecast.proposal import to_json
from cloudtune.model.plans import Limits, Plan, RunPlan
from cloudtune.model.serialization import decode
from tests.builders.proposals import MIXED, STATIC, proposal, run_of


def test_json_is_strict_and_holds_the_plan_itself() -> None:
    result = proposal(worst_dollars=math.inf)
    text = json.dumps(to_json(result), allow_nan=False)
    data = json.loads(text)
    assert decode(Plan, data["plan"]["staged"]) == MIXED
    names = {name: data[name] for name in ("strategy", "allocator", "fleet_rule")}
    assert names == {"strategy": "sha", "allocator": "planned", "fleet_rule": "planned"}
    expected = data["plan"].pop("estimate")["dollars"]
    assert expected == data["plan"]["forecast"]["dollars"]["p50"], "what the run will come to"
    assert decode(RunPlan, data["plan"]) == result.plan
    assert data["worst"]["dollars"] is None
    assert data["plan"]["forecast"]["dollars"]["p95"] == pytest.approx(MIXED.estimate.dollars * 1.3)


def test_json_has_launches_and_savings() -> None:
    data = to_json(proposal())
    launched = [(one["instance_type"], one["market"], one["instances"]) for one in data["launches"]]
    assert launched == [("p9.big", "spot", 1), ("g9.small", "on-demand", 4)]
    static = data["alternatives"][0]
    assert static["name"] == "best static"
    assert static["saves"] == {
        "dollars": pytest.approx(run_of(STATIC).estimate.dollars - run_of(MIXED).estimate.dollars),
        "seconds": pytest.approx(run_of(STATIC).estimate.seconds - run_of(MIXED).estimate.seconds),
    }
    assert static["breaks"] == ["budget"]
    assert [one["breaks"] for one in data["alternatives"][1:]] == [["deadline"], []]
    assert [point["seconds"] for point in data["front"]] == sorted(
        point["seconds"] for point in data["front"]
    )


@pytest.mark.parametrize("source", ["stages", "policy"])
def test_plan_without_confidence_follows_most_runs(source: str) -> None:
    unsure = proposal(confidence=None, limits=Limits(deadline=100.0, budget=1000.0))
    assert unsure.broken(run_of(MIXED, 1.0, source=source)) == ()
    assert unsure.broken(run_of(MIXED, 0.4, source=source)) == ("deadline",)
    assert replace(unsure, limits=Limits()).broken(run_of(MIXED)) == ()


def test_limits_kept_apart_but_not_together_are_both_broken() -> None:
    seen = run_of(MIXED, in_time=0.96, in_money=0.97, within=0.93)
    assert proposal(confidence=0.95).broken(seen) == ("deadline", "budget")
    assert proposal(confidence=0.9).broken(seen) == ()
