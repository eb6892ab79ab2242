"""`cloudtune status` and `cloudtune gc`: what is alive, and giving back what nobody looks after."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from cloudtune.cli.options import OUTPUT
from cloudtune.errors import CleanupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.jobs.cleanup import Found


@click.command()
@click.option("--region", help="Look into this AWS region too.")
@OUTPUT
def status(region: str | None, output: str) -> int:
    """Show which instances of ours are alive, whose they are and what they cost per hour."""
    from cloudtune.display.report_screen import show_instances  # noqa: PLC0415
    from cloudtune.display.terminal import console  # noqa: PLC0415
    from cloudtune.jobs import cleanup  # noqa: PLC0415  boto3 takes a while to load

    found = [one for cloud in cleanup.open_clouds(region) for one in cleanup.look(cloud)]
    if output == "json":
        rows = [
            {**vars(f.instance), "usd_per_hour": f.usd_per_hour, "orphan": f.orphan} for f in found
        ]
        click.echo(json.dumps(rows, indent=1))
    else:
        show_instances(console(), found)
    return 0


@click.command()
@click.argument("run", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Return every instance tagged by cloudtune."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be returned.")
@click.option("--region", help="Look into this AWS region too.")
def gc(run: str | None, everything: bool, dry_run: bool, region: str | None) -> int:
    """Give back what dead runs have left: instances, and processes on this machine.

    Without RUN and --all: the instances of runs of this machine whose controller is dead, and any
    whose lease is over. A live run is never touched without --all.
    """
    from cloudtune.jobs import cleanup  # noqa: PLC0415  boto3 takes a while to load

    for folder in cleanup.dead_runs():
        if not dry_run and run in {None, folder.name}:
            cleanup.end_head(folder)
    left, mute = [], []
    open_clouds = cleanup.open_clouds(region)
    for cloud in open_clouds:
        try:
            found = cleanup.look(cloud)
            doomed = [
                f for f in found if run in {None, f.instance.run} and (everything or f.orphan)
            ]
            _tell_doomed(doomed, dry_run=dry_run)
            if not dry_run:
                left += cleanup.give_back(cloud, doomed)
        except cleanup.errors_at(cloud.endpoint) as error:
            mute.append(f"{cloud.endpoint.region}: {error}")
    for cloud in open_clouds if not dry_run else []:
        cloud.close()
    return _conclude_gc([instance.id for instance in left], mute)


def _tell_doomed(doomed: Sequence[Found], *, dry_run: bool) -> None:
    verb = "would return" if dry_run else "returning"
    for one in doomed:
        it = one.instance
        click.echo(f"{verb} {it.id} ({it.instance_type}, run {it.run})")


def _conclude_gc(left: Sequence[str], mute: Sequence[str]) -> int:
    for cloud in mute:
        click.echo(f"error: EC2 can't be asked in {cloud}", err=True)
    if left:
        click.echo(f"error: EC2 did not confirm the end of {', '.join(left)}", err=True)
    if left or mute:
        return CleanupError.exit_code
    click.echo(f"nothing left to return (checked {time.strftime('%H:%M:%S')})")
    return 0
