"""`cloudtune status`, `gc` and `rm`: live instances, orphaned ones, and old runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from cloudtune.cli.options import OUTPUT, RUN, GroupedCommand, confirm, print_data, run_names
from cloudtune.errors import CleanupError, CloudtuneError
from cloudtune.model.text import count_noun
from cloudtune.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.lifecycle.cleanup import Found, Head
    from cloudtune.lifecycle.removal import Removable


@click.command(cls=GroupedCommand)
@click.option("--region", help="Also look in this AWS region.")
@click.option("--all-regions", is_flag=True, help="Look in all regions of the AWS account.")
@OUTPUT
def status(region: str | None, *, all_regions: bool, output: str) -> int:
    """Show cloudtune's live instances, their runs and their prices."""
    from cloudtune.display.report_screen import show_instances
    from cloudtune.display.terminal import console
    from cloudtune.infra.provider import list_errors
    from cloudtune.lifecycle import cleanup

    instances: list[Found] = []
    mute = []
    for cloud in cleanup.open_clouds(region, all_regions=all_regions):
        try:
            instances += cleanup.look(cloud)
        except list_errors(cloud.endpoint) as error:
            mute.append(f"{cloud.endpoint.region}: {error}")
    if output == "json":
        rows = [
            {
                **vars(live.instance),
                "usd_per_hour": live.usd_per_hour,
                "emulated": live.emulated,
                "orphan": live.orphan,
            }
            for live in instances
        ]
        print_data({"instances": rows, "unreachable": mute})
    else:
        show_instances(console(), instances)
    for head in cleanup.dead_heads():
        _print_head(head, "`cloudtune gc` ends them")
    _print_left_machines(cleanup.find_orphans(end=False), "`cloudtune gc` ends them")
    _print_unreachable(mute)
    return CloudtuneError.exit_code if mute else 0


@click.command(cls=GroupedCommand)
@RUN
@click.option(
    "--all", "everything", is_flag=True, help="Terminate all instances tagged by cloudtune."
)
@click.option("--dry-run", is_flag=True, help="List what would be terminated, and change nothing.")
@click.option("--region", help="Also look in this AWS region.")
@click.option("--all-regions", is_flag=True, help="Look in all regions of the AWS account.")
@OUTPUT
def gc(
    run: str | None,
    *,
    everything: bool,
    dry_run: bool,
    region: str | None,
    all_regions: bool,
    output: str,
) -> int:
    """Terminate what dead runs left behind: instances and local processes.

    Without RUN and --all: instances of this machine's runs whose controller is dead, and instances
    whose lease has expired. Never touches a live run without --all.
    """
    from cloudtune.infra.provider import list_errors
    from cloudtune.lifecycle import cleanup

    _end_heads(run, dry_run=dry_run)
    abandoned = cleanup.find_orphans(end=run is None and not dry_run)
    _print_left_machines(abandoned, _says_end(dry_run=dry_run))
    left = []
    mute = []
    returned = []
    open_clouds = cleanup.open_clouds(region, all_regions=all_regions)
    for cloud in open_clouds:
        try:
            instances = cleanup.look(cloud)
            doomed = [
                candidate
                for candidate in instances
                if run in {None, candidate.instance.run} and (everything or candidate.orphan)
            ]
            returned += [candidate.instance for candidate in doomed]
            verb = "would return" if dry_run else "returning"
            for instance in (candidate.instance for candidate in doomed):
                line = f"{verb} {instance.id} ({instance.instance_type}, run {instance.run})"
                click.echo(line, err=output == "json")
            if not dry_run:
                left += cleanup.give_back(cloud, doomed)
                cleanup.keep_records(cloud)
        except list_errors(cloud.endpoint) as error:
            mute.append(f"{cloud.endpoint.region}: {error}")
    for cloud in open_clouds if not dry_run else []:
        cloud.close()
    data = {
        "dry_run": dry_run,
        "returned": [vars(instance) for instance in returned],
        "unconfirmed": [instance.id for instance in left],
        "unreachable": mute,
    }
    return _conclude_gc(data, output)


def _says_end(*, dry_run: bool) -> str:
    return "gc would end them" if dry_run else "ending them"


def _end_heads(run: str | None, *, dry_run: bool) -> None:
    """End what dead runs left on this machine; first, as a live process could launch instances."""
    from cloudtune.lifecycle import cleanup

    for head in cleanup.dead_heads():
        if run in {None, head.folder.name}:
            _print_head(head, _says_end(dry_run=dry_run))
            if not dry_run:
                head.end()


def _print_head(head: Head, what: str) -> None:
    """Print what a dead run left on this machine, if anything."""
    if head.trouble:
        click.echo(
            f"note: run {head.folder.name}: {head.trouble}; gc doesn't end its processes", err=True
        )
    elif head.processes:
        click.echo(f"run {head.folder.name} left {head.processes} processes here; {what}", err=True)


def _print_left_machines(machines: Sequence[str], what: str) -> None:
    if machines:
        click.echo(
            f"{', '.join(machines)} kept running here after the emulator died; {what}", err=True
        )


def _print_unreachable(unreachable: Sequence[str]) -> None:
    for cloud in unreachable:
        click.echo(f"error: can't reach EC2 in {cloud}", err=True)


def _conclude_gc(data: Mapping[str, Any], output: str) -> int:
    """Print what was returned, and what is left. Returns the exit code."""
    left, mute = data["unconfirmed"], data["unreachable"]
    _print_unreachable(mute)
    if left:
        click.echo(f"error: the cloud did not confirm that {', '.join(left)} terminated", err=True)
    if output == "json":
        print_data(data)
    elif not left and not mute:
        checked = f"checked {time.strftime('%H:%M:%S')}"
        if data["dry_run"] and data["returned"]:
            doomed = count_noun(len(data["returned"]), "instance")
            click.echo(f"{doomed} would be returned ({checked})")
        else:
            click.echo(f"nothing left to return ({checked})")
    return CleanupError.exit_code if left or mute else 0


@click.command(cls=GroupedCommand)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=run_names)
@click.option("-y", "--yes", is_flag=True, help="Delete without asking first.")
@OUTPUT
def rm(runs: tuple[str, ...], *, yes: bool, output: str) -> None:
    """Delete runs: local records, and checkpoints and logs in storage.

    Lists what it would delete and asks first. Refuses a run that is alive or still has instances.
    Also deletes measurements (NAME-profile-...), but keeps their profiles.
    """
    from cloudtune.lifecycle.removal import removable

    doomed = {run.folder: run for run in map(removable, runs)}
    if output == "table":
        for run in doomed.values():
            _print_removable(run)
    taken = sum(part.size for run in doomed.values() for part in run.parts)
    size = format_bytes(taken)
    refusal = "can't ask for confirmation without a terminal, and nothing was removed"
    confirm(f"Remove {count_noun(len(doomed), 'run')}, {size}?", refusal, yes=yes)
    for run in doomed.values():
        run.remove()
    if output == "json":
        print_data({"removed": [folder.name for folder in doomed], "bytes": taken})
        return
    click.echo(f"Removed {count_noun(len(doomed), 'run')}, {size}.")


def _print_removable(run: Removable) -> None:
    click.echo(f"run {run.folder.name}")
    for part in run.parts:
        if part.stays:
            click.echo(f"  {part.place}, a link; {part.stays}, which it points to, stays")
            continue
        files = count_noun(part.files, "file")
        click.echo(f"  {files}, {format_bytes(part.size)} in {part.place}")
    if run.stored is None:
        click.echo("  its records don't say where its checkpoints are; they stay")
