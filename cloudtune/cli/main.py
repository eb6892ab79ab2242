"""The command line. Reads options, prints, and returns the documented exit codes."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from cloudtune.cli.aws import aws
from cloudtune.cli.catalog import catalog
from cloudtune.cli.cleanup import gc, rm, status
from cloudtune.cli.compare import Simulate
from cloudtune.cli.emulator import emulator
from cloudtune.cli.exports import BESIDE, HTML_OF_RUN, check_page, export, save_page
from cloudtune.cli.options import OUTPUT, RUN, GroupedCommand
from cloudtune.cli.plan import init, plan
from cloudtune.cli.profile import profile
from cloudtune.cli.run import resume, run, stop
from cloudtune.cli.simulate import simulate
from cloudtune.cli.watch import logs, runs, watch
from cloudtune.display.streams import steady
from cloudtune.display.terminal import console
from cloudtune.errors import CloudtuneError
from cloudtune.jobs import home

if TYPE_CHECKING:
    from cloudtune.jobs.report import Report

INTERRUPTED = 130


def main() -> None:
    """Run the command line; a mistake gives one message and its exit code, never a traceback."""
    steady()
    try:
        home.close()
        code = cli.main(prog_name="cloudtune", standalone_mode=False)
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
    5 stopped by deadline, 6 no capacity, 7 clean-up not confirmed, 8 best model not
    saved, 130 interrupted and clean.
    """


cli.add_command(init)
cli.add_command(plan)
cli.add_command(catalog)
cli.add_command(emulator)
cli.add_command(aws)
cli.add_command(status)
cli.add_command(gc)
cli.add_command(rm)
cli.add_command(run)
cli.add_command(resume)
cli.add_command(stop)
cli.add_command(watch)
cli.add_command(logs)
cli.add_command(runs)
cli.add_command(export)
cli.add_command(profile)
cli.add_command(Simulate(simulate))


@cli.command(cls=GroupedCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and runs.

    Bash: eval "$(cloudtune completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, with zsh;
    fish: cloudtune completion fish > ~/.config/fish/completions/cloudtune.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "cloudtune", "_CLOUDTUNE_COMPLETE").source())


# ---- looking back --------------------------------------------------------------------------


@cli.command(cls=GroupedCommand)
@RUN
@HTML_OF_RUN
@click.option(
    "--against",
    is_flag=True,
    help="Compare the bill with simulated fixed and naively elastic clusters.",
)
@OUTPUT
def report(run: str | None, *, html: Path | None, against: bool, output: str) -> int:
    """Show what a run did, planned against actual; without RUN, the last one.

    With --html it is written as a page: curves, GPUs, fleet and spend, the bill, configurations.
    """
    from cloudtune.display.report_screen import show_report
    from cloudtune.jobs.report import cloud_records, load, to_json

    check_page(html)
    folder = home.find_run(run)
    found = load(folder)
    if html is not None:
        from cloudtune.display.pages.reports import run_page

        path = Path(f"{folder.name}.html") if html == BESIDE else html
        save_page(path, lambda: run_page(found))
    if against:
        _show_against(found, output)
    elif output == "json":
        click.echo(json.dumps({**to_json(found), **cloud_records(folder)}, indent=1))
    elif html is None:
        show_report(console(), found)
    return 0


def _show_against(found: Report, output: str) -> None:
    from cloudtune.display.alternatives_tables import against_json
    from cloudtune.display.report_screen import show_against
    from cloudtune.jobs import alternatives

    other = alternatives.against(found.job, found.dollars)
    if output == "json":
        click.echo(json.dumps(against_json(other), indent=1, allow_nan=False))
    else:
        show_against(console(), found, other)
