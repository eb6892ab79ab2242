"""The command line. Reads options, prints, and returns the documented exit codes."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import click

from cloudtune.cli.catalog import catalog
from cloudtune.cli.cleanup import gc, status
from cloudtune.cli.compare import Simulate
from cloudtune.cli.emulator import emulator
from cloudtune.cli.options import (
    OUTPUT,
    PROFILE,
    STRATEGY,
    experiment_options,
    limits_of,
    load_experiment,
    plan_options_of,
    planning_options,
)
from cloudtune.cli.plan import load_problem, plan, plan_or_forced, show_infeasible
from cloudtune.cli.profile import profile
from cloudtune.cli.run import resume, run
from cloudtune.display.streams import steady
from cloudtune.display.terminal import console
from cloudtune.errors import CloudtuneError
from cloudtune.jobs import home
from cloudtune.jobs.plan_file import job_of
from cloudtune.planners.base import InfeasibleError

INTERRUPTED = 130


def main() -> None:
    """Run the command line; a mistake gives one message and its exit code, never a traceback."""
    steady()
    try:
        home.close()
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
    except OSError as error:  # a disk that is full, a home that can't be written
        where = f"{error.filename}: " if error.filename else ""
        with contextlib.suppress(OSError):
            click.echo(f"error: {where}{error.strerror or error}", err=True)
        code = CloudtuneError.exit_code
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
cli.add_command(run)
cli.add_command(resume)
cli.add_command(profile)


# ---- simulate ------------------------------------------------------------------------------


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@experiment_options
@STRATEGY
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
    from cloudtune.display.report_screen import show_report
    from cloudtune.jobs.report import simulate as simulate_job
    from cloudtune.jobs.report import to_json

    wanted, options = load_experiment(experiment, given), plan_options_of(given)
    problem = load_problem(wanted, profile)
    try:
        planned = plan_or_forced(problem, limits_of(wanted), options, force=force)
    except InfeasibleError as error:
        return show_infeasible(error, output, problem)
    played = simulate_job(job_of(planned, 0.0, paced=False))
    if output == "json":
        click.echo(json.dumps(to_json(played), indent=1))
    else:
        console().print(
            "Simulated: the metrics are made up, seconds and dollars are the profile's."
        )
        show_report(console(), played)
    ending = played.policy.ending
    return ending.exit_code if ending else 1


cli.add_command(Simulate(simulate))


# ---- looking back --------------------------------------------------------------------------


@cli.command()
@click.argument("run", required=False)
@OUTPUT
def report(run: str | None, output: str) -> int:
    """Show what a run did, planned against actual; without RUN, the last one."""
    from cloudtune.display.report_screen import show_report
    from cloudtune.jobs.report import cloud_records, load, to_json

    folder = home.find_run(run)
    found = load(folder)
    if output == "json":
        click.echo(json.dumps({**to_json(found), **cloud_records(folder)}, indent=1))
    else:
        show_report(console(), found)
    return 0
