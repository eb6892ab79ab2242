"""`cloudtune emulator`: what the emulated cloud is doing, and what is to go wrong on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.errors import UsageError, nearest, shown
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.fault_files import read_faults
from cloudtune.infra.emulator.faults import ANY, told
from cloudtune.infra.emulator.service import ensure_emulator, find_emulator, stop_emulator
from cloudtune.model.units import format_seconds, parse_seconds
from cloudtune.runs import home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BOOT = 4.0
_LIVE = ("pending", "running")


@click.group()
def emulator() -> None:
    """Look into this machine's emulated EC2, and inject faults into it.

    The emulator starts with a run and ends with the last instance; `start` starts it before a run,
    so that faults can be set. What each fault does, and its JSON: docs/emulator.md.
    """


# ---- its life ------------------------------------------------------------------------------


@emulator.command()
@click.option("--boot", metavar="TIME", help="Time from launch to running (default: 4s).")
def start(boot: str | None) -> int:
    """Start it; unused, it ends by itself after two minutes, or with the next run."""
    wanted = _BOOT if boot is None else parse_seconds(boot)
    if _found() is not None and boot is not None:
        raise UsageError("the emulator runs already; stop it first, or leave --boot out")
    started = ensure_emulator(_folder(), wanted)
    click.echo(f"the emulator serves {started.endpoint} as pid {started.pid}")
    return 0


@emulator.command()
@click.option("--force", is_flag=True, help="Also terminate the instances that are alive.")
def stop(force: bool) -> int:
    """Stop it, if no instance is alive."""
    if not stop_emulator(_folder(), only_if_idle=not force):
        raise UsageError("instances are alive there; end them with `cloudtune gc`, or add --force")
    click.echo("the emulator is stopped")
    return 0


@emulator.command()
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def status(output: str) -> int:
    """Show its instances, its clock and the faults to come."""
    control = _control()
    data = {
        **control.ping(),
        "endpoint": control.endpoint,
        "instances": control.instances(),
        "faults": control.faults(),
    }
    if output == "json":
        click.echo(json.dumps(data, indent=1))
    else:
        _show_status(data)
    return 0


def _show_status(data: Mapping[str, Any]) -> None:
    clock = data["clock"]
    moved = f"; its clock is {_signed(clock)}" if clock else ""
    click.echo(f"{data['endpoint']}, pid {data['pid']}{moved}")
    live = [each for each in data["instances"] if each["state"] not in ("terminated", "stopped")]
    click.echo(f"instances: {len(live)} alive, {len(data['instances']) - len(live)} ended")
    for each in live:
        click.echo(f"  {_line(each, data['now'])}")
    _show_faults(data["faults"])


def _line(instance: Mapping[str, Any], now: float) -> str:
    words = [instance["id"], instance["type"], instance["market"], instance["zone"]]
    words.append(instance["state"])
    if instance["health"] != "well":
        words.append(instance["health"])
    words.append(f"for {format_seconds(max(0.0, now - instance['launched_at']))}")
    if instance["ends_at"] is not None:
        words.append(f"taken back in {format_seconds(max(0.0, instance['ends_at'] - now))}")
    if instance["power_off_at"] is not None:
        words.append(f"lease {format_seconds(max(0.0, instance['power_off_at'] - now))}")
    return "  ".join(words)


# ---- faults --------------------------------------------------------------------------------


@emulator.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--add", is_flag=True, help="Add to the pending faults instead of replacing them.")
@click.option("--clear", is_flag=True, help="Clear the pending faults.")
def faults(file: Path | None, add: bool, clear: bool) -> int:
    """Set the faults to come from a JSON FILE; without one, show them."""
    if clear and (file is not None or add):
        raise UsageError("--clear sets no faults; leave it out, or leave FILE and --add out")
    if add and file is None:
        raise UsageError("--add needs a FILE with the faults to add")
    given = None if file is None else [told(fault) for fault in read_faults(file)]
    control = _control()
    if clear:
        control.clear()
    elif given is not None and add:
        control.add(*given)
    elif given is not None:
        control.replace(given)
    _show_faults(control.faults())
    return 0


def _show_faults(faults: Sequence[Mapping[str, Any]]) -> None:
    click.echo("faults to come:" if faults else "faults to come: none")
    for fault in faults:
        click.echo(f"  {json.dumps(fault)}")


@emulator.command()
@click.argument("pool", metavar="TYPE[:MARKET[:ZONE]]")
@click.argument("instances", metavar="N")
def capacity(pool: str, instances: str) -> int:
    """Let N instances of a pool be there at a time; "any" lifts the limit.

    Beyond it EC2 answers InsufficientInstanceCapacity. Patterns work, as in 'g5.*:spot'.
    """
    parts = pool.split(":")
    if len(parts) > 3:
        raise UsageError(f"{shown(pool)} is no pool; write it as g5.xlarge:spot:us-east-1a")
    kind, market, zone = [part or ANY for part in parts] + [ANY] * (3 - len(parts))
    limit = _count(instances)
    control = _control()
    control.capacity(kind, limit, market, zone)
    _show_faults(control.faults())
    return 0


@emulator.command()
@click.argument("market", metavar="MARKET")
@click.argument("vcpus", metavar="N")
def quota(market: str, vcpus: str) -> int:
    """Let N vCPUs of a market (on-demand, spot) run at a time; "any" lifts the limit."""
    limit = _count(vcpus)
    control = _control()
    control.quota(limit, market)
    _show_faults(control.faults())
    return 0


def _count(given: str) -> int | None:
    if given == "any":
        return None
    if not given.isdecimal():
        raise UsageError(f"{shown(given)} is no number; write one from 0 up, or any for no limit")
    return int(given)


# ---- instances -----------------------------------------------------------------------------


@emulator.command()
@click.argument("instance")
@click.option("--notice", metavar="TIME", help="Length of the notice (default: 2m, as on AWS).")
@click.option("--no-notice", is_flag=True, help="Reclaim it at once.")
def reclaim(instance: str, notice: str | None, no_notice: bool) -> int:
    """Have AWS take a spot instance back, after its notice."""
    if no_notice and notice is not None:
        raise UsageError("--notice and --no-notice contradict each other; leave one out")
    seconds = 0.0 if no_notice else parse_seconds(notice or "2m")
    control = _control()
    found = _instance(control, instance)
    control.reclaim(found, seconds)
    when = f"in {format_seconds(seconds)}" if seconds else "now"
    click.echo(f"{found} is taken back {when}")
    return 0


@emulator.command()
@click.argument("instance")
def kill(instance: str) -> int:
    """Kill the processes of an instance; EC2 says running, and goes on billing."""
    control = _control()
    found = _instance(control, instance)
    control.kill(found)
    click.echo(f"{found} is dead; EC2 doesn't know")
    return 0


@emulator.command()
@click.argument("instance")
def freeze(instance: str) -> int:
    """Stop the processes of an instance where they stand; EC2 says running."""
    control = _control()
    found = _instance(control, instance)
    control.freeze(found)
    click.echo(f"{found} stands still; `cloudtune emulator thaw {found}` lets it go on")
    return 0


@emulator.command()
@click.argument("instance")
def thaw(instance: str) -> int:
    """Let the processes of a frozen instance go on."""
    control = _control()
    found = _instance(control, instance)
    control.thaw(found)
    click.echo(f"{found} goes on")
    return 0


@emulator.command(context_settings={"ignore_unknown_options": True})
@click.argument("by", metavar="+TIME|-TIME")
def clock(by: str) -> int:
    """Move the emulator's clock, as in +10m: leases, boots and notices come due sooner.

    The machines keep this computer's time, so their clocks and EC2's then disagree.
    """
    sign = -1.0 if by.startswith("-") else 1.0
    moved = sign * parse_seconds(by.removeprefix("-").removeprefix("+"))
    click.echo(f"the emulator's clock is {_signed(_control().move_clock(moved))}")
    return 0


def _signed(seconds: float) -> str:
    if abs(seconds) < 0.005:
        return "right"
    return f"{format_seconds(abs(seconds))} {'fast' if seconds > 0 else 'slow'}"


# ---- finding -------------------------------------------------------------------------------


def _folder() -> Path:
    return home.home() / "emulator"


def _found() -> EmulatorControl | None:
    running = find_emulator(_folder())
    return None if running is None else EmulatorControl(running.access)


def _control() -> EmulatorControl:
    """Return the control of the emulator that runs.

    Raises:
        UsageError: none does.
    """
    found = _found()
    if found is None:
        raise UsageError(
            f"no emulator runs in {_folder()}; a run on the emulated cloud starts it, and so does "
            "`cloudtune emulator start`"
        )
    return found


def _instance(control: EmulatorControl, given: str) -> str:
    """Return the id of the live instance that is meant, by its id or an unambiguous beginning.

    Raises:
        UsageError: there is none, or several; the message names the nearest.
    """
    states: dict[str, str] = {each["id"]: each["state"] for each in control.instances()}
    if states.get(given, "running") not in _LIVE:
        raise UsageError(f"instance {given} is {states[given]} already")
    live = [name for name, state in states.items() if state in _LIVE]
    fitting = [name for name in live if name == given] or [
        name for name in live if given and name.startswith(given)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"{shown(given)} fits {', '.join(fitting)}; write one out")
    alive = f"alive: {', '.join(live)}." if live else "no instance is alive."
    raise UsageError(f"no live instance is called {shown(given)}; {alive}{nearest(given, live)}")
