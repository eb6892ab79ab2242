"""`cloudtune logs`: what the training script has printed, on whatever instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloudtune.errors import UsageError
from cloudtune.jobs import control, home

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.api.run_logs import Log, Told


@click.command()
@click.argument("run", required=False)
@click.argument("trial", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as they grow, until the run ends.")
@click.option(
    "--nodes",
    is_flag=True,
    help="What the processes print that start workers, a log for each instance.",
)
def logs(run: str | None, trial: str | None, *, follow: bool, nodes: bool) -> None:
    """Print what the workers of RUN have printed, or those of TRIAL; without RUN, of the last one.

    A title names trial, session (a trial begins one each time it is started or moved) and rank. The
    logs are in the run's storage, beside the checkpoints.
    """
    from cloudtune.api.run_logs import RunLogs  # noqa: PLC0415  pyarrow is heavy

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
