"""Widths below 1 from a profile to a plan and a run; not where a GPU has too little memory."""

from dataclasses import replace
from typing import Any

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.experiment import Experiment
from cloudtune.forecast import staged_plans
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem
from cloudtune.forecast.proposal import propose
from cloudtune.forecast.staged_plans import Problem
from cloudtune.model.commands import StartTrial
from cloudtune.model.menu import PLANNERS
from cloudtune.model.plans import Limits
from cloudtune.model.scaling import Identity, ScalingProfile
from cloudtune.runs.job import Job
from tests.builders import followed, profile

TYPE = "g4dn.12xlarge"  # four T4 of 16,384 MiB each
WORTH_PACKING = {0.25: 16.0, 0.5: 11.0, 1.0: 8.0, 2.0: 5.0}
LIMITS = Limits(3600.0, 20.0)


def experiment(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {
        "name": "packed",
        "train": "train.py:train",
        "metric": {"name": "score", "mode": "max"},
        "search": {"x": {"uniform": [0, 1]}},
        "trials": 16,
        "epochs": {"min": 2, "max": 8},
        "eta": 2,
        "cloud": {"instances": [TYPE], "max_instances": 1},
        **changes,
    }
    return Experiment(**fields)


def make_profile(memory: dict[float, float] | None = None) -> ScalingProfile:
    identity = Identity("train.py", "train", files={}, constants={})
    return replace(profile(WORTH_PACKING, name=TYPE), memory=memory or {}, identity=identity)


def problem(memory: dict[float, float] | None = None, **changes: Any) -> Problem:
    return build_problem(experiment(**changes), [make_profile(memory)])


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_packs_where_that_is_cheaper(planner: str) -> None:
    plan = followed(make_plan(problem(), LIMITS, staged_plans.PlanOptions(planner=planner)).plan)
    widths = {group.width for stage in plan.stages for group in stage.groups}
    assert min(widths) < 1, widths


def test_an_elastic_run_packs_the_trials_of_one_gpu() -> None:
    job = make_job(
        make_plan(problem(strategy={"name": "asha", "allocator": "dynamic-fluid"}), LIMITS),
        0.0,
        paced=False,
    )
    assert max_on_one(job) >= 8, "four GPUs of one instance have more than four trials"


def max_on_one(job: Job) -> int:
    """Play a run; return the most trials that were on the instance at once."""
    world = SimWorld(job.rentables, "score", synthetic_metric("max", 7), 7)
    ledger = MemoryLedger()
    run(job.policy(), world, ledger)
    live: set[str] = set()
    most = 0
    for entry in ledger.entries:
        if type(entry.event).__name__ in {"TrialStopped", "TrialFailed", "TrialLost"}:
            live.discard(entry.event.session)  # type: ignore[union-attr]
        live |= {command.session for command in entry.commands if isinstance(command, StartTrial)}
        most = max(most, len(live))
    return most


@pytest.mark.parametrize(
    ("memory", "widths"),
    [
        ({}, (0.25, 0.5, 1.0, 2.0)),
        ({1.0: 4096.0}, (0.25, 0.5, 1.0, 2.0)),
        ({1.0: 4097.0}, (0.5, 1.0, 2.0)),
        ({1.0: 9000.0, 0.5: 8000.0}, (0.5, 1.0, 2.0)),
        ({1.0: 3000.0, 0.5: 3000.0, 0.25: 5000.0}, (0.5, 1.0, 2.0)),
        ({2.0: 99999.0}, (0.25, 0.5, 1.0, 2.0)),
    ],
)
def test_without_room_no_offer(memory: dict[float, float], widths: tuple[float, ...]) -> None:
    result = problem(memory)
    assert {rentable.profile.widths for rentable in result.rentables} == {widths}
    assert bool(result.notes) == (len(widths) < 4)


NOTE = f"{TYPE}: no trials at 1/2, 1/4 of a GPU, whose 16,384 MiB they would exceed"


def test_what_is_not_offered_is_reported_with_the_plan() -> None:
    full = problem({1.0: 9000.0})
    proposal = propose(make_plan(full, LIMITS))
    assert proposal.assumptions.count(NOTE) == 1
    widths = {group.width for stage in followed(proposal.plan).stages for group in stage.groups}
    assert min(widths) >= 1
    assert NOTE not in propose(make_plan(problem(), LIMITS)).assumptions


def test_the_same_script_on_a_larger_gpu_has_room() -> None:
    """A T4 in another type is derived from; the memory goes by that type's own GPU."""
    wanted = experiment(cloud={"instances": [TYPE, "g4dn.xlarge"], "max_instances": 1})
    result = build_problem(wanted, [make_profile({1.0: 5000.0})])
    assert {rentable.profile.widths for rentable in result.rentables} == {
        (0.5, 1.0, 2.0),
        (0.5, 1.0),
    }
    assert len(result.notes) == 2
