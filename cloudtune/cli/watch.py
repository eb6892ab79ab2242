"""`cloudtune watch`, `logs`, `runs`: a run from another terminal, what it prints, all of them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtune.api.experiments import load_experiment
from cloudtune.cli.options import OUTPUT, OUTPUT_JSONL, RUN, GroupedCommand
from cloudtune.cli.reporters import tell, told_as_lines
from cloudtune.display.terminal import console
from cloudtune.errors import UsageError
from cloudtune.runs import control, home

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.api.run_logs import Log, Told


@click.command(cls=GroupedCommand)
@RUN
@OUTPUT_JSONL
def watch(run: str | None, output: str) -> int:
    """Show a run as it goes, as its own terminal does. Without RUN, the last one.

    Ends with the run, and returns the run's exit code; 1 where its controller has died. Ctrl-C ends
    the watching, not the run.
    """
    from cloudtune.api.watching import followed, screen_of
    from cloudtune.runs.job import job_of_ledger

    folder = home.find_run(run)
    job = job_of_ledger(folder / home.LEDGER)
    policy = job.policy()
    ledger = folder / home.LEDGER
    entries = followed(ledger, lambda: policy.ended, lambda: control.is_driven(folder))
    screen = None
    with contextlib.ExitStack() as shown:
        if output == "jsonl":
            tell("run", run=folder.name)
            seen = told_as_lines(policy)
        else:
            console().print(f"Run {folder.name}")
            screen = shown.enter_context(screen_of(job, policy, console()))
            seen = screen.watch
        for entry in entries:
            policy.handle(entry.event)
            seen(entry.event, entry.commands)
    if screen is not None and console().is_terminal:
        console().print(screen.drawn(policy.now))
    if policy.ended and policy.exit_code is not None:
        if output != "jsonl":
            console().print(f"More: cloudtune report {folder.name}")
        return policy.exit_code
    if not policy.ended:
        click.echo(
            f"the controller of run {folder.name} has died: `cloudtune resume {folder.name}` goes "
            "on with it, `cloudtune gc` gives back what it has left",
            err=True,
        )
    return 1


@click.command(cls=GroupedCommand)
@RUN
@click.argument("trial", required=False)
@click.option("-f", "--follow", is_flag=True, help="Print new output until the run ends.")
@click.option(
    "--nodes",
    is_flag=True,
    help="Print the logs of the instances instead: what the processes that start workers print.",
)
def logs(run: str | None, trial: str | None, *, follow: bool, nodes: bool) -> None:
    """Print what the workers of RUN have printed, or those of TRIAL. Without RUN, of the last one.

    A title names trial, session (a trial begins one each time it is started or moved) and rank. The
    logs are in the run's storage, beside the checkpoints.
    """
    from cloudtune.api.run_logs import RunLogs

    if trial is not None and nodes:
        raise UsageError("--nodes prints what belongs to no trial; leave TRIAL or --nodes out")
    folder = home.find_run(run)
    kept = RunLogs(folder)

    def listed() -> Sequence[Log]:
        return kept.listed(None if follow else trial, nodes=nodes)

    if follow:
        # A trial that hasn't begun is waited for.
        told = _printed(
            kept.followed(
                lambda: [log for log in listed() if trial in (None, log.trial)],
                lambda: control.is_driven(folder),
            )
        )
    else:
        told = _printed(kept.news(listed()))
    if not told:
        of = f"of {trial} " if trial else ""
        click.echo(f"no log {of}in {kept.uri} (yet)", err=True)


def _printed(pieces: Iterable[Told]) -> int:
    """Print pieces of logs, each log's below its title; returns how many there were."""
    title, count = "", 0
    for piece in pieces:
        count += 1
        if piece.log.title != title:
            title = piece.log.title
            click.echo(f"==> {title} <==")
        click.echo(piece.text, nl=not piece.text.endswith("\n"))
    return count


@click.command(cls=GroupedCommand)
@click.argument("experiment", required=False, type=click.Path(path_type=Path))
@OUTPUT
def runs(experiment: Path | None, output: str) -> None:
    """List this machine's runs, the latest first: what they found and cost.

    The last column says whether a later run can learn from it (`history`): which configurations are
    good, and how long things take. With EXPERIMENT, whether a run of that one would. Nothing of
    this leaves the machine.
    """
    from cloudtune.display.runs_table import show_runs
    from cloudtune.display.terminal import console
    from cloudtune.runs import history

    wanted = None if experiment is None else load_experiment(experiment, {"history": "auto"})
    found = list(history.listed(wanted))
    if output == "json":
        click.echo(json.dumps([history.to_json(each) for each in found], indent=1, allow_nan=False))
    else:
        show_runs(console(), found)
