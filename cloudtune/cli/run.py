"""`cloudtune run`, `resume` and `stop`: an experiment, or a saved plan, to a model."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.api.experiments import for_renting, head_for
from cloudtune.api.scripts import is_script
from cloudtune.cli.options import (
    HERE,
    PACE,
    PROFILE,
    RUN,
    STRATEGY,
    USUAL,
    GroupedCommand,
    experiment_options,
    file_of,
    plan_options_of,
    planning_options,
    search_options,
    watching_options,
)
from cloudtune.cli.reporters import JsonLines, Quiet, Terminal, tell
from cloudtune.display.report_screen import show_report
from cloudtune.display.terminal import console
from cloudtune.errors import UnsavedError, UsageError
from cloudtune.infra.heads.remote_runs import is_remote
from cloudtune.planners.base import InfeasibleError
from cloudtune.planning.plan_file import TOLERANCE, load_plan, refuse_moved_prices
from cloudtune.runs import control, home
from cloudtune.runs.report import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.api.remote import Sent
    from cloudtune.experiment import Experiment
    from cloudtune.running.runner import Ended
    from cloudtune.runs.job import Job

_INTERRUPTED = 130


@click.command(cls=GroupedCommand, first=USUAL)
@click.argument("experiment", metavar="EXPERIMENT|SCRIPT|PLAN", type=click.Path(path_type=Path))
@experiment_options
@search_options
@STRATEGY
@planning_options
@PROFILE
@PACE
@click.option(
    "--force", is_flag=True, help="Start even if no plan meets the limits (still enforced)."
)
@click.option(
    "--price-tolerance",
    type=click.FloatRange(min=0.0),
    default=TOLERANCE,
    show_default=True,
    help="Refuse a saved plan if prices have changed by more than this fraction.",
)
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Rent without asking first (aws asks).",
)
@HERE
@watching_options
@control.outliving_its_terminal()
def run(
    *,
    experiment: Path,
    here: bool,
    profile: str | None,
    pace: bool,
    force: bool,
    price_tolerance: float,
    yes: bool,
    quiet: bool,
    output: str,
    **given: Any,
) -> int:
    """Tune: rent, train, cut, grow, give back, and report.

    Takes an experiment, a saved plan, or a training script: `cloudtune run train.py --deadline 2h
    --budget '$40'` reads off the script what it can, and keeps it as an experiment beside it.

    On AWS, a machine outside has the run carried by a small instance, the head; with --here it is
    carried here.
    """
    from cloudtune.api import flow
    from cloudtune.running import runner

    onlooker = _onlooker(output, quiet=quiet, yes=yes)
    saved = None if is_script(experiment) else load_plan(experiment)
    if saved is not None:
        _refuse_overrides({**given, "profile": profile})
        if math.isnan(price_tolerance):
            raise UsageError("--price-tolerance: nan is no share; write one such as 0.05")
        refuse_moved_prices(experiment, saved, price_tolerance)
        if not here and _needs_head(saved.experiment):
            onlooker.confirm(saved.experiment, saved)
            words = _words(pace=pace, force=force, quiet=quiet, output=output)
            return _carry(saved.experiment, words, plan=experiment)
        runner.enter_environment(saved.experiment)
        return _conclude(flow.carry_out(saved, onlooker, pace=pace, force=force), output)
    wanted = for_renting(file_of(experiment, given), given)
    options = plan_options_of(given)
    if not here and _needs_head(wanted):
        onlooker.confirm(wanted, None)
        words = _words(pace=pace, force=force, quiet=quiet, output=output)
        for name, value in {**vars(options), "profile": profile}.items():
            words += [] if value is None else [f"--{name}={value}"]
        return _carry(wanted, words)
    runner.enter_environment(wanted)
    try:
        ended = flow.tune(wanted, options, onlooker, profile=profile, pace=pace, force=force)
    except InfeasibleError as error:  # which is shown by now
        return error.exit_code
    return _conclude(ended, output)


def _words(*, pace: bool, force: bool, quiet: bool, output: str) -> list[str]:
    """Return the options with which a head is to run what was asked for here."""
    flags = {"--force": force, "--no-pace": not pace, "--quiet": quiet}
    return [f"--output={output}", *(name for name, given in flags.items() if given)]


def _refuse_overrides(given: Mapping[str, Any]) -> None:
    changed = [name for name, value in given.items() if value not in (None, ())]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"a saved plan is carried out as it is; leave out {names}, or plan again")


@click.command(
    cls=GroupedCommand,
    first=("--deadline", "--budget", "--trials", "--yes", "--quiet", "--output"),
)
@RUN
@click.option(
    "--deadline", metavar="+TIME|TIME", help="+1h: an hour from now. 3h: from the run's start."
)
@click.option("--budget", metavar="+$|$", help="'+$10': ten more than spent so far. '$30': in all.")
@click.option("--trials", metavar="+N", help="+16: sixteen more than the run was to try.")
@click.option("--changed-script", is_flag=True, help="Go on although the script has changed since.")
@click.option("-y", "--yes", is_flag=True, help="Rent again without asking first (aws asks).")
@HERE
@watching_options
@control.outliving_its_terminal()
def resume(
    run: str | None,
    *,
    here: bool,
    deadline: str | None,
    budget: str | None,
    trials: str | None,
    changed_script: bool,
    yes: bool,
    quiet: bool,
    output: str,
) -> int:
    """Go on with the trials of a run that died, was interrupted, or met a limit.

    RUN is the last one if it isn't given. A run whose process died has its instances still; one
    that had ended rents anew, and trains on from its checkpoints. Deadline and budget count from
    the run's begin: what has passed meanwhile has passed, unless new ones are given. A run that has
    trained all that it was to goes on with more trials.
    """
    from cloudtune.api import flow
    from cloudtune.running import runner
    from cloudtune.running.resume import Further

    further = Further(deadline, budget, trials)
    onlooker = _onlooker(output, quiet=quiet, yes=yes, goes_on=True)
    folder = home.find_run(run)
    if not here and is_remote(folder):
        words = [f"--{name}={value}" for name, value in vars(further).items() if value is not None]
        words += _words(pace=True, force=False, quiet=quiet, output=output)
        return _carry_on(folder, words, onlooker.confirm)
    runner.enter_environment(runner.job_of_run(folder).experiment)
    ended = flow.go_on(folder, onlooker, further, changed_script=changed_script)
    return _conclude(ended, output)


def _onlooker(output: str, *, quiet: bool, yes: bool = False, goes_on: bool = False) -> Terminal:
    if output == "jsonl":
        return JsonLines(yes=yes)
    return (Quiet if quiet else Terminal)(yes=yes, goes_on=goes_on)


def _conclude(ended: Ended, output: str = "table") -> int:
    from cloudtune.api.flow import concluded

    found, swept, policy = concluded(ended), ended.swept, ended.policy
    if output == "jsonl":
        tell("report", instances_left=0 if swept.unconfirmed is None else None, **to_json(found))
    else:
        out = console()
        show_report(out, found)
        if swept.unconfirmed is None:
            checked = time.strftime("%H:%M:%S", time.localtime(swept.checked_at))
            out.print(f"0 instances left (checked {checked})")
        out.print(f"More: cloudtune report {ended.folder.name}")
        if policy.ended and not policy.why_over():
            more = "--deadline +1h --budget '+$10'"
            out.print(f"Go on: cloudtune resume {ended.folder.name} {more}")
    failed = policy.first_error()
    code = 1 if policy.exit_code is None else policy.exit_code
    if code == 1 and failed is not None and not policy.trouble:
        dead = all(trial.error for trial in policy.trials.values())
        which = "every trial failed" if dead else "no trial is left to go on"
        if policy.failed_alike > 1:
            which = f"{policy.failed_alike} trials failed with the same error, so the run ended"
        click.echo(f"error: {which}; the first: {failed.id}: {failed.error}", err=True)
        click.echo(failed.traceback, err=True)
    elif code == 1:
        click.echo(f"error: {policy.trouble or 'no instance was left to train on'}", err=True)
    elif code == UnsavedError.exit_code:
        click.echo("error: the storage didn't take the best model", err=True)
    if swept.unconfirmed is not None:  # a result is a result, whatever became of the clean-up
        raise swept.unconfirmed
    return code


# ---- runs that a head carries --------------------------------------------------------------


def _needs_head(wanted: Experiment) -> bool:
    """Whether this machine can't carry a run of this experiment, and a head does it."""
    return head_for(wanted) is not None


