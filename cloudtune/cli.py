"""The command line. Reads options, prints, and returns the documented exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune import home, planning
from cloudtune.cli_catalog import catalog
from cloudtune.cli_cleanup import gc, status
from cloudtune.cli_elastic import refuse_plan_options, screen_of, show_elastic
from cloudtune.cli_emulator import emulator
from cloudtune.cli_options import (
    OUTPUT,
    PACE,
    PROFILE,
    STRATEGY,
    experiment_options,
    limits_of,
    load_experiment,
    planning_options,
    wish_of,
)
from cloudtune.cli_plan import load_problem, plan, show_infeasible, show_planned
from cloudtune.cli_simulate import Simulate
from cloudtune.elastic_planning import elastic_job
from cloudtune.errors import CloudtuneError, InfeasibleError, UsageError
from cloudtune.plan import Limits, Plan
from cloudtune.plan_files import TOLERANCE, job_of, load_plan, refuse_moved_prices
from cloudtune.screen import console, show_profile
from cloudtune.screen_plan import show_stages
from cloudtune.units import format_dollars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.driving import Ended, Watch
    from cloudtune.experiment import Experiment
    from cloudtune.job import Job, JobPolicy
    from cloudtune.planning import Problem, Wish
    from cloudtune.scaling import ScalingProfile

INTERRUPTED = 130


def main() -> None:
    """Run the command line; a mistake gives one message and its exit code, never a traceback."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = 2
    except CloudtuneError as error:
        click.echo(f"error: {error}", err=True)
        code = error.exit_code
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="cloudtune")
def cli() -> None:
    """Find the best model that a deadline and a dollar budget can buy, on rented GPUs.

    Exit codes: 0 done, 1 error, 2 usage or bad experiment, 3 infeasible, 4 stopped by budget,
    5 stopped by deadline, 6 no capacity, 7 clean-up not confirmed, 130 interrupted and clean.
    """


cli.add_command(plan)
cli.add_command(catalog)
cli.add_command(emulator)
cli.add_command(status)
cli.add_command(gc)


# ---- run -----------------------------------------------------------------------------------


@cli.command()
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
@click.option("-y", "--yes", is_flag=True, help="Don't ask before renting from AWS.")
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
    wanted, wish = load_experiment(experiment, given), wish_of(given)
    if not wanted.strategy.staged:
        refuse_plan_options(wanted, given)
    problem, spent = _measured(wanted, profile, began, pace=pace, yes=yes)
    _refuse_published([each.profile for each in problem.rentables], force=force)
    limits = _left(limits_of(wanted), spent)
    elapsed = time.time() - began
    paced = pace and wanted.cloud.provider == "emulated"
    if not wanted.strategy.staged:
        return _run_elastic(problem, limits, began, elapsed, paced=paced, force=force, yes=yes)
    try:
        planned = planning.make_plan(problem, limits, wish, elapsed)
    except InfeasibleError as error:
        if not force:
            return show_infeasible(error, "table")
        planned = planning.forced_plan(problem, limits, wish, elapsed)
        console().print("No plan meets the limits; runs until one of them ends it.")
    show_planned(planned, limits)
    return _run_job(job_of(planned, limits, began, paced=paced), yes=yes)


def _run_elastic(
    problem: Problem,
    limits: Limits,
    began: float,
    elapsed: float,
    *,
    paced: bool,
    force: bool,
    yes: bool,
) -> int:
    """Carry out an experiment that decides as it goes: there is a forecast instead of a plan."""
    try:
        job = elastic_job(problem, limits, began, elapsed=elapsed, paced=paced, force=force)
    except InfeasibleError as error:
        return show_infeasible(error, "table")
    show_elastic(problem, job)
    return _run_job(job, yes=yes)


def _measured(
    wanted: Experiment, profile: str | None, began: float, *, pace: bool, yes: bool
) -> tuple[Problem, float]:
    """Return what there is to choose from, measured first if need be, and what that cost."""
    from cloudtune import driving

    profiles = planning.stored_profiles(wanted, profile)
    driving.check_script(wanted)
    spent = 0.0
    if not profiles:
        _confirm(wanted, None, yes=yes)
        profiles, spent = _profile_first(wanted, began, pace=pace)
    return planning.problem_of(wanted, profiles), spent


