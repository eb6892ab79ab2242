"""Small jobs that decide as they go: made as `run` makes them, played in virtual time."""

from collections.abc import Sequence
from typing import Any

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.staged_plans import Problem
from cloudtune.infra.aws import pricing
from cloudtune.model.events import Event
from cloudtune.model.plans import Limits, Rentable
from cloudtune.runs.job import Job
from cloudtune.runs.report import Report, build
from tests.builders import SUBLINEAR, offer, profile

DEADLINE, BUDGET = 400.0, 8.0
LIMITS = Limits(DEADLINE, BUDGET)
RENTABLE = Rentable(offer(4), profile(SUBLINEAR, spread=0.02), 3)


def problem(strategy: object = "asha", **changes: Any) -> Problem:
    """Return a problem on at most 3 instances of 4 GPUs; `changes` are of the experiment."""
    fields: dict[str, Any] = {
        "name": "made-up",
        "train": "train.py:train",
        "metric": {"name": "score", "mode": "max"},
        "search": {"x": {"uniform": [0, 1]}, "y": {"choice": [1, 2]}},
        "trials": 12,
        "epochs": {"min": 1, "max": 9},
        "cloud": {"max_instances": 3},
        "strategy": strategy,
        **changes,
    }
    catalog = pricing.catalog("us-east-1", ("on-demand",))
    return Problem(Experiment(**fields), catalog, (RENTABLE,))


def elastic_job(strategy: object = "asha", limits: Limits = LIMITS, **changes: Any) -> Job:
    planned = make_plan(problem(strategy, **changes), limits, runs=5)
    return make_job(planned, 0.0, paced=False)


def report_of(job: Job, trouble: Sequence[Event] = (), watch: Any = None) -> Report:
    world = SimWorld(job.rentables, "score", synthetic_metric("max", 7), 7)
    for event in trouble:
        world.schedule(event)
    policy, ledger = job.policy(), MemoryLedger()
    if watch is None:
        run(policy, world, ledger)
    else:
        run(policy, world, ledger, watch(policy))
    return build(job, tuple(ledger.entries))