def _carry(wanted: Experiment, words: Sequence[str], plan: Path | None = None) -> int:
    """Have a head run an experiment, or the saved plan of it, and tell of it; return its exit code.

    `words` are further options of `cloudtune run`.
    """
    from cloudtune.api import remote

    offer = head_for(wanted)
    assert offer is not None
    sent = remote.send(wanted, offer, words, None if plan is None else plan.read_bytes())
    return _followed(sent, f"{offer.instance_type}, ${offer.usd_per_hour:.4g} an hour")


def _carry_on(
    folder: Path, words: Sequence[str], confirm: Callable[[Experiment, Job | None], None]
) -> int:
    """Have another head go on with a run, and tell of it; return its exit code.

    `words` are further options of `cloudtune resume`.
    """
    from cloudtune.api import remote
    from cloudtune.runs.job import job_of_ledger

    job = job_of_ledger(folder / home.LEDGER)
    offer = head_for(job.experiment)
    if offer is None:
        raise UsageError(
            f"run {folder.name} was carried by a head, and this machine can carry it itself: "
            "write --here"
        )
    confirm(job.experiment, job)
    sent = remote.resend(folder, job.experiment, offer, words)
    return _followed(sent, f"{offer.instance_type}, ${offer.usd_per_hour:.4g} an hour")


