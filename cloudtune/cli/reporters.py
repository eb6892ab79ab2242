"""Reporters of a run: to a person at a terminal, quietly, or to a program."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli.options import print_line
from cloudtune.cli.plan import infeasible_json, show_infeasible, show_warning
from cloudtune.cli.profile import confirm_rental, measuring_cost, show_profile
from cloudtune.display.live.page import LivePage
from cloudtune.display.plan_screen import show_plan_file
from cloudtune.display.report_screen import emulated_text, show_report
from cloudtune.display.run_screen import RunScreen, make_screen, print_measuring_event
from cloudtune.display.terminal import console
from cloudtune.errors import UnsavedError, UsageError
from cloudtune.infra.provider import find_provider
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.runner import enter_environment
from cloudtune.model.commands import SetTimer
from cloudtune.model.events import TimerFired
from cloudtune.model.serialization import encode, encode_kind
from cloudtune.runs.job import make_basis
from cloudtune.runs.report import to_json

if TYPE_CHECKING:
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


class QuietReporter(Reporter):
    """Prints only the final report and why there is no plan, but asks a person before renting.

    Where a head controls the run, its command prints these, and they are passed on.
    """

    head_options: tuple[str, ...] = ("--quiet",)

    def __init__(self) -> None:
        self._on_head = False
        self._head_errors = ""
        self._infeasible: InfeasibleError | None = None

    def has_shown(self, error: Exception) -> bool:
        """Whether an error was printed already, here or by the head's command."""
        by_head = self._on_head and str(error) in self._head_errors
        return by_head or error is self._infeasible

    def on_local_start(self, experiment: Experiment) -> None:
        """Continue this command in the Python of the experiment's environment, if it differs."""
        enter_environment(experiment)

    def on_confirm(self, experiment: Experiment, job: Job | None) -> None:
        confirm_rental(experiment, job, yes=False)

    def on_forced(self) -> None:
        show_warning()

    def on_infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        self._infeasible = error
        show_infeasible(error, "table", problem)

    def on_head_start(self, run: HeadRun, offer: HeadOffer) -> None:
        self._on_head = True
        name = run.folder.name
        what = f"{offer.instance_type}, ${offer.usd_per_hour:.4g} an hour"
        click.echo(f"{run.head} ({what}) controls run {name}.", err=True)
        click.echo(
            f"It continues without this machine: follow it with `cloudtune watch {name}`, stop it "
            f"with `cloudtune stop {name}`; on other machines {name} is {run.remote.storage}",
            err=True,
        )

    def on_head_output(self, text: str) -> None:
        click.echo(text, nl=False)

    def on_head_errors(self, text: str) -> None:
        self._head_errors += text
        click.echo(text, nl=False, err=True)

    def on_head_end(self, run: HeadRun) -> None:
        click.echo(f"Head {run.head} has terminated.", err=True)

    def on_result(self, report: Report, swept: Swept) -> None:
        if not self._on_head:
            self.show_result(report, swept)
            _show_failure(report)

    def show_result(self, report: Report, swept: Swept) -> None:
        """Print the report, and whether instances are left."""
        out = console()
        show_report(out, report)
        if swept.unconfirmed is None:
            checked = time.strftime("%H:%M:%S", time.localtime(swept.checked_at))
            out.print(f"0 instances left (checked {checked})")
        name = report.job.run
        out.print(f"More: cloudtune report {name}")
        if report.policy.ended and not report.policy.why_over():
            limits = report.job.experiment.limits
            words = ["cloudtune", "resume", name]
            if limits.deadline is not None:
                words += ["--deadline", "+1h"]
            if limits.budget is not None:
                words += ["--budget", "'+$10'"]
            out.print(f"Continue: {' '.join(words)}")


def _show_failure(report: Report) -> None:
    """Print why a run failed, if it did."""
    policy = report.policy
    code = 1 if policy.exit_code is None else policy.exit_code
    if code == UnsavedError.exit_code:
        click.echo("error: the best model could not be saved to storage", err=True)
    if code != 1:
        return
    failed = policy.first_error()
    if failed is None or policy.trouble:
        click.echo(f"error: {policy.trouble or 'no instance was left to train on'}", err=True)
        return
    which = "no trial can continue"
    if policy.failed_alike > 1:
        which = f"{policy.failed_alike} trials failed with the same error, so the run ended"
    elif all(trial.error for trial in policy.trials.values()):
        which = "every trial failed"
    click.echo(f"error: {which}; the first: {failed.id}: {failed.error}", err=True)
    click.echo(failed.traceback, err=True)


