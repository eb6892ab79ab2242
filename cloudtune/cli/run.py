"""`cloudtune run`, `resume` and `stop`: from an experiment or a saved plan to a model."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli import options
from cloudtune.errors import CloudtuneError, DetachedError
from cloudtune.model.plans import PRICE_TOLERANCE
from cloudtune.model.trial import EndReason
from cloudtune.runs import home

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudtune.api.results import Result
    from cloudtune.cli.reporters import PageReporter, QuietReporter
    from cloudtune.lifecycle.reporter import Reporter


@click.command(cls=options.GroupedCommand, first=options.USUAL)
@click.argument("experiment", metavar="EXPERIMENT|SCRIPT|PLAN", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
@options.planning_options
@options.PACE
@options.TRY_FIRST
@options.KEEP_FAILED
@click.option(
    "--force", is_flag=True, help="Start even if no plan meets the limits (still enforced)."
)
@click.option(
    "--price-tolerance",
    type=click.FloatRange(min=0.0),
    default=PRICE_TOLERANCE,
    show_default=True,
    help="Refuse a saved plan if prices have changed by more than this fraction.",
)
@options.YES
@options.HERE
@options.watching_options
def run(experiment: Path, *, quiet: bool, output: str, html: bool, port: int, **given: Any) -> int:
    """Tune: rent instances, train and select trials, and report.

    Takes an experiment, a saved plan, or a training script: `cloudtune run train.py --deadline 2h
    --budget '$40'` reads what it can from the script and saves it as an experiment beside it. Where
    neither names a provider, a person is asked where to run; a program runs on the emulated cloud.

    On AWS a small instance, the head, controls the run, unless this machine is an instance that the
    others can reach. Ctrl-C stops a run that this machine controls; a run on a head continues, and
    bills (exit code 9).
    """
    from cloudtune.api import runs
    from cloudtune.cli.places import choose_place

    reporter = _reporter(output, quiet=quiet)
    source = options.find_file(experiment, given)
    is_table = output == "table"  # a program finds the provider in its plan
    asks = is_table and not given["yes"]
    given = choose_place(source, given, asks=asks, quiet=quiet or not is_table)
    if html:
        return _with_page(
            port,
            reporter,
            lambda both: runs.run(source, reporter=both, **given),
            yes=given["yes"],
        )
    return _exit_code(lambda: runs.run(source, reporter=reporter, **given), reporter)


@click.command(
    cls=options.GroupedCommand,
    first=("--deadline", "--budget", "--trials", "--yes", "--quiet", "--output"),
)
@options.RUN
@click.option(
    "--deadline", metavar="+TIME|TIME", help="+1h: an hour from now. 3h: from the run's start."
)
@click.option(
    "--budget", metavar="+$|$", help="'+$10': $10 more than spent so far. '$30': in total."
)
@click.option("--trials", metavar="+N", help="+16: 16 more trials than planned.")
@click.option("--changed-script", is_flag=True, help="Resume although the script has changed.")
@click.option("-y", "--yes", is_flag=True, help="Rent again without asking first (aws asks).")
@options.HERE
@options.watching_options
def resume(
    run: str | None, *, quiet: bool, output: str, html: bool, port: int, **given: Any
) -> int:
    """Resume a run that died, was interrupted, or reached a limit.

    Without RUN, resumes the last one. A run whose process died still has its instances; one that
    ended rents new instances and continues from its checkpoints. Deadline and budget count from
    the start of the run, the time in between included, unless you give new ones. A completed run
    continues if you add trials.
    """
    from cloudtune.api import runs

    reporter = _reporter(output, quiet=quiet, resumes=True)
    if html:
        return _with_page(
            port, reporter, lambda both: runs.resume(run, reporter=both, **given), yes=given["yes"]
        )
    return _exit_code(lambda: runs.resume(run, reporter=reporter, **given), reporter)


def _reporter(output: str, *, quiet: bool, resumes: bool = False) -> QuietReporter:
    from cloudtune.cli.reporters import JsonReporter, QuietReporter, TerminalReporter

    if output != "table":
        return JsonReporter()
    return QuietReporter() if quiet else TerminalReporter(resumes=resumes)


def _exit_code(call: Callable[[], Result], reporter: QuietReporter) -> int:
    """Return the exit code of a call of `cloudtune.run` or `resume`."""
    try:
        result = call()
    except DetachedError as error:
        click.echo(f"\n{error}", err=True)
        return error.exit_code
    except CloudtuneError as error:
        if not reporter.has_shown(error):
            raise
        return error.exit_code
    return 1 if result.exit_code is None else result.exit_code


# Ends of a run that an extension continues.
_AT_LIMITS = frozenset({0, EndReason.BUDGET.exit_code, EndReason.DEADLINE.exit_code})


def _with_page(
    port: int, reporter: QuietReporter, call: Callable[[Reporter], Result], *, yes: bool
) -> int:
    """Run with a live page, and resume as often as its reader has extended the run."""
    from cloudtune.cli.reporters import PageReporter
    from cloudtune.display.pages.document import require_plotly
    from cloudtune.lifecycle.reporter import Reporters

    require_plotly()
    page = PageReporter(port)
    code = _exit_code(lambda: call(Reporters(reporter, page)), reporter)
    return resume_extended(page, reporter, code, yes=yes)


def resume_extended(
    page: PageReporter, reporter: QuietReporter, code: int, *, yes: bool = False
) -> int:
    """Resume a run that ended with an exit code, as often as its page's reader has extended it."""
    from cloudtune.api import runs
    from cloudtune.lifecycle.reporter import Reporters

    while page.extension and code in _AT_LIMITS:
        extension, page.extension = page.extension, {}
        added = " ".join(f"--{name} '{value}'" for name, value in extension.items())
        click.echo(f"Extended on its page: cloudtune resume {page.run} {added}", err=True)
        resumed = functools.partial(
            runs.resume,
            page.run,
            deadline=extension.get("deadline"),
            budget=extension.get("budget"),
            reporter=Reporters(reporter, page),
            yes=yes,
        )
        try:
            code = _exit_code(resumed, reporter)
        except CloudtuneError as error:  # the run has ended well, only not gone on
            click.echo(f"not extended: {error}", err=True)
    return code


@click.command("try", cls=options.GroupedCommand)
@click.argument("experiment", metavar="EXPERIMENT|SCRIPT", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
@options.OUTPUT
def try_(experiment: Path, *, output: str, **given: Any) -> None:
    """Train one trial on this machine for an epoch, or a minute, to find a script's errors."""
    from cloudtune.api.experiments import load_experiment
    from cloudtune.lifecycle.dry_run import check_files, try_script

    wanted = load_experiment(options.find_file(experiment, given), given)
    check_files(wanted)
    tried = try_script(wanted)
    if tried.reason:
        raise CloudtuneError(str(tried))
    if output == "json":
        options.print_data(vars(tried))
        return
    click.echo(str(tried))
    if tried.unsaved:
        click.echo(tried.unsaved)


@click.command(cls=options.GroupedCommand)
@options.RUN
@options.OUTPUT
def stop(run: str | None, *, output: str) -> None:
    """Stop a run gracefully, as Ctrl-C does in its own terminal. Without RUN, the last one.

    The run returns all instances, and `cloudtune resume` can continue it. Doesn't wait for the end.
    """
    from cloudtune.lifecycle.stopping import stop_run

    folder = home.find_run(run)
    stop_run(folder)
    if output == "json":
        options.print_data({"run": folder.name, "stopping": True})
        return
    click.echo(f"Stopping run {folder.name}: follow it with `cloudtune watch {folder.name}`.")
