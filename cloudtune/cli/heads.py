"""Runs that a head carries, as commands: sent from a machine outside, followed, stopped."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click

from cloudtune.api.experiments import head_for
from cloudtune.cli.options import RUN
from cloudtune.errors import UsageError
from cloudtune.infra.heads.known import is_remote
from cloudtune.jobs import control, home

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cloudtune.api.remote import Sent
    from cloudtune.experiment import Experiment
    from cloudtune.jobs.job import Job

__all__ = ["carry", "carry_on", "is_remote", "needed", "stop"]

INTERRUPTED = 130


def needed(wanted: Experiment) -> bool:
    """Whether this machine can't carry a run of this experiment, and a head does it."""
    return head_for(wanted) is not None


def carry(wanted: Experiment, words: Sequence[str], plan: Path | None = None) -> int:
    """Have a head run an experiment, or the saved plan of it, and tell of it; return its exit code.

    `words` are further options of `cloudtune run`.
    """
    from cloudtune.api import remote

    offer = head_for(wanted)
    assert offer is not None
    sent = remote.send(wanted, offer, words, None if plan is None else plan.read_bytes())
    return _followed(sent, f"{offer.instance_type}, ${offer.usd_per_hour:.4g} an hour")


def carry_on(
    folder: Path, words: Sequence[str], confirm: Callable[[Experiment, Job | None], None]
) -> int:
    """Have another head go on with a run, and tell of it; return its exit code.

    `words` are further options of `cloudtune resume`.
    """
    from cloudtune.api import remote
    from cloudtune.jobs.job import job_of_ledger

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
        return INTERRUPTED
    click.echo(f"The head {sent.head} is gone.", err=True)
    return code


@click.command()
@RUN
def stop(run: str | None) -> None:
    """End a run in order, as Ctrl-C does where it runs; without RUN, the last one.

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