def _followed(sent: Sent, what: str) -> int:
    from cloudtune.api import remote

    name = sent.folder.name
    click.echo(f"Run {name} is carried by {sent.head} ({what}).", err=True)
    click.echo(
        f"It goes on without this machine; `cloudtune watch {name}` shows it, `cloudtune stop "
        f"{name}` ends it; elsewhere {name} is {sent.remote.storage}",
        err=True,
    )
    try:
        code = remote.follow(
            sent,
            lambda text: click.echo(text, nl=False),
            lambda text: click.echo(text, nl=False, err=True),
        )
    except KeyboardInterrupt:
        click.echo(f"\nThe run goes on. `cloudtune stop {name}` ends it.", err=True)
        return _INTERRUPTED
    click.echo(f"The head {sent.head} is gone.", err=True)
    return code


@click.command(cls=GroupedCommand)
@RUN
def stop(run: str | None) -> None:
    """End a run in order, as Ctrl-C does where it runs. Without RUN, the last one.

    Everything is given back, and `cloudtune resume` goes on with it. Returns at once.
    """
    from cloudtune.api import remote
    from cloudtune.infra.heads.launch import Remote
    from cloudtune.infra.processes import ProcessGroup

    folder = home.find_run(run)
    if not control.is_driven(folder):
        raise UsageError(f"run {folder.name} isn't going; nothing to stop")
    carried = Remote.of(folder)
    if carried is not None:
        remote.ask_to_stop(carried)
    else:
        recorded = ProcessGroup.recorded(folder / control.CONTROLLER)
        assert recorded is not None
        os.kill(recorded[0].pid, signal.SIGINT)
    click.echo(f"Asked to stop: `cloudtune watch {folder.name}` shows how it ends.")
