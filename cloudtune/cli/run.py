"""`cloudtune run`, `resume` and `stop`: from an experiment or a saved plan to a model."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli import options
from cloudtune.display.terminal import console
from cloudtune.errors import CloudtuneError, UnsavedError, UsageError
from cloudtune.model.plans import PRICE_TOLERANCE
from cloudtune.model.trial import EndReason
from cloudtune.runs import control, home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.api.remote import Sent
    from cloudtune.cli.reporters import Quiet
    from cloudtune.experiment import Experiment
    from cloudtune.infra.provider import HeadOffer
    from cloudtune.running.runner import Ended

_INTERRUPTED = 130


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
@control.outliving_its_terminal()
def run(
    *,
    experiment: Path,
    here: bool | None,
    profile: str | None,
    pace: bool,
    force: bool,
    price_tolerance: float,
    yes: bool,
    quiet: bool,
    output: str,
    **given: Any,
) -> int:
    """Tune: rent instances, train and select trials, and report.

    Takes an experiment, a saved plan, or a training script: `cloudtune run train.py --deadline 2h
    --budget '$40'` reads what it can from the script and saves it as an experiment beside it.

    On AWS a small instance, the head, controls the run, unless this machine is an instance that the
    others can reach.
    """
    from cloudtune.api import flow
    from cloudtune.api.experiments import given_words, head_for, load_experiment
    from cloudtune.api.regions import ranked
    from cloudtune.api.scripts import is_script
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.planning.plan_file import load_plan, refuse_moved_prices
    from cloudtune.running import runner

    onlooker = _onlooker(output, quiet=quiet, yes=yes)
    words = _words(pace=pace, force=force, quiet=quiet, output=output)
    saved = None if is_script(experiment) else load_plan(experiment)
    if saved is not None:
        _refuse_overrides({**given, "profile": profile})
        if math.isnan(price_tolerance):
            raise UsageError("--price-tolerance must be a number such as 0.05, not nan")
        refuse_moved_prices(experiment, saved, price_tolerance)
        if not here and head_for(saved.experiment, force=here is False) is not None:
            onlooker.confirm(saved.experiment, saved)
            return _carry(saved.experiment, words, plan=experiment)
        runner.enter_environment(saved.experiment)
        return _conclude(flow.carry_out(saved, onlooker, pace=pace, force=force), output)
    planning = options.plan_options_of(given)
    asked = load_experiment(options.file_of(experiment, given), given)
    wanted, *elsewhere = ranked(asked, profile, planning)
    if not here and head_for(wanted, force=here is False) is not None:
        onlooker.confirm(wanted, None)
        words += given_words({**vars(planning), "profile": profile})
        return _carry(wanted, words, elsewhere=elsewhere)
    runner.enter_environment(wanted)
    try:
        ended = flow.tune(wanted, planning, onlooker, profile=profile, pace=pace, force=force)
    except InfeasibleError as error:  # already shown
        return error.exit_code
    return _conclude(ended, output)


def _words(*, pace: bool, force: bool, quiet: bool, output: str) -> list[str]:
    """Return the options for `cloudtune run` on the head."""
    flags = {"--force": force, "--no-pace": not pace, "--quiet": quiet}
    return [f"--output={output}", *(name for name, given in flags.items() if given)]


def _refuse_overrides(given: Mapping[str, Any]) -> None:
    changed = [name for name, value in given.items() if value not in (None, ())]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"a saved plan can't be changed; leave out {names}, or plan again")


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
@control.outliving_its_terminal()
def resume(
    run: str | None,
    *,
    here: bool | None,
    deadline: str | None,
    budget: str | None,
    trials: str | None,
    changed_script: bool,
    yes: bool,
    quiet: bool,
    output: str,
) -> int:
    """Resume a run that died, was interrupted, or reached a limit.

    Without RUN, resumes the last one. A run whose process died still has its instances; one that
    ended rents new instances and continues from its checkpoints. Deadline and budget count from
    the start of the run, the time in between included, unless you give new ones. A completed run
    continues if you add trials.
    """
    from cloudtune.api import flow, remote
    from cloudtune.api.experiments import given_words
    from cloudtune.infra.heads.remote_runs import is_remote
    from cloudtune.running import runner
    from cloudtune.running.resume import Further
    from cloudtune.runs.job import job_of_ledger

    further = Further(deadline, budget, trials)
    onlooker = _onlooker(output, quiet=quiet, yes=yes, goes_on=True)
    folder = home.find_run(run)
    job = job_of_ledger(folder / home.LEDGER)
    wanted = job.experiment
    if not here and is_remote(folder):
        words = given_words(vars(further))
        words += _words(pace=True, force=False, quiet=quiet, output=output)
        onlooker.confirm(wanted, job)
        return _followed(wanted, lambda offer: remote.resend(folder, wanted, offer, words))[0]
    runner.enter_environment(wanted)
    ended = flow.go_on(folder, onlooker, further, changed_script=changed_script)
    return _conclude(ended, output)


def _onlooker(output: str, *, quiet: bool, yes: bool, goes_on: bool = False) -> Quiet:
    from cloudtune.cli.reporters import JsonLines, Quiet, Terminal

    if output == "jsonl":
        return JsonLines(yes=yes)
    return (Quiet if quiet else Terminal)(yes=yes, goes_on=goes_on)


def _conclude(ended: Ended, output: str) -> int:
    from cloudtune.api.flow import concluded
    from cloudtune.cli.reporters import tell
    from cloudtune.display.report_screen import show_report
    from cloudtune.runs.report import to_json

    run_report = concluded(ended)
    swept = ended.swept
    policy = ended.policy
    if output == "jsonl":
        tell(
            "report", instances_left=0 if swept.unconfirmed is None else None, **to_json(run_report)
        )
    else:
        out = console()
        show_report(out, run_report)
        if swept.unconfirmed is None:
            checked = time.strftime("%H:%M:%S", time.localtime(swept.checked_at))
            out.print(f"0 instances left (checked {checked})")
        out.print(f"More: cloudtune report {ended.folder.name}")
        if policy.ended and not policy.why_over():
            more = "--deadline +1h --budget '+$10'"
            out.print(f"Continue: cloudtune resume {ended.folder.name} {more}")
    failed = policy.first_error()
    code = 1 if policy.exit_code is None else policy.exit_code
    if code == 1 and failed is not None and not policy.trouble:
        dead = all(trial.error for trial in policy.trials.values())
        which = "every trial failed" if dead else "no trial can continue"
        if policy.failed_alike > 1:
            which = f"{policy.failed_alike} trials failed with the same error, so the run ended"
        click.echo(f"error: {which}; the first: {failed.id}: {failed.error}", err=True)
        click.echo(failed.traceback, err=True)
    elif code == 1:
        click.echo(f"error: {policy.trouble or 'no instance was left to train on'}", err=True)
    elif code == UnsavedError.exit_code:
        click.echo("error: the best model could not be saved to storage", err=True)
    if swept.unconfirmed is not None:  # print the result even if the clean-up failed
        raise swept.unconfirmed
    return code


def _carry(
    wanted: Experiment,
    words: Sequence[str],
    plan: Path | None = None,
    elsewhere: Sequence[Experiment] = (),
) -> int:
    """Run an experiment, or its saved plan, on a head and print its output; return its exit code.

    `words` are further options of `cloudtune run`. Where there is no room at all, the run goes to
    the first region of those `elsewhere`, then to the next.
    """
    from cloudtune.api import regions, remote
    from cloudtune.runs import report

    saved = None if plan is None else plan.read_bytes()
    code, folder = _followed(wanted, lambda offer: remote.send(wanted, offer, words, saved))
    if code != EndReason.NO_CAPACITY.exit_code or not elsewhere:
        return code
    following = regions.after(report.load(folder), elsewhere[0])
    return code if following is None else _carry(following, words, elsewhere=elsewhere[1:])


def _followed(wanted: Experiment, send: Callable[[HeadOffer], Sent]) -> tuple[int, Path]:
    """Send a run to a head and print its output; return its exit code, and its folder."""
    from cloudtune.api import remote
    from cloudtune.api.experiments import head_for

    offer = head_for(wanted, force=True)
    assert offer is not None
    sent = send(offer)
    what = f"{offer.instance_type}, ${offer.usd_per_hour:.4g} an hour"
    name = sent.folder.name
    click.echo(f"{sent.head} ({what}) controls run {name}.", err=True)
    click.echo(
        f"It continues without this machine: follow it with `cloudtune watch {name}`, stop it with "
        f"`cloudtune stop {name}`; on other machines {name} is {sent.remote.storage}",
        err=True,
    )
    try:
        code = remote.follow(
            sent,
            lambda text: click.echo(text, nl=False),
            lambda text: click.echo(text, nl=False, err=True),
        )
    except KeyboardInterrupt:
        click.echo(f"\nThe run continues. Stop it with `cloudtune stop {name}`.", err=True)
        return _INTERRUPTED, sent.folder
    click.echo(f"Head {sent.head} has terminated.", err=True)
    return code, sent.folder


@click.command("try", cls=options.GroupedCommand)
@click.argument("experiment", metavar="EXPERIMENT|SCRIPT", type=click.Path(path_type=Path))
@options.experiment_options
@options.search_options
def try_(experiment: Path, **given: Any) -> None:
    """Train one trial on this machine for an epoch, or a minute, to find a script's errors."""
    from cloudtune.api.experiments import load_experiment
    from cloudtune.running.dry_run import try_script

    tried = try_script(load_experiment(options.file_of(experiment, given), given))
    if tried.reason:
        raise CloudtuneError(str(tried))
    click.echo(str(tried))


@click.command(cls=options.GroupedCommand)
@options.RUN
def stop(run: str | None) -> None:
    """Stop a run gracefully, as Ctrl-C does in its own terminal. Without RUN, the last one.

    The run returns all instances, and `cloudtune resume` can continue it. Doesn't wait for the end.
    """
    from cloudtune.api import remote
    from cloudtune.infra.heads.launch import Remote
    from cloudtune.infra.processes import ProcessGroup

    folder = home.find_run(run)
    if not control.is_driven(folder):
        raise UsageError(f"run {folder.name} isn't running; nothing to stop")
    carried = Remote.of(folder)
    if carried is not None:
        remote.ask_to_stop(carried)
    else:
        recorded = ProcessGroup.recorded(folder / control.CONTROLLER)
        assert recorded is not None
        os.kill(recorded[0].pid, signal.SIGINT)
    click.echo(f"Stopping run {folder.name}: follow it with `cloudtune watch {folder.name}`.")
