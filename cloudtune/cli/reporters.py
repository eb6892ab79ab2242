"""Reporters of a run: to a person at a terminal, quietly, or to a program."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

from cloudtune.api.watching import Onlooker, screen_of
from cloudtune.cli.plan import show_infeasible, tell_insisted
from cloudtune.cli.profile import confirm_rental, measured_for, show_measured
from cloudtune.display.plan_screen import show_saved
from cloudtune.display.report_screen import emulated_text
from cloudtune.display.run_screen import measure_watch
from cloudtune.display.terminal import console
from cloudtune.infra.provider import provider_named
from cloudtune.model.serialization import encode, encode_kind
from cloudtune.runs.job import basis_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.model.commands import Command
    from cloudtune.model.events import Event
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.planning.make import Planned
    from cloudtune.planning.stages import Problem
    from cloudtune.policy.run import RunPolicy
    from cloudtune.running.measuring import Measured
    from cloudtune.running.runner import Watch
    from cloudtune.runs.job import Job


class Quiet(Onlooker):
    """Prints only the final report and why there is no plan, but asks a person before renting."""

    def __init__(self, *, yes: bool = False, goes_on: bool = False) -> None:
        self._yes = yes
        self._begun = "resumed" if goes_on else ""

    def confirm(self, experiment: Experiment, job: Job | None) -> None:
        confirm_rental(experiment, job, yes=self._yes)

    def insists(self) -> None:
        tell_insisted()

    def infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        show_infeasible(error, "table", problem)


class Terminal(Quiet):
    """Reports everything to a terminal."""

    def measures(self) -> Watch:
        console().print(
            "This script has no profile yet: measuring it first, within the same limits."
        )
        return measure_watch(console())

    def measured(self, measured: Measured, kept: Path) -> None:
        show_measured(measured, kept)

    def has_measured(self, experiment: Experiment, dollars: float) -> None:
        limited = dollars > 0 and experiment.limits.budget is not None
        rest = "; the run gets the rest of the budget" if limited else ""
        console().print(f"{measured_for(experiment, dollars)}{rest}.")

    def planned(self, planned: Planned) -> None:
        """Show the first ten lines of `cloudtune plan`: the expected result."""
        from cloudtune.display.plan_screen import show_head
        from cloudtune.planning.proposal import propose

        show_head(console(), propose(planned, others="none"))

    def taken_over(self, saved: Job) -> None:
        basis = basis_of(saved.experiment, saved.rentables)
        show_saved(console(), saved.plan, basis.text)

    def begins(self, job: Job) -> None:
        if provider_named(job.experiment.cloud.provider).paced:
            console().print(emulated_text(job))

    @contextlib.contextmanager
    def watching(self, job: Job, policy: RunPolicy) -> Iterator[Watch]:
        console().print(f"Run {job.run} {self._begun}".rstrip())
        with screen_of(job, policy, console()) as screen:
            yield screen.watch


class JsonLines(Quiet):
    """Writes one JSON object per line to standard output, `type` first (docs/watch.md)."""

    def measures(self) -> Watch:
        return tell_event

    def measured(self, measured: Measured, kept: Path) -> None:
        tell("measured", profile=encode(measured.profile), kept=str(kept), dollars=measured.dollars)

    def infeasible(self, error: InfeasibleError, problem: Problem) -> None:  # noqa: ARG002
        tell("infeasible", message=str(error))

    def planned(self, planned: Planned) -> None:
        """Write the plan as `cloudtune plan -o json` does."""
        from cloudtune.planning.proposal import propose, to_json

        tell("plan", **to_json(propose(planned)))

    @contextlib.contextmanager
    def watching(self, job: Job, policy: RunPolicy) -> Iterator[Watch]:
        """Write each event with its commands and the state of the run."""
        tell("run", run=job.run)
        yield told_as_lines(policy)


def told_as_lines(policy: RunPolicy) -> Watch:
    """Return a watch that writes each event of a run as a line of JSON."""

    def watch(event: Event, commands: tuple[Command, ...]) -> None:
        best = policy.best
        tell_event(
            event,
            commands,
            dollars=policy.fleet.dollars(event.at),
            instances=len(policy.fleet.alive()),
            best=None if best is None else encode(best),
        )

    return watch


def tell_event(event: Event, commands: tuple[Command, ...], **more: Any) -> None:
    """Write an event and its commands as a line of JSON."""
    tell("event", **more, event=encode_kind(event), commands=[encode_kind(c) for c in commands])


def tell(kind: str, **fields: Any) -> None:
    """Write a line of JSON to standard output."""
    click.echo(json.dumps({"type": kind, **fields}))
