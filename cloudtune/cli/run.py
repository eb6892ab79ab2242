"""`cloudtune run` and `cloudtune resume`: an experiment, or a saved plan, to a model."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.api.experiments import load_experiment
from cloudtune.cli.options import (
    PACE,
    PROFILE,
    STRATEGY,
    experiment_options,
    plan_options_of,
    planning_options,
)
from cloudtune.cli.plan import show_infeasible, show_planned, tell_insisted
from cloudtune.cli.profile import confirm_rental, measure_watch, measured_for, show_measured
from cloudtune.display.plan_screen import show_saved
from cloudtune.display.report_screen import emulated_text
from cloudtune.display.terminal import console
from cloudtune.errors import UsageError
from cloudtune.infra.provider import provider_named
from cloudtune.jobs import control, home, planning
from cloudtune.jobs.plan_file import TOLERANCE, load_plan, refuse_moved_prices
from cloudtune.planners.base import InfeasibleError
from cloudtune.strategies.rungs import rung_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cloudtune.experiment import Experiment
    from cloudtune.jobs.job import Job
    from cloudtune.jobs.measuring import Measured
    from cloudtune.jobs.planning import Planned
    from cloudtune.jobs.runner import Ended, Watch
    from cloudtune.jobs.stages import Problem
    from cloudtune.policy.run import RunPolicy


class Terminal:
    """Who looks on where a command runs: all is printed, and a person is asked before renting."""

    def __init__(self, *, yes: bool = False, goes_on: bool = False) -> None:
        self._yes = yes
        self._begun = "goes on" if goes_on else ""

    def confirm(self, experiment: Experiment, job: Job | None) -> None:
        """Ask, where the provider asks first."""
        confirm_rental(experiment, job, yes=self._yes)

    def measures(self) -> Watch:
        """Say so, and tell of it as it goes."""
        console().print(
            "No profile of this script yet: measuring it first, within the same limits."
        )
        return measure_watch()

    def measured(self, found: Measured, kept: Path) -> None:
        """Show the profile."""
        show_measured(found, kept)

    def has_measured(self, experiment: Experiment, dollars: float) -> None:
        """Say what measuring came to."""
        limited = dollars > 0 and experiment.limits.budget is not None
        rest = "; the rest of the budget is the run's" * limited
        console().print(f"{measured_for(experiment, dollars)}{rest}.")

    def insists(self) -> None:
        """Say that no plan meets the limits."""
        tell_insisted()

    def infeasible(self, error: InfeasibleError, problem: Problem) -> None:
        """Show the nearest plans there are."""
        show_infeasible(error, "table", problem)

    def planned(self, planned: Planned) -> None:
        """Show the plan as `cloudtune plan` does."""
        show_planned(planned)

    def taken_over(self, saved: Job) -> None:
        """Show the plan in short."""
        basis = planning.basis_of(saved.experiment, saved.rentables)
        show_saved(console(), saved.plan, basis.text)

    def begins(self, job: Job) -> None:
        """Say what is emulated."""
        if provider_named(job.experiment.cloud.provider).paced:
            console().print(emulated_text(paced=job.paced, source=job.price_source))

    @contextlib.contextmanager
    def watching(self, job: Job, policy: RunPolicy) -> Iterator[Watch]:
        """Tell of the run as it goes."""
        from cloudtune.display.run_screen import RunScreen

        out = console()
        out.print(f"Run {job.run} {self._begun}".rstrip())
        epochs = job.experiment.epochs
        rungs = rung_epochs(epochs.min, epochs.max, job.experiment.eta)
        basis = planning.basis_of(job.experiment, job.rentables)
        free = job.plan.free
        with RunScreen(out, policy, rungs, basis=basis, before=job.measuring, free=free) as screen:
            yield screen.watch


@click.command()
@click.argument("experiment", metavar="EXPERIMENT|PLAN", type=click.Path(path_type=Path))
@experiment_options
@STRATEGY
@planning_options
@PROFILE
@PACE
@click.option("--force", is_flag=True, help="Start even if no plan meets the limits; they hold.")
@click.option(
    "--price-tolerance",
    type=click.FloatRange(min=0.0),
    default=TOLERANCE,
    show_default=True,
    help="Refuse a saved plan whose prices have moved by more than this share.",
)
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Rent without asking, where the provider asks first (aws).",
)
@control.outliving_its_terminal()
def run(
    *,
    experiment: Path,
    profile: str | None,
    pace: bool,
    force: bool,
    price_tolerance: float,
    yes: bool,
    **given: Any,
) -> int:
    """Tune: rent, train, cut, grow, give back, and report. Takes an experiment or a saved plan."""
    from cloudtune.api import flow

    onlooker = Terminal(yes=yes)
    saved = load_plan(experiment)
    if saved is not None:
        _refuse_overrides({**given, "profile": profile})
        if math.isnan(price_tolerance):
            raise UsageError("--price-tolerance: nan is no share; write one such as 0.05")
        refuse_moved_prices(experiment, saved, price_tolerance)
        return _conclude(flow.carry_out(saved, onlooker, pace=pace, force=force))
    wanted, options = load_experiment(experiment, given), plan_options_of(given)
    try:
        ended = flow.tune(wanted, options, onlooker, profile=profile, pace=pace, force=force)
    except InfeasibleError as error:  # which is shown by now
        return error.exit_code
    return _conclude(ended)


def _refuse_overrides(given: Mapping[str, Any]) -> None:
    changed = [name for name, value in given.items() if value is not None]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"a saved plan is carried out as it is; leave out {names}, or plan again")


@click.command()
@click.argument("run", required=False)
@click.option(
    "--deadline", metavar="+TIME|TIME", help="+1h: an hour from now. 3h: since the run's begin."
)
@click.option("--budget", metavar="+$|$", help="'+$10': ten more than are spent. '$30': in all.")
@click.option(
    "-y", "--yes", is_flag=True, help="Rent anew without asking, where the provider asks (aws)."
)
@control.outliving_its_terminal()
def resume(run: str | None, deadline: str | None, budget: str | None, *, yes: bool) -> int:
    """Go on with a run whose process died, was interrupted, or met a limit: with its trials.

    RUN is the last one if it isn't given. A run whose process died has its instances still; one
    that had ended rents anew, and trains on from its checkpoints. Deadline and budget count from
    the run's begin: what has passed meanwhile has passed, unless new ones are given.
    """
    from cloudtune.api import flow
    from cloudtune.jobs.runner import Further

    further = Further(deadline, budget)
    return _conclude(flow.go_on(home.find_run(run), Terminal(yes=yes, goes_on=True), further))


def _conclude(ended: Ended) -> int:
    from cloudtune.api.flow import concluded
    from cloudtune.display.report_screen import show_report

    out = console()
    show_report(out, concluded(ended))
    swept = ended.swept
    if swept.unconfirmed is None:
        checked = time.strftime("%H:%M:%S", time.localtime(swept.checked_at))
        out.print(f"0 instances left (checked {checked})")
    out.print(f"More: cloudtune report {ended.folder.name}")
    policy = ended.policy
    if policy.ended and not policy.why_over():
        out.print(f"Go on: cloudtune resume {ended.folder.name} --deadline +1h --budget '+$10'")
    failed = policy.first_error()
    code = policy.ending.exit_code if policy.ending else 1
    if code == 1 and failed is not None and not policy.trouble:
        dead = all(trial.error for trial in policy.trials.values())
        which = "every trial failed" if dead else "no trial is left to go on"
        click.echo(f"error: {which}; the first: {failed.id}: {failed.error}", err=True)
        click.echo(failed.traceback, err=True)
    elif code == 1:
        click.echo(f"error: {policy.trouble or 'no instance was left to train on'}", err=True)
    if swept.unconfirmed is not None:  # a result is a result, whatever became of the clean-up
        raise swept.unconfirmed
    return code
