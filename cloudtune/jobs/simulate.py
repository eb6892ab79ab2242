"""A job played in virtual time: what `cloudtune simulate` shows without recorded curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.jobs.report import build

if TYPE_CHECKING:
    from cloudtune.jobs.job import Job
    from cloudtune.jobs.report import Report


def simulate(job: Job) -> Report:
    """Return the report of a job played in virtual time, with made-up learning curves."""
    metric, seed = job.experiment.metric, job.experiment.seed
    world = SimWorld(job.rentables, metric.name, synthetic_metric(metric.mode, seed), seed)
    ledger = MemoryLedger()
    run(job.policy(), world, ledger)
    return build(job, tuple(ledger.entries))
