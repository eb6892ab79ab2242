"""`cloudtune run` and `cloudtune resume`: an experiment, or a saved plan, to a model."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli.options import (
    PACE,
    PROFILE,
    STRATEGY,
    experiment_options,
    limits_of,
    load_experiment,
    plan_options_of,
    planning_options,
)
from cloudtune.cli.plan import plan_or_forced, show_infeasible, show_planned
from cloudtune.cli.profile import confirm_rental, keep, limits_left, measure_watch, measured_for
from cloudtune.display.plan_screen import show_saved
from cloudtune.display.report_screen import emulated_text
from cloudtune.display.terminal import console
from cloudtune.errors import UsageError
from cloudtune.infra.provider import provider_named
from cloudtune.jobs import control, home, planning
from cloudtune.jobs.job import choice_of
from cloudtune.jobs.plan_file import TOLERANCE, job_of, load_plan, refuse_moved_prices
from cloudtune.planners.base import InfeasibleError
from cloudtune.scaling import EMULATED
from cloudtune.strategies.rungs import rung_epochs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.display.run_screen import RunScreen
    from cloudtune.experiment import Experiment
    from cloudtune.jobs.job import Job
    from cloudtune.jobs.runner import Ended, Watch
    from cloudtune.jobs.stages import Problem
    from cloudtune.policy.run import RunPolicy
    from cloudtune.scaling import ScalingProfile

_PROFILE_SHARE = 0.25
"""Of what is left of the limits, what a run would measure its script in, if two epochs allow."""


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
    began = time.time()
    saved = load_plan(experiment)
    if saved is not None:
        _refuse_overrides({**given, "profile": profile})
        if math.isnan(price_tolerance):
            raise UsageError("--price-tolerance: nan is no share; write one such as 0.05")
        refuse_moved_prices(experiment, saved, price_tolerance)
        return _run_planned(saved, began, pace=pace, force=force, yes=yes)
    wanted, options = load_experiment(experiment, given), plan_options_of(given)
    options.check(choice_of(wanted))
    problem, spent = _measured(wanted, profile, began, pace=pace, yes=yes)
    _refuse_made_up(wanted, [each.profile for each in problem.rentables], force=force)
    limits = limits_left(limits_of(wanted), spent)
    elapsed = time.time() - began
    try:
        planned = plan_or_forced(problem, limits, options, elapsed, force=force)
    except InfeasibleError as error:
        return show_infeasible(error, "table", problem)
    show_planned(planned)
    paced = pace and provider_named(wanted.cloud.provider).paced
    job = dataclasses.replace(job_of(planned, began, paced=paced), measuring=spent)
    return _run_job(job, yes=yes)


def _measured(
    wanted: Experiment, profile: str | None, began: float, *, pace: bool, yes: bool
) -> tuple[Problem, float]:
    """Return what there is to choose from, measured first if need be, and what that cost."""
    from cloudtune.jobs import runner

    profiles = planning.stored_profiles(wanted, profile)
    runner.check_script(wanted)
    spent = 0.0
    if not profiles:
        confirm_rental(wanted, None, yes=yes)
        profiles, spent = _profile_first(wanted, began, pace=pace)
    return planning.problem_of(wanted, profiles), spent


def _refuse_made_up(wanted: Experiment, profiles: Sequence[ScalingProfile], *, force: bool) -> None:
    """Pass if the plan goes by measurements of the user's own script, on machines of its kind.

    Raises:
        UsageError: it goes by published figures of another, or by emulated seconds on real GPUs.
    """
    if force:
        return
    if any(not profile.script_hash for profile in profiles):
        raise UsageError(
            "published figures are for planning; a run needs your script's own: measure it with "
            "`cloudtune profile`, or leave --profile out (or insist with --force)"
        )
    emulated = any(profile.provenance.origin == EMULATED for profile in profiles)
    if emulated and not provider_named(wanted.cloud.provider).paced:
        raise UsageError(
            "this profile's seconds are emulated, and say nothing of real GPUs: measure the script "
            "with `cloudtune profile`, or leave --profile out (or insist with --force)"
        )


def _refuse_overrides(given: Mapping[str, Any]) -> None:
    changed = [name for name, value in given.items() if value is not None]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"a saved plan is carried out as it is; leave out {names}, or plan again")


def _run_planned(saved: Job, began: float, *, pace: bool, force: bool, yes: bool) -> int:
    from cloudtune.jobs import runner

    profiles = [each.profile for each in saved.rentables]
    _refuse_made_up(saved.experiment, profiles, force=force)
    runner.check_script(saved.experiment)
    paced = pace and provider_named(saved.experiment.cloud.provider).paced
    job = dataclasses.replace(saved, began=began, paced=paced)
    told = planning.basis_of(job.experiment, job.rentables)
    show_saved(console(), job.plan, told.text)
    return _run_job(job, yes=yes)


def _profile_first(
    wanted: Experiment, began: float, *, pace: bool
) -> tuple[list[ScalingProfile], float]:
    from cloudtune.jobs import measuring

    console().print("No profile of this script yet: measuring it first, within the same limits.")
    profiles: list[ScalingProfile] = []
    spent = 0.0
    limits = limits_of(wanted)
    for name in [machine.name for machine in planning.instance_types(wanted)]:
        limits = limits_left(limits_of(wanted), spent, time.time() - began)
        found = measuring.measure(
            wanted,
            name,
            measure_watch(),
            pace=pace,
            limits=limits,
            share=_PROFILE_SHARE,
            core_seconds=profiles[0].provenance.core_seconds if profiles else None,
        )
        profiles.append(found.profile)
        spent += found.dollars
        keep(found)
    rest = "; the rest of the budget is the run's" * (spent > 0 and limits.budget is not None)
    console().print(f"{measured_for(wanted, spent)}{rest}.")
    return profiles, spent


def _run_job(job: Job, *, yes: bool) -> int:
    from cloudtune.jobs import runner

    asked_at = time.time()
    confirm_rental(job.experiment, job, yes=yes)
    # What a person took to answer is not the run's.
    job = dataclasses.replace(job, began=job.began + time.time() - asked_at)
    out = console()
    if provider_named(job.experiment.cloud.provider).paced:
        out.print(emulated_text(paced=job.paced, source=job.price_source))
    with contextlib.ExitStack() as shown:

        def watching(run: str, policy: RunPolicy) -> Watch:
            out.print(f"Run {run}")
            return shown.enter_context(_screen(job, policy)).watch

        ended = runner.run_job(job, watching)
    return _conclude(ended)


@click.command()
@click.argument("run", required=False)
@control.outliving_its_terminal()
def resume(run: str | None) -> int:
    """Go on with a run whose process died: same limits, same instances, same trials.

    RUN is the last one if it isn't given. Deadline and budget count from the run's begin: what has
    passed meanwhile has passed.
    """
    from cloudtune.jobs import runner

    with contextlib.ExitStack() as shown:

        def watching(run: str, policy: RunPolicy) -> Watch:
            console().print(f"Run {run} goes on")
            return shown.enter_context(_screen(job, policy)).watch

        folder = home.find_run(run)
        job = runner.job_of_run(folder)
        ended = runner.resume_job(folder, watching)
    return _conclude(ended)


def _screen(job: Job, policy: RunPolicy) -> RunScreen:
    """Return the screen on which a run of the job is told."""
    from cloudtune.display.run_screen import RunScreen

    epochs = job.experiment.epochs
    rungs = rung_epochs(epochs.min, epochs.max, job.experiment.eta)
    told = planning.basis_of(job.experiment, job.rentables)
    return RunScreen(console(), policy, rungs, basis=told, before=job.measuring, free=job.plan.free)


def _conclude(ended: Ended) -> int:
    from cloudtune.display.report_screen import show_report
    from cloudtune.jobs import history
    from cloudtune.jobs.report import load

    out, found = console(), load(ended.folder)
    show_report(out, found)
    history.remember(ended.folder, found)
    swept = ended.swept
    if swept.unconfirmed is None:
        checked = time.strftime("%H:%M:%S", time.localtime(swept.checked_at))
        out.print(f"0 instances left (checked {checked})")
    out.print(f"More: cloudtune report {ended.folder.name}")
    policy = ended.policy
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