class TerminalReporter(QuietReporter):
    """Reports everything to a terminal; on a head, its command does."""

    head_options = ()

    def __init__(self, *, resumes: bool = False) -> None:
        super().__init__()
        self._resumed = " resumed" if resumes else ""
        self._open = contextlib.ExitStack()
        self.screen: RunScreen | None = None

    def on_measuring_start(self, experiment: Experiment) -> None:  # noqa: ARG002
        console().print(
            "A plan of stages needs the script's speed: measuring it first, within the same limits."
        )

    def on_measuring_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        print_measuring_event(console(), event, commands)

    def on_measured(self, measured: Measured, path: Path) -> None:
        show_profile(measured, path)

    def on_measuring_end(self, experiment: Experiment, dollars: float) -> None:
        limited = dollars > 0 and experiment.limits.budget is not None
        rest = "; the run gets the rest of the budget" if limited else ""
        console().print(f"{measuring_cost(experiment, dollars)}{rest}.")

    def on_planned(self, planned: Planned) -> None:
        """Show the first ten lines of `cloudtune plan`: the expected result."""
        from cloudtune.display.plan_screen import show_head
        from cloudtune.forecast.proposal import propose

        show_head(console(), propose(planned, others="none"))

    def on_saved_plan(self, job: Job) -> None:
        basis = make_basis(job.experiment, job.rentables)
        show_plan_file(console(), job.plan, basis.text)

    def on_start(self, job: Job) -> None:
        if find_provider(job.experiment.cloud.provider).paced:
            console().print(emulated_text(job))

    def on_run_start(self, job: Job, policy: RunPolicy) -> None:
        if self._on_head:
            return
        console().print(f"Run {job.run}{self._resumed}")
        self.screen = self._open.enter_context(make_screen(job, policy, console()))

    def on_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        if self.screen is not None:
            self.screen.watch(event, commands)

    def on_run_end(self) -> None:
        self._open.close()


class PageReporter(Reporter):
    """Serves the run's live page, and prints its address to standard error.

    `extension` is by what a reader of the page wants to extend the run `run` once it has ended.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._page: LivePage | None = None
        self._announcing: threading.Thread | None = None
        self.run = ""
        self.extension: dict[str, str] = {}

    def on_run_start(self, job: Job, policy: RunPolicy) -> None:  # noqa: ARG002
        self.on_run_end()  # a run that found no room in its region, and goes to the next
        self.run = job.run
        self._page = LivePage(job.run, self._port)
        self._announcing = threading.Thread(target=self._announce, args=(self._page,), daemon=True)
        self._announcing.start()  # the page is served within seconds, for which no run waits

    def _announce(self, page: LivePage) -> None:
        try:
            click.echo(f"Live page, for this machine's browsers: {page.address()}", err=True)
        except UsageError as error:
            click.echo(str(error), err=True)

    def on_run_end(self) -> None:
        if self._page is not None and self._announcing is not None:
            self._announcing.join()
            self.extension = self._page.end()
            self._page = None


class JsonReporter(QuietReporter):
    """Writes one JSON object per line to standard output, `type` first (docs/watch.md)."""

    head_options = ("--output=jsonl",)

    def __init__(self) -> None:
        super().__init__()
        self._policy: RunPolicy | None = None
        self._partial = ""

    def on_head_output(self, text: str) -> None:
        """Pass the head's lines on, but for its end: this command has one of its own."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            if '"type": "end"' not in line[:40]:
                click.echo(line)

    def on_measuring_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        if not _is_tick(event, commands):
            _write_event(event, commands)

    def on_measured(self, measured: Measured, path: Path) -> None:
        profile = encode(measured.profile)
        print_line("measured", profile=profile, kept=str(path), dollars=measured.dollars)

    def on_infeasible(self, error: InfeasibleError, problem: Problem) -> None:  # noqa: ARG002
        self._infeasible = error
        print_line("infeasible", **infeasible_json(error))

    def on_planned(self, planned: Planned) -> None:
        """Write the plan as `cloudtune plan -o json` does."""
        from cloudtune.forecast.proposal import propose
        from cloudtune.forecast.proposal import to_json as plan_to_json

        print_line("plan", **plan_to_json(propose(planned)))

    def on_run_start(self, job: Job, policy: RunPolicy) -> None:
        if not self._on_head:
            self._policy = policy
            print_line("run", run=job.run)

    def on_event(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Write an event with its commands and the state of the run, but no tick of the clock."""
        policy = self._policy
        if policy is None or _is_tick(event, commands):
            return
        best = policy.best
        _write_event(
            event,
            commands,
            dollars=policy.fleet.dollars(event.at),
            instances=len(policy.fleet.alive()),
            best=None if best is None else encode(best),
        )

    def show_result(self, report: Report, swept: Swept) -> None:
        instances_left = 0 if swept.unconfirmed is None else None
        print_line("report", instances_left=instances_left, **to_json(report))


def _is_tick(event: Event, commands: tuple[Command, ...]) -> bool:
    """Whether an event only asks for the next one."""
    return isinstance(event, TimerFired) and all(isinstance(it, SetTimer) for it in commands)


def _write_event(event: Event, commands: tuple[Command, ...], **more: Any) -> None:
    """Write an event and its commands as a line of JSON."""
    encoded = [encode_kind(command) for command in commands]
    print_line("event", **more, event=encode_kind(event), commands=encoded)
