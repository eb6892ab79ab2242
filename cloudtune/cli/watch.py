"""`cloudtune watch`: a run from another terminal, by what stands in its ledger."""

from __future__ import annotations

import contextlib

import click

from cloudtune.cli.onlookers import screen_of, tell, told_as_lines
from cloudtune.cli.options import OUTPUT_JSONL
from cloudtune.display.terminal import console
from cloudtune.jobs import control, home


@click.command()
@click.argument("run", required=False)
@OUTPUT_JSONL
def watch(run: str | None, output: str) -> int:
    """Show a run as it goes, as its own terminal does; without RUN, the last one.

    Ends with the run, and returns the run's exit code; 1 where its controller has died. Ctrl-C ends
    the watching, not the run.
    """
    from cloudtune.api.watching import followed
    from cloudtune.jobs.job import job_of_ledger

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
            screen = shown.enter_context(screen_of(job, policy))
            seen = screen.watch
        for entry in entries:
            policy.handle(entry.event)
            seen(entry.event, entry.commands)
    if screen is not None and console().is_terminal:
        console().print(screen.drawn(policy.now))
    if policy.ended and policy.ending is not None:
        if output != "jsonl":
            console().print(f"More: cloudtune report {folder.name}")
        return policy.ending.exit_code
    if not policy.ended:
        click.echo(
            f"the controller of run {folder.name} has died: `cloudtune resume {folder.name}` goes "
            "on with it, `cloudtune gc` gives back what it has left",
            err=True,
        )
    return 1
