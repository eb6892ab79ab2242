"""Reporters for programs: lines on standard output or in a notebook, and a callback."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, TypeAlias

from cloudtune.api.plans import Plan
from cloudtune.display.live.notebook import NotebookOutput, in_notebook
from cloudtune.display.run_screen import RunScreen, make_screen
from cloudtune.display.terminal import CleanConsole
from cloudtune.engine.loop import EventListener
from cloudtune.lifecycle.reporter import Reporter

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.forecast.make import Planned
    from cloudtune.infra.provider import HeadOffer
    from cloudtune.lifecycle.outcomes import HeadRun, Measured
    from cloudtune.model.commands import Command
    from cloudtune.model.events import Event
    from cloudtune.policy.run import RunPolicy
    from cloudtune.runs.job import Job

# Called with each event of `cloudtune.model.events` and the resulting commands.
OnEvent: TypeAlias = EventListener

_COLUMNS = 100


class CallbackReporter(Reporter):
    """Calls a function with each event, those of a measurement included."""

    def __init__(self, callback: OnEvent) -> None:
        self._callback = callback

    def on_measuring_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        self._callback(event, commands)

    def on_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        self._callback(event, commands)


class ProgressReporter(Reporter):
    """Prints lines on standard output; in a notebook one output, which is updated."""

    def __init__(self) -> None:
        self._notebook = NotebookOutput() if in_notebook() else None
        self._screen: RunScreen | None = None
        self._policy: RunPolicy | None = None
        self._open = contextlib.ExitStack()
        # In a notebook, rich would create one output per line.
        plain = not sys.stdout.isatty()
        self._out = CleanConsole(
            highlight=False,
            force_jupyter=False,
            width=_COLUMNS if plain else None,
            soft_wrap=plain,
        )

    def on_measuring_start(self, experiment: Experiment) -> None:  # noqa: ARG002
        self._out.print("A plan of stages needs the script's speed: measuring it first.")

    def on_measured(self, measured: Measured, path: Path) -> None:
        self._out.print(
            f"measured on {measured.profile.instance_type}, saved to {path}", markup=False
        )

    def on_forced(self) -> None:
        self._out.print("No plan meets the limits; the run continues until it reaches one.")

    def on_planned(self, planned: Planned) -> None:
        self._out.print(repr(Plan(planned)), markup=False)

    def on_head_start(self, run: HeadRun, offer: HeadOffer) -> None:  # noqa: ARG002
        self._out.print(f"head {run.head} controls the run; it continues without this machine")

    def on_run_start(self, job: Job, policy: RunPolicy) -> None:
        self._out.print(f"Run {job.run}", markup=False)
        out = self._out if self._notebook is None else self._notebook.out
        self._policy = policy
        self._screen = self._open.enter_context(make_screen(job, policy, out))

    def on_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        if self._screen is None:
            return
        self._screen.watch(event, commands)
        if self._notebook is not None:
            self._notebook.show(self._screen.draw(event.at))

    def on_run_end(self) -> None:
        if self._screen is None or self._policy is None:
            return
        self._open.close()
        if self._notebook is not None:
            self._notebook.show(self._screen.draw(self._policy.now), at_once=True)