def _refuse_published(profiles: Sequence[ScalingProfile], *, force: bool) -> None:
    """Pass if the plan goes by measurements of the user's own script.

    Raises:
        UsageError: it goes by published figures of another.
    """
    if not force and any(not profile.script_hash for profile in profiles):
        raise UsageError(
            "published figures are for planning; a run needs your script's own: measure it with "
            "`cloudtune profile`, or leave --profile out (or insist with --force)"
        )


def _refuse_overrides(given: Mapping[str, Any]) -> None:
    changed = [name for name, value in given.items() if value is not None]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"a saved plan is carried out as it is; leave out {names}, or plan again")


def _left(limits: Limits, spent: float, elapsed: float = 0.0) -> Limits:
    deadline, budget = limits.deadline, limits.budget
    return Limits(
        None if deadline is None else deadline - elapsed, None if budget is None else budget - spent
    )


def _run_planned(saved: Job, began: float, *, pace: bool, force: bool, yes: bool) -> int:
    from cloudtune import driving

    _refuse_published([each.profile for each in saved.rentables], force=force)
    driving.check_script(saved.experiment)
    paced = pace and saved.experiment.cloud.provider == "emulated"
    job = dataclasses.replace(saved, began=began, paced=paced)
    assert isinstance(job.plan, Plan)
    show_stages(console(), job.plan)
    return _run_job(job, yes=yes)


def _profile_first(
    wanted: Experiment, began: float, *, pace: bool
) -> tuple[list[ScalingProfile], float]:
    from cloudtune import driving

    console().print("No profile of this script yet: measuring it first, within the same limits.")
    profiles, spent = [], 0.0
    for name in [machine.name for machine in planning.instance_types(wanted)]:
        limits = _left(limits_of(wanted), spent, time.time() - began)
        found, cost = driving.measure(wanted, name, _measure_watch(), pace=pace, limits=limits)
        driving.keep_profile(found)
        profiles.append(found)
        spent += cost
        show_profile(console(), found)
    console().print(f"Measured for {format_dollars(spent)}.")
    return profiles, spent


def _confirm(wanted: Experiment, job: Job | None, *, yes: bool) -> None:
    """Ask before money is spent on AWS.

    Raises:
        UsageError: nobody is there to be asked.
    """
    if wanted.cloud.provider != "aws" or yes:
        return
    cap = _cap(limits_of(wanted))
    price = "measuring the script" if job is None else format_dollars(job.plan.estimate.dollars)
    if not sys.stdin.isatty():
        raise UsageError("this would rent from AWS, and nobody is here to be asked: add --yes")
    click.confirm(f"Rent from AWS: {price}, {cap}. Go on?", abort=True)


def _cap(limits: Limits) -> str:
    return "no cap" if limits.budget is None else f"at most {format_dollars(limits.budget)}"


def _run_job(job: Job, *, yes: bool) -> int:
    from cloudtune import driving

    asked_at = time.time()
    _confirm(job.experiment, job, yes=yes)
    # What a person took to answer is not the run's.
    job = dataclasses.replace(job, began=job.began + time.time() - asked_at)
    out = console()
    if job.paced:
        out.print("Emulated cloud: training is paced by the instance type's speed curve.")
    with contextlib.ExitStack() as shown:

        def watching(run: str, policy: JobPolicy) -> Watch:
            out.print(f"Run {run}")
            return shown.enter_context(screen_of(job, policy)).watch

        ended = driving.run_job(job, watching)
    return _conclude(ended)


@cli.command()
@click.argument("run", required=False)
def resume(run: str | None) -> int:
    """Go on with a run whose process died: same limits, same instances, same trials.

    RUN is the last one if it isn't given. Deadline and budget count from the run's begin: what has
    passed meanwhile has passed.
    """
    from cloudtune import driving

    with contextlib.ExitStack() as shown:

        def watching(run: str, policy: JobPolicy) -> Watch:
            console().print(f"Run {run} goes on")
            return shown.enter_context(screen_of(job, policy)).watch

        folder = home.find_run(run)
        job = driving.job_of_run(folder)
        ended = driving.resume_job(folder, watching)
    return _conclude(ended)


