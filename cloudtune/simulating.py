"""A job played in virtual time: what `cloudtune simulate` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.engine import run
from cloudtune.ledger import MemoryLedger
from cloudtune.reporting import build
from cloudtune.simulator import SimWorld, synthetic_metric

if TYPE_CHECKING:
    from cloudtune.job import Job
    from cloudtune.reporting import Report


def simulate(job: Job) -> Report:
    """Return the report of a job played in virtual time, with made-up learning curves."""
    metric, seed = job.experiment.metric, job.experiment.seed
    world = SimWorld(job.rentables, metric.name, synthetic_metric(metric.mode, seed), seed)
    ledger = MemoryLedger()
    run(job.policy(), world, ledger)
    return build(job, tuple(ledger.entries))
