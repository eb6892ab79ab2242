"""`cloudtune emulator`: inspect the emulated cloud, and inject faults."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cloudtune.cli.options import OUTPUT, print_data
from cloudtune.errors import UsageError, nearest, quote
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.fault_files import parse_faults, read_faults
from cloudtune.infra.emulator.faults import Fault, to_json
from cloudtune.infra.emulator.service import ensure_emulator, find_emulator, stop_emulator
from cloudtune.model.units import format_seconds, parse_seconds
from cloudtune.runs import home

_BOOT = 4.0
_LIVE = ("pending", "running")


@click.group()
def emulator() -> None:
    """Inspect this machine's emulated EC2, and inject faults into it.

    The emulator starts with a run and ends with its last instance; `start` starts it earlier, to
    set faults before a run. The faults and their JSON: `cloudtune docs emulator`.
    """


@emulator.command()
@click.option("--boot", metavar="TIME", help="Time from launch to running (default: 4s).")
def start(boot: str | None) -> None:
    """Start the emulator; it ends after two minutes without use, or with the next run."""
    wanted = _BOOT if boot is None else parse_seconds(boot)
    if _find() is not None and boot is not None:
        raise UsageError("the emulator is already running; stop it first, or leave out --boot")
    started = ensure_emulator(_folder(), wanted)
    click.echo(f"the emulator serves {started.access.endpoint} as pid {started.pid}")


@emulator.command()
@click.option("--force", is_flag=True, help="Also terminate live instances.")
def stop(force: bool) -> None:
    """Stop the emulator if no instance is alive."""
    if not stop_emulator(_folder(), only_if_idle=not force):
        raise UsageError(
            "the emulator has live instances; end them with `cloudtune gc`, or add --force"
        )
    click.echo("stopped the emulator")


@emulator.command()
@OUTPUT
def status(output: str) -> None:
    """Show the emulator's instances and the pending faults."""
    control = _control()
    data = {
        **control.ping(),
        "endpoint": control.endpoint,
        "instances": control.instances(),
        "faults": control.faults(),
    }
    if output == "json":
        print_data(data)
    else:
        _show_status(data)


def _show_status(data: Mapping[str, Any]) -> None:
    click.echo(f"{data['endpoint']}, pid {data['pid']}")
    live = [
        instance
        for instance in data["instances"]
        if instance["state"] not in ("terminated", "stopped")
    ]
    click.echo(f"instances: {len(live)} alive, {len(data['instances']) - len(live)} ended")
    for instance in live:
        click.echo(f"  {_line(instance, data['now'])}")
    _show_faults(data["faults"])


def _line(instance: Mapping[str, Any], now: float) -> str:
    words = [instance["id"], instance["type"], instance["market"], instance["zone"]]
    words.append(instance["state"])
    if instance["health"] != "well":
        words.append(instance["health"])
    words.append(f"for {format_seconds(max(0.0, now - instance['launched_at']))}")
    if instance["ends_at"] is not None:
        words.append(f"reclaimed in {format_seconds(max(0.0, instance['ends_at'] - now))}")
    if instance["power_off_at"] is not None:
        words.append(f"lease {format_seconds(max(0.0, instance['power_off_at'] - now))}")
    return "  ".join(words)


@emulator.command()
@click.argument("given", metavar="[FILE|JSON]", required=False)
@click.option("--add", is_flag=True, help="Add to the pending faults instead of replacing them.")
@click.option("--clear", is_flag=True, help="Clear the pending faults.")
def faults(given: str | None, add: bool, clear: bool) -> None:
    """Set the pending faults from a FILE or from JSON itself; without one, show them.

    As in --add '{"kind": "capacity", "type": "g5.*", "market": "spot", "instances": 2}'.
    """
    if clear and (given is not None or add):
        raise UsageError("--clear can't be combined with FILE or --add")
    if add and given is None:
        raise UsageError("--add needs a FILE or JSON with the faults to add")
    wanted = [] if given is None else [to_json(fault) for fault in _parse_faults(given)]
    control = _control()
    if add:
        control.add(*wanted)
    elif clear or given is not None:
        control.replace(wanted)
    _show_faults(control.faults())


def _parse_faults(given: str) -> list[Fault]:
    if not given.lstrip().startswith(("{", "[")):
        return read_faults(Path(given))
    try:
        document = json.loads(given)
    except json.JSONDecodeError as error:
        raise UsageError(f"not JSON: {error}") from None
    faults = document if isinstance(document, list) else [document]
    return parse_faults(faults)


def _show_faults(faults: Sequence[Mapping[str, Any]]) -> None:
    none = "" if faults else " none"
    click.echo(f"pending faults:{none}")
    for fault in faults:
        click.echo(f"  {json.dumps(fault)}")


@emulator.command()
@click.argument("instance")
@click.option("--notice", metavar="TIME", help="Length of the notice (default: 2m, as on AWS).")
@click.option("--no-notice", is_flag=True, help="Reclaim it immediately.")
def reclaim(instance: str, notice: str | None, no_notice: bool) -> None:
    """Reclaim a spot instance, as AWS does, after its notice."""
    if no_notice and notice is not None:
        raise UsageError("--notice and --no-notice can't be combined")
    seconds = 0.0 if no_notice else parse_seconds(notice or "2m")
    control = _control()
    instance_id = _instance(control, instance)
    control.reclaim(instance_id, seconds)
    when = f"in {format_seconds(seconds)}" if seconds else "now"
    click.echo(f"{instance_id} will be reclaimed {when}")


@emulator.command()
@click.argument("instance")
def kill(instance: str) -> None:
    """Kill the processes of an instance; EC2 still reports it running, and bills it."""
    control = _control()
    instance_id = _instance(control, instance)
    control.kill(instance_id)
    click.echo(f"{instance_id} is dead; EC2 still reports it running")


def _folder() -> Path:
    return home.home() / "emulator"


def _find() -> EmulatorControl | None:
    running = find_emulator(_folder())
    return None if running is None else EmulatorControl(running.access)


def _control() -> EmulatorControl:
    """Return the control of the running emulator.

    Raises:
        UsageError: no emulator is running.
    """
    control = _find()
    if control is None:
        raise UsageError(
            f"no emulator is running in {_folder()}; start it with `cloudtune emulator start`, or "
            "with a run on the emulated cloud"
        )
    return control


def _instance(control: EmulatorControl, given: str) -> str:
    """Return the id of the live instance with this id, or an unambiguous prefix of one.

    Raises:
        UsageError: none matches, or several do; the message names the nearest.
    """
    states: dict[str, str] = {row["id"]: row["state"] for row in control.instances()}
    if states.get(given, "running") not in _LIVE:
        raise UsageError(f"instance {given} is already {states[given]}")
    live = [name for name, state in states.items() if state in _LIVE]
    fitting = [name for name in live if name == given] or [
        name for name in live if given and name.startswith(given)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"{quote(given)} matches {', '.join(fitting)}; write more of the id")
    alive = f"alive: {', '.join(live)}." if live else "no instance is alive."
    raise UsageError(f"no live instance {quote(given)}; {alive}{nearest(given, live)}")
