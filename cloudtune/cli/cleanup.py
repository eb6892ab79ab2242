"""`cloudtune status`, `gc` and `rm`: what is alive, what nobody looks after, and old runs."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from cloudtune.cli.options import OUTPUT, RUN, GroupedCommand, run_names
from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.model.text import counted
from cloudtune.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.running.cleanup import Found, Head


@click.command(cls=GroupedCommand)
@click.option("--region", help="Also look in this AWS region.")
@OUTPUT
def status(region: str | None, output: str) -> int:
    """Show which instances of ours are alive, whose they are, what they cost."""
    from cloudtune.display.report_screen import show_instances  # noqa: PLC0415
    from cloudtune.display.terminal import console  # noqa: PLC0415
    from cloudtune.running import cleanup  # noqa: PLC0415  boto3 takes a while to load

    found: list[Found] = []
    mute = []
    for cloud in cleanup.open_clouds(region):
        try:
            found += cleanup.look(cloud)
        except cleanup.errors_at(cloud.endpoint) as error:
            mute.append(f"{cloud.endpoint.region}: {error}")
    if output == "json":
        rows = [
            {
                **vars(f.instance),
                "usd_per_hour": f.usd_per_hour,
                "emulated": f.emulated,
                "orphan": f.orphan,
            }
            for f in found
        ]
        click.echo(json.dumps(rows, indent=1))
    else:
        show_instances(console(), found)
    for head in cleanup.dead_heads():
        _tell_head(head, "`cloudtune gc` ends them")
    _tell_abandoned(cleanup.abandoned(end=False), "`cloudtune gc` ends them")
    _tell_mute(mute)
    return CloudtuneError.exit_code if mute else 0


@click.command(cls=GroupedCommand)
@RUN
@click.option(
    "--all", "everything", is_flag=True, help="Terminate every instance tagged by cloudtune."
)
@click.option("--dry-run", is_flag=True, help="Only list what would be terminated.")
@click.option("--region", help="Also look in this AWS region.")
def gc(run: str | None, everything: bool, dry_run: bool, region: str | None) -> int:
    """Give back what dead runs have left: instances, and processes here.

    Without RUN and --all: the instances of runs of this machine whose controller is dead, and any
    whose lease is over. A live run is never touched without --all.
    """
    from cloudtune.running import cleanup  # noqa: PLC0415  boto3 takes a while to load

    for head in cleanup.dead_heads():  # first: one that lives on could launch what it still wants
        if run in {None, head.folder.name}:
            _tell_head(head, "they would be ended" if dry_run else "they are ended")
            if not dry_run:
                head.end()
    abandoned = cleanup.abandoned(end=run is None and not dry_run)
    _tell_abandoned(abandoned, "they would be ended" if dry_run else "they are ended")
    left, mute, told = [], [], 0
    open_clouds = cleanup.open_clouds(region)
    for cloud in open_clouds:
        try:
            found = cleanup.look(cloud)
            doomed = [
                f for f in found if run in {None, f.instance.run} and (everything or f.orphan)
            ]
            told += len(doomed)
            _tell_doomed(doomed, dry_run=dry_run)
            if not dry_run:
                left += cleanup.give_back(cloud, doomed)
                cleanup.keep_records(cloud)
        except cleanup.errors_at(cloud.endpoint) as error:
            mute.append(f"{cloud.endpoint.region}: {error}")
    for cloud in open_clouds if not dry_run else []:
        cloud.close()
    return _conclude_gc([instance.id for instance in left], mute, told if dry_run else 0)


def _tell_head(head: Head, what: str) -> None:
    """Say what a dead run has left on this machine, if anything."""
    if head.trouble:
        click.echo(f"note: run {head.folder.name}: {head.trouble}; nobody is ended by it", err=True)
    elif head.processes:
        click.echo(
            f"run {head.folder.name} has left {head.processes} processes here; {what}", err=True
        )


def _tell_abandoned(machines: Sequence[str], what: str) -> None:
    if machines:
        click.echo(
            f"{', '.join(machines)} ran on here after the emulator had died; {what}", err=True
        )


def _tell_doomed(doomed: Sequence[Found], *, dry_run: bool) -> None:
    verb = "would return" if dry_run else "returning"
    for one in doomed:
        it = one.instance
        click.echo(f"{verb} {it.id} ({it.instance_type}, run {it.run})")


def _tell_mute(mute: Sequence[str]) -> None:
    for cloud in mute:
        click.echo(f"error: EC2 can't be asked in {cloud}", err=True)


def _conclude_gc(left: Sequence[str], mute: Sequence[str], doomed: int) -> int:
    """Say what is left; `doomed` is what a dry run would have returned. Returns the exit code."""
    _tell_mute(mute)
    if left:
        click.echo(f"error: EC2 did not confirm the end of {', '.join(left)}", err=True)
    if left or mute:
        return CleanupError.exit_code
    checked = f"checked {time.strftime('%H:%M:%S')}"
    if doomed:
        click.echo(f"{counted(doomed, 'instance')} would be returned ({checked})")
    else:
        click.echo(f"nothing left to return ({checked})")
    return 0


@click.command(cls=GroupedCommand)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=run_names)
@click.option("-y", "--yes", is_flag=True, help="Remove without asking first.")
def rm(runs: tuple[str, ...], *, yes: bool) -> None:
    """Remove runs: their records here, checkpoints and logs in the storage.

    Shows what goes, and asks first. A run that is alive, or still has instances, is refused. Takes
    measurements, NAME-profile-..., as well; the profiles that they made stay.
    """
    from cloudtune.running.removal import removable  # noqa: PLC0415  boto3 takes a while to load

    doomed = {run.folder: run for run in map(removable, runs)}
    for run in doomed.values():
        click.echo(f"run {run.folder.name}")
        for part in run.parts:
            files = counted(part.files, "file")
            click.echo(f"  {files}, {format_bytes(part.size)} in {part.place}")
        if run.stored is None:
            click.echo("  its records don't say where its checkpoints are: those stay")
    size = format_bytes(sum(part.size for run in doomed.values() for part in run.parts))
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is here to be asked, and nothing was removed: add --yes")
        click.confirm(f"Remove {counted(len(doomed), 'run')}, {size}?", abort=True)
    for run in doomed.values():
        run.remove()
    click.echo(f"Removed {counted(len(doomed), 'run')}, {size}.")