def _conclude(ended: Ended) -> int:
    from cloudtune import driving
    from cloudtune.reporting import load
    from cloudtune.screen import show_report

    out, found = console(), load(ended.folder)
    show_report(out, found)
    driving.remember(found)
    out.print(
        f"0 instances left (checked {time.strftime('%H:%M:%S', time.localtime(ended.checked_at))})"
    )
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
    return code


# ---- profile -------------------------------------------------------------------------------


@cli.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@experiment_options
@PACE
@click.option("--epochs", type=click.IntRange(min=2), default=4, show_default=True)
@click.option(
    "--pack",
    type=click.IntRange(2, 16),
    default=None,
    help="Also with 2, 4 … and so many trials on each GPU.",
)
@click.option("--save", type=click.Path(path_type=Path), help="Write the profile to a file too.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before renting from AWS.")
def profile(
    experiment: Path,
    *,
    pace: bool,
    epochs: int,
    pack: int | None,
    save: Path | None,
    yes: bool,
    **given: Any,
) -> int:
    """Measure how the script scales, on one rented instance of each type, and keep it."""
    from cloudtune import driving
    from cloudtune.profiles import store

    wanted = load_experiment(experiment, given)
    driving.check_script(wanted)
    _confirm(wanted, None, yes=yes)
    profiles, spent = [], 0.0
    for name in [machine.name for machine in planning.instance_types(wanted)]:
        limits = Limits(None, _left(limits_of(wanted), spent).budget)
        found, cost = driving.measure(
            wanted,
            name,
            _measure_watch(),
            pace=pace,
            limits=limits,
            epochs=epochs,
            pack=pack or 1,
        )
        spent += cost
        profiles.append(found)
        show_profile(console(), found)
        click.echo(f"kept in {driving.keep_profile(found)}")
    if save is not None:
        store.write(save, profiles)
    click.echo(f"measured for {format_dollars(spent)}")
    return 0


def _measure_watch() -> Callable[[Any, Any], None]:
    from cloudtune.screen import measuring

    return measuring(console())


# ---- simulate ------------------------------------------------------------------------------


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@experiment_options
@planning_options
@PROFILE
@click.option("--force", is_flag=True, help="Simulate even if no plan meets the limits.")
@OUTPUT
def simulate(
    experiment: Path,
    profile: str | None,
    force: bool,
    output: str,
    **given: Any,
) -> int:
    """Play the run in virtual time: the same policy, made-up learning curves, no cloud.

    With --curves FILE instead, compare strategies on recorded learning curves: options of its own,
    that `cloudtune simulate --curves FILE --help` shows.
    """
    from cloudtune import reporting
    from cloudtune.screen import show_report
    from cloudtune.simulating import simulate as simulate_job

    wanted, wish = load_experiment(experiment, given), wish_of(given)
    limits, problem = limits_of(wanted), load_problem(wanted, profile)
    if not wanted.strategy.staged:
        refuse_plan_options(wanted, given)
    try:
        played = simulate_job(_job_to_play(problem, limits, wish, force=force))
    except InfeasibleError as error:
        return show_infeasible(error, output)
    if output == "json":
        click.echo(json.dumps(reporting.to_json(played), indent=1))
    else:
        console().print(
            "Simulated: the metrics are made up, seconds and dollars are the profile's."
        )
        show_report(console(), played)
    ending = played.policy.ending
    return ending.exit_code if ending else 1


def _job_to_play(problem: Problem, limits: Limits, wish: Wish, *, force: bool) -> Job:
    if not problem.experiment.strategy.staged:
        return elastic_job(problem, limits, 0.0, force=force)
    try:
        planned = planning.make_plan(problem, limits, wish)
    except InfeasibleError:
        if not force:
            raise
        planned = planning.forced_plan(problem, limits, wish)
    return job_of(planned, limits, 0.0, paced=False)


cli.add_command(Simulate(simulate))


# ---- looking back --------------------------------------------------------------------------


@cli.command()
@click.argument("run", required=False)
@OUTPUT
def report(run: str | None, output: str) -> int:
    """Show what a run did, planned against actual; without RUN, the last one."""
    from cloudtune.records import cloud_records
    from cloudtune.reporting import load, to_json
    from cloudtune.screen import show_report

    folder = home.find_run(run)
    found = load(folder)
    if output == "json":
        click.echo(json.dumps({**to_json(found), **cloud_records(folder)}, indent=1))
    else:
        show_report(console(), found)
    return 0
