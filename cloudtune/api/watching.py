"""Looking on: a ledger that is read while it is written, and the screen that tells of a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cloudtune.engine.ledger import entry_of, read_header
from cloudtune.runs.basis import basis_of
from cloudtune.strategies.rungs import rung_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import Console

    from cloudtune.display.run_screen import RunScreen
    from cloudtune.engine.ledger import Entry
    from cloudtune.policy.run import RunPolicy
    from cloudtune.runs.job import Job

_GLANCE = 0.5
"""Seconds between two looks at a ledger that has nothing new."""


def followed(path: Path, over: Callable[[], bool], driven: Callable[[], bool]) -> Iterator[Entry]:
    """Yield the entries of a ledger as they come, those of the past at once.

    Ends once the run is `over` by the entries so far, or nobody has `driven` it since before the
    last look. A line that is being written is waited for.

    Raises:
        CloudtuneError: not a ledger of a version that this program reads, or a damaged one.
    """
    read_header(path)
    number, at, last = 0, 0, False
    while True:
        with path.open("rb") as file:  # anew: a head's is another file each time it is brought
            file.seek(at)
            whole = file.read().rpartition(b"\n")
        at += len(whole[0]) + len(whole[1])
        lines = whole[0].decode(errors="replace").split("\n") if whole[1] else []
        for line in lines:
            number += 1
            if number > 1:  # the header
                yield entry_of(line, path, number)
        if over() or (last and not lines):
            return
        # What is written before its writer ends is looked for once more.
        last = not driven()
        if not last:
            time.sleep(_GLANCE)


def screen_of(job: Job, policy: RunPolicy, out: Console) -> RunScreen:
    """Return the screen on which a run of a job is told."""
    from cloudtune.display.run_screen import RunScreen  # noqa: PLC0415

    epochs = job.experiment.span
    return RunScreen(
        out,
        policy,
        rung_epochs(epochs.min, epochs.max, job.experiment.eta),
        basis=basis_of(job.experiment, job.rentables),
        before=job.measuring,
        free=job.plan.free,
        forecast=job.plan.forecast,
        scale=job.experiment.scale,
    )
