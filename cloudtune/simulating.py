"""Jobs played in virtual time: what `cloudtune simulate` shows."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from cloudtune.engine import run
from cloudtune.ledger import MemoryLedger
from cloudtune.reporting import build
from cloudtune.simulator import SimWorld, synthetic_metric
from cloudtune.trying import play

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.job import Job
    from cloudtune.reporting import Report
    from cloudtune.study import Study
    from cloudtune.trying import Outcome, Try

_FEW = 16
"""So few runs are over before another process has begun."""


def simulate(job: Job) -> Report:
    """Return the report of a job played in virtual time, with made-up learning curves."""
    metric, seed = job.experiment.metric, job.experiment.seed
    world = SimWorld(job.rentables, metric.name, synthetic_metric(metric.mode, seed), seed)
    ledger = MemoryLedger()
    run(job.policy(), world, ledger)
    return build(job, tuple(ledger.entries))


def play_all(study: Study, wanted: Sequence[Try], processes: int = 1) -> Iterator[Outcome]:
    """Yield what each run comes to, in order; in however many processes, the same."""
    if processes == 1 or len(wanted) <= _FEW:
        yield from (play(study, one) for one in wanted)
        return
    workers = min(processes, len(wanted))
    share = max(1, min(16, len(wanted) // (4 * workers)))
    # Fresh processes: a fork would take over whatever threads pyarrow has begun.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, fresh, _begin, (study,)) as pool:
        yield from pool.map(_play, wanted, chunksize=share)


_study: Study


def _begin(study: Study) -> None:
    """Keep the study for the runs of this process; who is interrupted is the parent alone."""
    global _study  # noqa: PLW0603  what a worker is given at its begin
    _study = study
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _play(wanted: Try) -> Outcome:
    return play(_study, wanted)
