"""Follow a ledger while it is written, and report the run: on a screen, or to an onlooker."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from cloudtune.display.live.panel import RunPanel
from cloudtune.display.run_screen import RunScreen
from cloudtune.engine.ledger import Entry, entry_of, read_header
from cloudtune.model.text import cost_format
from cloudtune.runs.job import basis_of
from cloudtune.strategies.rungs import rung_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import Console

    from cloudtune.experiment import Experiment
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.planning.make import Planned
    from cloudtune.planning.stages import Problem
    from cloudtune.policy.run import RunPolicy
    from cloudtune.running.measuring import Measured
    from cloudtune.running.runner import Watch
    from cloudtune.runs.job import Job

# Seconds between two looks at an unchanged ledger.
_GLANCE = 0.5


class Onlooker:
    """Receives the progress of a run, and confirms it before money is spent; this one is silent."""

    def confirm(self, experiment: Experiment, job: Job | None) -> None:
        """Return if renting is allowed: for a job, or for measuring if `job` is None.

        Raises:
            UsageError: there is no one to ask.
        """

    def measures(self) -> Watch:
        """The script is about to be measured; returns the watch for its events."""
        return lambda _event, _commands: None

    def measured(self, measured: Measured, kept: Path) -> None:
        """A profile was measured and saved to `kept`."""

    def has_measured(self, experiment: Experiment, dollars: float) -> None:
        """Measuring is complete, at this cost in dollars."""

    def insists(self) -> None:
        """No plan meets the limits, and the run starts anyway."""

    def infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        """No plan meets the limits; `error` is raised next."""

    def planned(self, planned: Planned) -> None:
        """The run has been planned."""

    def taken_over(self, saved: Job) -> None:
        """A saved plan is about to be executed."""

    def begins(self, job: Job) -> None:
        """A job is about to start."""

    @contextlib.contextmanager
    def watching(self, job: Job, policy: RunPolicy) -> Iterator[Watch]:  # noqa: ARG002
        """Return a context with the watch for the events and commands of a run."""
        yield lambda _event, _commands: None


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
    epochs = job.experiment.span
    panel = RunPanel(
        policy,
        forecast=job.plan.forecast,
        before=job.measuring,
        free=job.plan.free,
        cost=cost_format(job.plan.offers),
        emulated=basis_of(job.experiment, job.rentables).emulated,
        scale=job.experiment.scale,
    )
    return RunScreen(out, panel, rung_epochs(epochs.min, epochs.max, job.experiment.eta))
