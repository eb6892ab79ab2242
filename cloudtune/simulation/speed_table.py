"""How training scales, from a table: `--profile FILE|NAME`.

The formats are documented in docs/simulate.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError, allowed_names, shown
from cloudtune.profiles import bundled, store
from cloudtune.simulation.table_file import PARQUET, TEXT, TableFile, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.catalog import InstanceType
    from cloudtune.scaling import ScalingProfile
    from cloudtune.trial import Width

WIDTH = ("width", "num_gpus", "gpus")
SPEED = ("speedup", "speed", "relative_speed")
_PACKED = 0.01
"""Widths below 1 are 1/c, within so much: 0.33 is a third."""


@dataclass(frozen=True)
class Speed:
    """How fast a trial of this width trains; of any instance type, or number of GPUs, where None.

    `place` is where it was read.
    """

    width: Width
    speed: float
    instance_type: str | None = None
    gpus_per_node: int | None = None
    place: str = ""


@dataclass(frozen=True)
class Scaling:
    """Relative speeds by width: 1 is one GPU of the (first) instance type.

    `start` and `resize` are seconds that were measured along with them, None where they weren't.
    """

    speeds: dict[Width, float]
    start: float | None = None
    resize: float | None = None


# ---- profiles ------------------------------------------------------------------------------------


def scalings(given: str, machines: Sequence[InstanceType]) -> list[Scaling]:
    """Return how training scales on each of the instance types: by a file, or a bundled profile.

    Raises:
        UsageError: neither, a mistake in the file (with its line), no width 1, or nothing is known
            of one of the types.
    """
    if not is_file(given):
        return _bundled(given, machines)
    path = Path(given)
    if path.suffix.lower() == ".json":
        measured = _measured(path)
        if measured is not None:
            return _of_profiles(given, measured, machines)
        return _of_speeds(str(path), _json_speeds(path), machines)
    return _of_speeds(
        str(path), _table_speeds(read_table(path, texts=("instance_type",))), machines
    )


def is_file(given: str) -> bool:
    """Whether a name means a file, and no profile or instance type."""
    path = Path(given)
    return path.suffix.lower() in {*TEXT, *PARQUET, ".json"} or "/" in given or path.is_file()


def _bundled(name: str, machines: Sequence[InstanceType]) -> list[Scaling]:
    if name not in bundled.names():
        raise UsageError(
            f"--profile: no file and no bundled profile is called {shown(name)}; "
            f"{allowed_names(name, bundled.names())}"
        )
    figures = bundled.published(name)
    reference = figures.profile(figures.machine, bundled.ASSUMED)
    return _scaled(name, reference, [bundled.load(name, machine) for machine in machines])


def _measured(path: Path) -> list[ScalingProfile] | None:
    """Return the profiles of a file of `cloudtune profile`; None where it is another."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    ours = isinstance(data, dict) and "cloudtune_profile" in data
    return store.read(path) if ours else None


def _of_profiles(
    name: str, profiles: Sequence[ScalingProfile], machines: Sequence[InstanceType]
) -> list[Scaling]:
    by_type = {profile.instance_type: profile for profile in profiles}
    for machine in machines:
        if machine.name not in by_type:
            raise UsageError(_nothing_known(name, machine.name, tuple(by_type)))
    return _scaled(name, profiles[0], [by_type[machine.name] for machine in machines])


def _scaled(
    name: str, reference: ScalingProfile, profiles: Sequence[ScalingProfile]
) -> list[Scaling]:
    if 1.0 not in reference.widths:
        raise UsageError(_no_width_1(name, reference.instance_type))
    one = reference.epoch_seconds(1.0)
    return [
        Scaling(
            {width: one / profile.epoch_seconds(width) for width in profile.widths},
            profile.start.mean,
            profile.resize.mean,
        )
        for profile in profiles
    ]


def _no_width_1(name: str, of: str = "") -> str:
    whose = f" for {of}" if of else ""
    return (
        f"{name}: no row has width 1{whose}; speeds are relative to one GPU, so add a row of "
        "width 1 (speed 1)"
    )


def _nothing_known(name: str, instance_type: str, known: Sequence[str]) -> str:
    return (
        f"{name}: says nothing of {shown(instance_type)}, which --offers has; it has "
        f"{', '.join(known)}. Add rows for it, or leave its offers out"
    )


# ---- … of relative speeds


