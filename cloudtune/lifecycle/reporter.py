"""Reports on a run: one protocol, for terminals, notebooks, programs and callbacks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from cloudtune.errors import UsageError
from cloudtune.infra.provider import find_provider

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.forecast.make import Planned
    from cloudtune.forecast.staged_plans import Problem
    from cloudtune.infra.provider import HeadOffer
    from cloudtune.lifecycle.outcomes import HeadRun, Measured, Swept
    from cloudtune.model.commands import Command
    from cloudtune.model.events import Event
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.policy.run import RunPolicy
    from cloudtune.runs.job import Job
    from cloudtune.runs.report import Report


class Reporter:
    """Receives the progress of a run. Override the methods that you need; the others do nothing.

    They are called in this order: measuring, if the script has no profile; the plan; the run, from
    `on_run_start` to `on_run_end`, each event with its commands; the result. Where a head controls
    the run, its events come from there. The head prints the steps before them.
    """

    # Options for the command that a head runs: how it prints what `on_head_output` gets.
    head_options: tuple[str, ...] = ()

    def needs_confirmation(self, experiment: Experiment) -> bool:
        """Whether `on_confirm` is called before money is spent: if the provider asks first."""
        return bool(find_provider(experiment.cloud.provider).asks_first)

    def on_local_start(self, experiment: Experiment) -> None:
        """This machine is about to control a run, and to measure its script if necessary."""

    def on_confirm(self, experiment: Experiment, job: Job | None) -> None:  # noqa: ARG002
        """Return if renting is allowed: for a job, or for measuring and planning if it is None.

        Called before money is spent, if renting `needs_confirmation`.

        Raises:
            UsageError: renting isn't allowed. This is the default.
        """
        provider = find_provider(experiment.cloud.provider)
        raise UsageError(f"renting from {provider.asks_first} needs confirmation: pass yes=True")

    def on_measuring_start(self, experiment: Experiment) -> None:
        """The script is about to be measured."""

    def on_measuring_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        """An event of a measurement, and the resulting commands."""

    def on_measured(self, measured: Measured, path: Path) -> None:
        """A profile was measured on one instance type, and saved to `path`."""

    def on_measuring_end(self, experiment: Experiment, dollars: float) -> None:
        """Measuring is complete, at this cost in dollars."""

    def on_forced(self) -> None:
        """No plan meets the limits, and the run starts anyway."""

    def on_infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        """No plan meets the limits; `error` is raised next."""

    def on_planned(self, planned: Planned) -> None:
        """The run has been planned."""

    def on_saved_plan(self, job: Job) -> None:
        """A saved plan is about to be executed."""

    def on_start(self, job: Job) -> None:
        """A job was confirmed, and is about to start."""

    def on_run_start(self, job: Job, policy: RunPolicy) -> None:
        """The run has begun, or continues; `policy` has its state after each event."""

    def on_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        """An event of the run, and the resulting commands."""

    def on_run_end(self) -> None:
        """No more events come: the run has ended or failed, or this process has left it."""

    def on_head_start(self, run: HeadRun, offer: HeadOffer) -> None:
        """A head was launched, which controls the run from now on."""

    def on_head_output(self, text: str) -> None:
        """What the head's command has printed to standard output since the last call."""

    def on_head_errors(self, text: str) -> None:
        """What the head's command has printed to standard error since the last call."""

    def on_head_end(self, run: HeadRun) -> None:
        """The head has terminated."""

    def on_result(self, report: Report, swept: Swept) -> None:
        """The run has ended, with its best model saved and its instances returned.

        `swept.unconfirmed` names instances that may be left; it is raised next. A run that found no
        room in its region has a result as well, before it goes to the next region.
        """


class Reporters(Reporter):
    """Several reporters as one. The first is the one that confirms, unless `yes`.

    An error of a reporter while a run goes on must not end the run: it is reported by `warn`.
    """

    def __init__(self, *reporters: Reporter, yes: bool = False) -> None:
        self._reporters: tuple[Reporter, ...] = reporters or (Reporter(),)
        self._yes = yes
        self._warning = ""
        self.head_options = self._reporters[0].head_options

    def add(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = (*self._reporters, *reporters)

    def warn(self) -> None:
        """Issue a RuntimeWarning if a reporter has failed during the run."""
        if self._warning:  # at the line that called `cloudtune.run`, above it and `a_guest`
            warnings.warn(self._warning, RuntimeWarning, stacklevel=4)

    def on_local_start(self, experiment: Experiment) -> None:
        self._call("on_local_start", experiment)

    def needs_confirmation(self, experiment: Experiment) -> bool:
        """Whether the first reporter is asked: if the provider asks first, unless `yes`."""
        return not self._yes and super().needs_confirmation(experiment)

    def on_confirm(self, experiment: Experiment, job: Job | None) -> None:
        if self.needs_confirmation(experiment):
            self._reporters[0].on_confirm(experiment, job)

    def on_measuring_start(self, experiment: Experiment) -> None:
        self._call("on_measuring_start", experiment)

    def on_measuring_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        self._call_safely("on_measuring_event", event, commands)

    def on_measured(self, measured: Measured, path: Path) -> None:
        self._call("on_measured", measured, path)

    def on_measuring_end(self, experiment: Experiment, dollars: float) -> None:
        self._call("on_measuring_end", experiment, dollars)

    def on_forced(self) -> None:
        self._call("on_forced")

    def on_infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        self._call("on_infeasible", error, problem)

    def on_planned(self, planned: Planned) -> None:
        self._call("on_planned", planned)

    def on_saved_plan(self, job: Job) -> None:
        self._call("on_saved_plan", job)

    def on_start(self, job: Job) -> None:
        self._call("on_start", job)

    def on_run_start(self, job: Job, policy: RunPolicy) -> None:
        self._call_safely("on_run_start", job, policy)

    def on_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        self._call_safely("on_event", event, commands)

    def on_run_end(self) -> None:
        self._call("on_run_end")

    def on_head_start(self, run: HeadRun, offer: HeadOffer) -> None:
        self._call("on_head_start", run, offer)

    def on_head_output(self, text: str) -> None:
        self._call("on_head_output", text)

    def on_head_errors(self, text: str) -> None:
        self._call("on_head_errors", text)

    def on_head_end(self, run: HeadRun) -> None:
        self._call("on_head_end", run)

    def on_result(self, report: Report, swept: Swept) -> None:
        self._call("on_result", report, swept)

    def _call(self, method: str, *arguments: object) -> None:
        for reporter in self._reporters:
            getattr(reporter, method)(*arguments)

    def _call_safely(self, method: str, *arguments: object) -> None:
        """Call all reporters, then raise the first error; the run logs it and goes on."""
        errors = []
        for reporter in self._reporters:
            try:
                getattr(reporter, method)(*arguments)
            except Exception as error:  # noqa: BLE001  a reporter decides nothing
                errors.append(error)
        if errors:
            first = f"{method} failed, first with {type(errors[0]).__name__}: {errors[0]}"
            self._warning = self._warning or first
            raise errors[0]
