"""The command line. Reads options, prints, and returns the documented exit codes."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune import app, home
from cloudtune.errors import CloudtuneError, InfeasibleError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.plan import Limits
from cloudtune.screen import console, show_plan, show_profile
from cloudtune.units import format_dollars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from cloudtune.app import Planned
    from cloudtune.job import Job
    from cloudtune.policy import RunPolicy
    from cloudtune.scaling import ScalingProfile

    Command = TypeVar("Command", bound=Callable[..., Any])

INTERRUPTED = 130


def main() -> None:
    """Run the command line; a mistake gives one message and its exit code, never a traceback."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted; nothing was launched", err=True)
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


def _experiment_options(command: Command) -> Command:
    options = [
        click.option(
            "--deadline", metavar="TIME", help="Finish within this time, as in 2h or 90s."
        ),
        click.option("--budget", metavar="DOLLARS", help="Spend no more than this, as in '$40'."),
        click.option("--trials", type=int, help="How many configurations to try."),
        click.option("--max-instances", type=int, help="Rent no more instances at once."),
        click.option("--provider", type=click.Choice(["emulated", "aws"]), help="Which cloud."),
        click.option("--seed", type=int, help="Seed of the search and of the training."),
        click.option("--storage", metavar="URI", help="Where checkpoints go."),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


_PROFILE = click.option(
    "--profile", "profile", type=click.Path(path_type=Path), help="Use this measured profile."
)
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
_PACE = click.option(
    "--pace/--no-pace",
    default=True,
    help="On the emulated cloud: let epochs take what the instance type's speed curve says.",
)
_OVERRIDES = {
    "deadline": "limits.deadline",
    "budget": "limits.budget",
    "trials": "trials",
    "max_instances": "cloud.max_instances",
    "provider": "cloud.provider",
    "seed": "seed",
    "storage": "storage",
}


def _load(path: Path, given: Mapping[str, Any]) -> Experiment:
    from cloudtune.infra.pricing import instance_types

    overrides = {
        field: given[option]
        for option, field in _OVERRIDES.items()
        if given.get(option) is not None
    }
    experiment = Experiment.load(path, overrides, known_instances=instance_types())
    experiment.check_train()
    return experiment


def _limits(experiment: Experiment) -> Limits:
    return Limits(experiment.limits.deadline, experiment.limits.budget)


# ---- plan ----------------------------------------------------------------------------------


@cli.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@_experiment_options
@_PROFILE
@click.option("--save", type=click.Path(path_type=Path), help="Write the plan down for `run`.")
@_OUTPUT
def plan(
    experiment: Path, profile: Path | None, save: Path | None, output: str, **given: Any
) -> int:
    """Show what a run would do, take and cost. Rents nothing."""
    wanted = _load(experiment, given)
    profiles = app.stored_profiles(wanted, profile)
    if not profiles:
        raise app.no_profile(wanted)
    try:
        planned = app.make_plan(wanted, profiles, _limits(wanted))
    except InfeasibleError as error:
        return _show_infeasible(error, output)
    if save is not None:
        app.save_plan(save, wanted, planned, _limits(wanted))
    _show_planned(wanted, planned, output)
    return 0


def _show_planned(wanted: Experiment, planned: Planned, output: str) -> None:
    from cloudtune.codec import encode

    if output == "json":
        data = {
            "feasible": True,
            "plan": encode(planned.plan),
            "static": encode(planned.static) if planned.static else None,
            "prices": {"source": planned.catalog.source, "as_of": planned.catalog.as_of},
            "profile": {
                "source": planned.profile.source,
                "measured_at": planned.profile.measured_at,
            },
        }
        click.echo(json.dumps(data, indent=1))
        return
    out = console()
    out.print(f"{wanted.name}: {wanted.trials} trials, {wanted.strategy}, eta {wanted.eta}")
    out.print(f"Prices: {planned.catalog.source}, {planned.catalog.as_of}")
    out.print(f"Profile: {planned.profile.source}, {planned.profile.measured_at}")
    show_plan(out, planned.plan, planned.static, _limits(wanted))


def _show_infeasible(error: InfeasibleError, output: str) -> int:
    from cloudtune.codec import encode

    if output == "json":
        data = {
            "feasible": False,
            "message": str(error),
            "fastest": encode(error.fastest) if error.fastest else None,
            "cheapest": encode(error.cheapest) if error.cheapest else None,
        }
        click.echo(json.dumps(data, indent=1))
        return error.exit_code
    for name, found in (("Fastest", error.fastest), ("Cheapest", error.cheapest)):
        if found is not None:
            click.echo(f"{name} plan there is:")
            show_plan(console(), found, None, Limits())
    click.echo(f"infeasible: {error}", err=True)
    return error.exit_code


# ---- run -----------------------------------------------------------------------------------


@cli.command()
@click.argument("experiment", metavar="EXPERIMENT|PLAN", type=click.Path(path_type=Path))
@_experiment_options
@_PROFILE
@_PACE
@click.option("--force", is_flag=True, help="Start even if no plan meets the limits; they hold.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before renting from AWS.")
def run(
    experiment: Path,
    profile: Path | None,
    pace: bool,
    force: bool,
    yes: bool,
    **given: Any,
) -> int:
    """Tune: rent, train, cut, grow, give back, and report. Takes an experiment or a saved plan."""
    began = time.time()
    saved = app.load_plan(experiment)
    if saved is not None:
        _refuse_overrides(given)
        return _run_planned(saved, began, pace=pace, yes=yes)
    wanted = _load(experiment, given)
    profiles = app.stored_profiles(wanted, profile)
    app.check_script(wanted)
    spent = 0.0
    if not profiles:
        _confirm(wanted, None, yes=yes)
        profiles, spent = _profile_first(wanted, began, pace=pace)
    limits = _left(_limits(wanted), spent)
    elapsed = time.time() - began
    try:
        planned = app.make_plan(wanted, profiles, limits, elapsed)
    except InfeasibleError as error:
        if not force:
            return _show_infeasible(error, "table")
        planned = app.forced_plan(wanted, profiles, limits, elapsed)
        console().print("No plan meets the limits; runs until one of them ends it.")
    _show_planned(wanted, planned, "table")
    job = _job(wanted, planned, limits, began, pace=pace)
    return _run_job(job, yes=yes)


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


def _job(wanted: Experiment, planned: Planned, limits: Limits, began: float, *, pace: bool) -> Job:
    from cloudtune.job import Job

    return Job(
        run="",
        experiment=wanted,
        plan=planned.plan,
        profile=planned.profile,
        limits=limits,
        began=began,
        paced=pace and wanted.cloud.provider == "emulated",
        price_source=f"{planned.catalog.source}, {planned.catalog.as_of}",
    )


def _run_planned(saved: Job, began: float, *, pace: bool, yes: bool) -> int:
    app.check_script(saved.experiment)
    paced = pace and saved.experiment.cloud.provider == "emulated"
    job = dataclasses.replace(saved, began=began, paced=paced)
    show_plan(console(), job.plan, None, job.limits)
    return _run_job(job, yes=yes)


def _profile_first(
    wanted: Experiment, began: float, *, pace: bool
) -> tuple[list[ScalingProfile], float]:
    console().print("No profile of this script yet: measuring it first, within the same limits.")
    profiles, spent = [], 0.0
    for name in wanted.cloud.instances:
        limits = _left(_limits(wanted), spent, time.time() - began)
        found, cost = app.measure(wanted, name, _measure_watch(), pace=pace, limits=limits)
        app.keep_profile(found)
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
    cap = _cap(_limits(wanted))
    price = "measuring the script" if job is None else format_dollars(job.plan.estimate.dollars)
    if not sys.stdin.isatty():
        raise UsageError("this would rent from AWS, and nobody is here to be asked: add --yes")
    click.confirm(f"Rent from AWS: {price}, {cap}. Go on?", abort=True)


def _cap(limits: Limits) -> str:
    return "no cap" if limits.budget is None else f"at most {format_dollars(limits.budget)}"


def _run_job(job: Job, *, yes: bool) -> int:
    from cloudtune.screen import RunScreen

    _confirm(job.experiment, job, yes=yes)
    out = console()
    if job.paced:
        out.print("Emulated cloud: training is paced by the instance type's speed curve.")
    folder, policy = app.run_job(job, lambda policy: RunScreen(out, policy).watch)
    return _conclude(folder, policy)


def _conclude(folder: Path, policy: RunPolicy) -> int:
    from cloudtune.reporting import load
    from cloudtune.screen import show_report

    out = console()
    show_report(out, load(folder))
    out.print(f"0 instances left (checked {time.strftime('%H:%M:%S')})")
    out.print(f"More: cloudtune report {folder.name}")
    failed = policy.first_error()
    code = policy.ending.exit_code if policy.ending else 1
    if code == 1 and failed is not None:
        click.echo(f"error: every trial failed; the first: {failed.id}: {failed.error}", err=True)
        click.echo(failed.traceback, err=True)
    return code


# ---- profile -------------------------------------------------------------------------------


@cli.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@_experiment_options
@_PACE
@click.option("--epochs", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--save", type=click.Path(path_type=Path), help="Write the profile to a file too.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before renting from AWS.")
def profile(
    experiment: Path,
    pace: bool,
    epochs: int,
    save: Path | None,
    yes: bool,
    **given: Any,
) -> int:
    """Measure how the script scales, on one rented instance of each type, and keep it."""
    from cloudtune.profiles import store

    wanted = _load(experiment, given)
    app.check_script(wanted)
    _confirm(wanted, None, yes=yes)
    profiles, spent = [], 0.0
    for name in wanted.cloud.instances:
        limits = Limits(app.PROFILE_LIMITS.deadline, _left(_limits(wanted), spent).budget)
        found, cost = app.measure(
            wanted, name, _measure_watch(), pace=pace, limits=limits, epochs=epochs
        )
        spent += cost
        profiles.append(found)
        show_profile(console(), found)
        click.echo(f"kept in {app.keep_profile(found)}")
    if save is not None:
        store.write(save, profiles)
    click.echo(f"measured for {format_dollars(spent)}")
    return 0


def _measure_watch() -> Callable[[Any, Any], None]:
    from cloudtune.screen import measuring

    return measuring(console())


# ---- simulate ------------------------------------------------------------------------------


@cli.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@_experiment_options
@_PROFILE
@click.option("--force", is_flag=True, help="Simulate even if no plan meets the limits.")
@_OUTPUT
def simulate(
    experiment: Path,
    profile: Path | None,
    force: bool,
    output: str,
    **given: Any,
) -> int:
    """Play the run in virtual time: the same policy, made-up learning curves, no cloud."""
    from cloudtune import reporting
    from cloudtune.screen import show_report

    wanted = _load(experiment, given)
    profiles = app.stored_profiles(wanted, profile)
    if not profiles:
        raise app.no_profile(wanted)
    limits = _limits(wanted)
    try:
        planned = app.make_plan(wanted, profiles, limits)
    except InfeasibleError as error:
        if not force:
            return _show_infeasible(error, output)
        planned = app.forced_plan(wanted, profiles, limits)
    played = app.simulate(_job(wanted, planned, limits, 0.0, pace=False))
    if output == "json":
        click.echo(json.dumps(reporting.to_json(played), indent=1))
    else:
        console().print(
            "Simulated: the metrics are made up, seconds and dollars are the profile's."
        )
        show_report(console(), played)
    ending = played.policy.ending
    return ending.exit_code if ending else 1


# ---- looking back --------------------------------------------------------------------------


@cli.command()
@click.argument("run", required=False)
@_OUTPUT
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


@cli.command()
@click.option("--region", help="Look into this AWS region too.")
@_OUTPUT
def status(region: str | None, output: str) -> int:
    """Show which instances of ours are alive, whose they are and what they cost per hour."""
    from cloudtune import cleanup
    from cloudtune.screen import show_instances

    found = [one for cloud in cleanup.open_clouds(region) for one in cleanup.look(cloud)]
    if output == "json":
        rows = [
            {**vars(f.instance), "usd_per_hour": f.usd_per_hour, "orphan": f.orphan} for f in found
        ]
        click.echo(json.dumps(rows, indent=1))
    else:
        show_instances(console(), found)
    return 0


@cli.command()
@click.argument("run", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Return every instance tagged by cloudtune."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be returned.")
@click.option("--region", help="Look into this AWS region too.")
def gc(run: str | None, everything: bool, dry_run: bool, region: str | None) -> int:
    """Give back what dead runs have left: instances, and processes on this machine.

    Without RUN and --all: the instances of runs of this machine whose controller is dead, and any
    whose lease is over. A live run is never touched without --all.
    """
    from cloudtune import cleanup

    left = []
    for folder in cleanup.dead_runs():
        if not dry_run and run in {None, folder.name}:
            cleanup.end_head(folder)
    for cloud in cleanup.open_clouds(region):
        found = cleanup.look(cloud)
        doomed = [f for f in found if everything or f.orphan]
        if run is not None:
            doomed = [f for f in doomed if f.instance.run == run]
        for one in doomed:
            verb = "would return" if dry_run else "returning"
            click.echo(
                f"{verb} {one.instance.id} ({one.instance.instance_type}, run {one.instance.run})"
            )
        if not dry_run:
            left += cleanup.give_back(cloud, doomed)
            cloud.close()
    if left:
        names = ", ".join(instance.id for instance in left)
        click.echo(f"error: EC2 did not confirm the end of {names}", err=True)
        return 7
    click.echo(f"nothing left to return (checked {time.strftime('%H:%M:%S')})")
    return 0
