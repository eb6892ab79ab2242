"""`cloudtune run`, `resume` and `stop`: from an experiment or a saved plan to a model."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli import options
from cloudtune.errors import CloudtuneError, DetachedError, UsageError
from cloudtune.model.plans import PRICE_TOLERANCE
from cloudtune.runs import control, home

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudtune.api.results import Result
    from cloudtune.cli.reporters import QuietReporter


@click.command(cls=options.GroupedCommand, first=options.USUAL)
@click.argument("experiment", metavar="EXPERIMENT|SCRIPT|PLAN", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
@options.planning_options
@options.PACE
@options.TRY_FIRST
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
def run(experiment: Path, *, quiet: bool, output: str, **given: Any) -> int:
    """Tune: rent instances, train and select trials, and report.

    Takes an experiment, a saved plan, or a training script: `cloudtune run train.py --deadline 2h
    --budget '$40'` reads what it can from the script and saves it as an experiment beside it.

    On AWS a small instance, the head, controls the run, unless this machine is an instance that the
    others can reach. Ctrl-C stops a run that this machine controls; a run on a head continues, and
    bills (exit code 9).
    """
    from cloudtune.api import runs

    reporter = _reporter(output, quiet=quiet)
    source = options.file_of(experiment, given)
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
def resume(run: str | None, *, quiet: bool, output: str, **given: Any) -> int:
    """Resume a run that died, was interrupted, or reached a limit.

    Without RUN, resumes the last one. A run whose process died still has its instances; one that
    ended rents new instances and continues from its checkpoints. Deadline and budget count from
    the start of the run, the time in between included, unless you give new ones. A completed run
    continues if you add trials.
    """
    from cloudtune.api import runs

    reporter = _reporter(output, quiet=quiet, resumes=True)
    return _exit_code(lambda: runs.resume(run, reporter=reporter, **given), reporter)


def _reporter(output: str, *, quiet: bool, resumes: bool = False) -> QuietReporter:
    from cloudtune.cli.reporters import JsonReporter, QuietReporter, TerminalReporter

    if output == "jsonl":
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


@click.command("try", cls=options.GroupedCommand)
@click.argument("experiment", metavar="EXPERIMENT|SCRIPT", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
def try_(experiment: Path, **given: Any) -> None:
    """Train one trial on this machine for an epoch, or a minute, to find a script's errors."""
    from cloudtune.api.experiments import load_experiment
    from cloudtune.running.dry_run import check_files, try_script

    wanted = load_experiment(options.file_of(experiment, given), given)
    check_files(wanted)
    tried = try_script(wanted)
    if tried.reason:
        raise CloudtuneError(str(tried))
    click.echo(str(tried))
    if tried.unsaved:
        click.echo(tried.unsaved)


@click.command(cls=options.GroupedCommand)
@options.RUN
def stop(run: str | None) -> None:
    """Stop a run gracefully, as Ctrl-C does in its own terminal. Without RUN, the last one.

    The run returns all instances, and `cloudtune resume` can continue it. Doesn't wait for the end.
    """
    from cloudtune.infra.heads.launch import Remote
    from cloudtune.infra.processes import ProcessGroup
    from cloudtune.running import remote

    folder = home.find_run(run)
    if not control.is_driven(folder):
        raise UsageError(f"run {folder.name} isn't running; nothing to stop")
    carried = Remote.of(folder)
    if carried is not None:
        remote.ask_to_stop(carried)
    else:
        recorded = ProcessGroup.recorded(folder / control.CONTROLLER)
        assert recorded is not None
        # Not SIGINT: a shell has what it starts in the background ignore that.
        os.kill(recorded[0].pid, signal.SIGTERM)
    click.echo(f"Stopping run {folder.name}: follow it with `cloudtune watch {folder.name}`.")
