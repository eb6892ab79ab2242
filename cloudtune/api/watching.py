"""Follow a ledger while it is written, and show the run on a screen."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from cloudtune.display.run_screen import RunScreen
from cloudtune.engine.ledger import Entry, entry_of, read_header
from cloudtune.policy.run import RunPolicy
from cloudtune.runs.basis import basis_of
from cloudtune.runs.job import Job
from cloudtune.strategies.rungs import rung_epochs

# Seconds between two looks at an unchanged ledger.
_GLANCE = 0.5


def followed(path: Path, over: Callable[[], bool], driven: Callable[[], bool]) -> Iterator[Entry]:
    """Yield the entries of a ledger: the past ones immediately, new ones as they are written.

    Ends once the run is `over` by the entries so far, or when `driven`, called before the last
    look, was False. Waits for a line that is being written.

    Raises:
        CloudtuneError: not a ledger that this version can read, or a damaged one.
    """
    read_header(path)
    number = 0
    at = 0
    last = False
    while True:
        with path.open("rb") as file:  # open again: a head's ledger is a new file after each copy
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
        # Look once more for what the writer wrote before it ended.
        last = not driven()
        if not last:
            time.sleep(_GLANCE)


def screen_of(job: Job, policy: RunPolicy, out: Console) -> RunScreen:
    """Return the screen for a run of a job."""
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