def _table_speeds(file: TableFile) -> list[Speed]:
    width = file.need(file.first(WIDTH) or WIDTH[0], "a column width")
    speed = file.need(file.first(SPEED) or SPEED[0], "a column speedup")
    types = file.values("instance_type") if file.has("instance_type") else [None] * file.rows
    nodes = file.numbers("gpus_per_node") if file.has("gpus_per_node") else [None] * file.rows
    columns = zip(file.numbers(width), file.numbers(speed), types, nodes, strict=True)
    return [_speed(file.where(row), *cells) for row, cells in enumerate(columns)]


def _json_speeds(path: Path) -> list[Speed]:
    """Return the speeds of `{"1": 1, "2": 1.9}`, or of a list of objects as the rows of a table."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(data, dict):
        data = [{"width": width, "speedup": speed} for width, speed in data.items()]
    if not isinstance(data, list) or not data or not all(isinstance(one, dict) for one in data):
        raise UsageError(
            f'{path}: write {{"1": 1, "2": 1.9}}, or a list of objects with width and speedup'
        )
    return [_json_speed(f"{path}: entry {number}", one) for number, one in enumerate(data, start=1)]


def _json_speed(place: str, one: dict[str, Any]) -> Speed:
    width = next((one[name] for name in WIDTH if name in one), None)
    speed = next((one[name] for name in SPEED if name in one), None)
    found = [_number(place, value) for value in (width, speed, one.get("gpus_per_node"))]
    return _speed(place, found[0], found[1], one.get("instance_type"), found[2])


def _number(place: str, value: object) -> float | None:
    if value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UsageError(f"{place}: {shown(value)} is not a number") from None


def _speed(
    place: str,
    width: float | None,
    speed: float | None,
    instance_type: object,
    gpus_per_node: float | None,
) -> Speed:
    for name, value in (("width", width), ("speedup", speed)):
        if value is None or not (math.isfinite(value) and value > 0):
            given = "missing" if value is None else f"{value:g}"
            raise UsageError(f"{place}: {name} is {given}; write a number above 0")
    assert width is not None
    assert speed is not None
    exact = round(width) if width >= 1 else 1 / round(1 / width)
    if abs(exact - width) > _PACKED:
        raise UsageError(
            f"{place}: width {width:g} can't be; write whole GPUs, or 0.5, 0.33 … for two, three "
            "… trials on one"
        )
    nodes = None if gpus_per_node is None else round(gpus_per_node)
    return Speed(float(exact), speed, str(instance_type) if instance_type else None, nodes, place)


def _of_speeds(
    name: str, speeds: Sequence[Speed], machines: Sequence[InstanceType]
) -> list[Scaling]:
    """Return the rows of each instance type, relative to the first type's width 1."""
    known = tuple(dict.fromkeys(each.instance_type for each in speeds))
    for one in known:
        if not any(each.width == 1.0 and each.instance_type == one for each in speeds):
            raise UsageError(_no_width_1(name, one or ""))
    unit = next(each.speed for each in speeds if each.width == 1.0)
    return [
        Scaling({width: speed / unit for width, speed in _fitting(name, speeds, machine)})
        for machine in machines
    ]


def _fitting(
    name: str, speeds: Sequence[Speed], machine: InstanceType
) -> Iterator[tuple[Width, float]]:
    """Yield the widths and speeds of an instance type, ascending.

    Raises:
        UsageError: none is of it, none is of so many GPUs a node, or two contradict each other.
    """
    own = [each for each in speeds if each.instance_type in {None, machine.name}]
    if not own:
        known = tuple(dict.fromkeys(each.instance_type or "" for each in speeds))
        raise UsageError(_nothing_known(name, machine.name, known))
    here = [each for each in own if _holds(each, machine)]
    found: dict[Width, Speed] = {}
    for each in sorted(here, key=lambda e: (e.width, e.gpus_per_node != machine.gpus)):
        held = found.setdefault(each.width, each)
        same_kind = held.gpus_per_node == each.gpus_per_node
        if same_kind and not math.isclose(held.speed, each.speed):
            raise UsageError(
                f"{each.place}: width {each.width:g} has speed {each.speed:g}, but "
                f"{held.speed:g} in {held.place}; keep one of them"
            )
    if 1.0 not in found:
        raise UsageError(_no_width_1(name, f"{machine.name} ({machine.gpus} GPUs a node)"))
    return ((width, each.speed) for width, each in sorted(found.items()))


def _holds(each: Speed, machine: InstanceType) -> bool:
    """Whether a speed is one of this machine too: nothing is guessed of several nodes."""
    nodes = each.gpus_per_node
    return nodes in {None, machine.gpus} or each.width <= min(nodes or 0, machine.gpus)
