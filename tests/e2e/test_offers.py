"""A run that moves from one offer to another: from a spot instance of four GPUs to a small one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cloudtune.experiment import Experiment
from cloudtune.jobs import planning, stages
from cloudtune.jobs.job import Job
from cloudtune.jobs.plan_file import VERSION
from cloudtune.plan import Group, Limits
from cloudtune.planners.cost_model import price
from cloudtune.profiles.store import script_hash, write
from cloudtune.scaling import Measurement, ScalingProfile
from tests.builders import run_plan

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.catalog import Market
    from cloudtune.jobs.stages import Problem
    from tests.e2e.conftest import Bench

pytestmark = pytest.mark.cluster


def measured(instance_type: str, script: Path) -> ScalingProfile:
    return ScalingProfile(
        instance_type=instance_type,
        epoch={1.0: Measurement(0.5)},
        launch=Measurement(0.6),
        boot=Measurement(7.0),
        start=Measurement(4.0),
        resize=Measurement(4.0),
        release=Measurement(1.5),
        script_hash=script_hash(script),
        measured_at="2026-11-20T00:00:00Z",
        source="a test",
    )


def group(problem: Problem, instance_type: str, market: Market, trials: int) -> tuple[Group, ...]:
    return (Group(problem.catalog.offer(instance_type, market), 1, 1.0, trials, 1),)


def saved_plan(bench: Bench) -> Path:
    path = bench.experiment(trials=2, first=3, last=6)
    text = path.read_text().replace("[g7.12xlarge]", "[g4dn.12xlarge, g4dn.xlarge], market: any")
    text = text.replace("{deadline: 3m, budget: $2}", "{deadline: 2m, budget: $1}")
    path.write_text(text.replace("max_instances: 2", "max_instances: 1"))
    script = bench.folder / "train.py"
    write(bench.folder / "profile.json", [measured(t, script) for t in TYPES])
    problem = planning.problem_of(Experiment.load(path), [measured(t, script) for t in TYPES])
    request = stages.request_for(problem, Limits())
    groups = [group(problem, TYPES[0], "spot", 2), group(problem, TYPES[1], "on-demand", 1)]
    plan = price(request, groups, "by hand")
    limits = Limits(120.0, 1.0)
    job = Job(
        "", problem.experiment, run_plan(plan), request.rentables, limits, 0.0, False, "a test"
    )
    saved = bench.folder / "plan.json"
    saved.write_text(json.dumps({"cloudtune_plan": VERSION, **job.to_json()}))
    return saved


TYPES = ("g4dn.12xlarge", "g4dn.xlarge")


def test_a_hand_over_from_a_spot_instance_to_another_type(bench: Bench) -> None:
    done = bench("run", saved_plan(bench))
    assert done.code == 0, done.out + done.err
    told = bench.last_report()
    assert [trial["epoch"] for trial in told["trials"]] == [6, 3]
    assert [size["instances"] for size in told["fleet"]] == [1, 0, 1, 0], "never more than one"
    assert [i["instance_type"] for i in told["instances"]] == list(TYPES)
    assert {i["state"] for i in told["instances"]} == {"terminated"}
    # Each is billed at its own price, and for a minute at least.
    spot, small = (stage["groups"][0]["offer"] for stage in told["stages"])
    assert "spot" in spot
    assert "on-demand" in small
    lives = [i["ended_at"] - i["launched_at"] for i in told["instances"]]
    prices = [3.912 * 0.36, 0.526]
    by_hand = sum(max(60.0, s) * p / 3600 for s, p in zip(lives, prices, strict=True))
    assert told["dollars"]["actual"] == pytest.approx(by_hand, rel=0.05)
