"""How training scales, from a table: `--profile FILE|NAME`.

The formats are documented in benchmarks/compare/README.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from benchmarks.compare.tables import PARQUET, TEXT, Table, read_table
from cloudtune.errors import UsageError, allowed_names, quote
from cloudtune.profiles import bundled, store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.model.catalog import InstanceType
    from cloudtune.model.scaling import ScalingProfile
    from cloudtune.model.trial import Width

WIDTH = ("width", "num_gpus", "gpus")
SPEED = ("speedup", "speed", "relative_speed")
# Widths below 1 are 1/c, within this much: 0.33 is a third.
_PACKED = 0.01


@dataclass(frozen=True)
class Scaling:
    """Relative speeds by width: 1 is one GPU of the (first) instance type.

    `start` and `resize` are seconds that were measured along with them, None where they weren't.
    """

    speeds: dict[Width, float]
    start: float | None = None
    resize: float | None = None


def scalings(given: str, machines: Sequence[InstanceType]) -> list[Scaling]:
    """Return how training scales on each of the instance types: by a file, or a bundled profile.

    Raises:
        UsageError: neither, a mistake in the file, no width 1, or nothing is known of a type.
    """
    if not is_file(given):
        return _bundled(given, machines)
    path = Path(given)
    if path.suffix.lower() != ".json":
        return _of_speeds(read_table(path, texts=("instance_type",)), machines)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    if isinstance(data, dict) and "cloudtune_profile" in data:
        profiles = store.read(path)
        by_type = {profile.instance_type: profile for profile in profiles}
        for machine in machines:
            if machine.name not in by_type:
                raise UsageError(_nothing_known(given, machine.name, by_type))
        return _scaled(given, profiles[0], [by_type[machine.name] for machine in machines])
    if isinstance(data, dict):
        data = [{"width": width, "speedup": speed} for width, speed in data.items()]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise UsageError(f'{path}: write {{"1": 1, "2": 1.9}}, or a list of objects')
    return _of_speeds(Table(path, pd.DataFrame(data)), machines)


def is_file(given: str) -> bool:
    """Whether a name means a file, and no profile or instance type."""
    path = Path(given)
    return path.suffix.lower() in {*TEXT, *PARQUET, ".json"} or "/" in given or path.is_file()


def _bundled(name: str, machines: Sequence[InstanceType]) -> list[Scaling]:
    if name not in bundled.names():
        raise UsageError(
            f"--profile: no file and no bundled profile is called {quote(name)}; "
            f"{allowed_names(name, bundled.names())}"
        )
    figures = bundled.published_figures(name)
    reference = figures.profile(figures.machine)
    return _scaled(name, reference, [bundled.load(name, machine) for machine in machines])


def _scaled(
    name: str, reference: ScalingProfile, profiles: Sequence[ScalingProfile]
) -> list[Scaling]:
    if 1.0 not in reference.widths:
        raise UsageError(_no_width_1(name))
    one = reference.epoch_seconds(1.0)
    return [
        Scaling(
            {width: one / profile.epoch_seconds(width) for width in profile.widths},
            profile.start.mean,
            profile.resize.mean,
        )
        for profile in profiles
    ]


def _no_width_1(name: str) -> str:
    return f"{name}: no row has width 1, to which speeds are relative; add one (speed 1)"


def _nothing_known(name: str, instance_type: str, types: Iterable[str]) -> str:
    return (
        f"{name}: says nothing of {quote(instance_type)}, which --offers has; it has "
        f"{', '.join(types)}. Add rows for it, or leave its offers out"
    )


def _of_speeds(table: Table, machines: Sequence[InstanceType]) -> list[Scaling]:
    """Return the rows of each instance type, relative to the first type's width 1."""
    width = table.need(table.first(WIDTH) or WIDTH[0], "a column width")
    speed = table.need(table.first(SPEED) or SPEED[0], "a column speedup")
    count = len(table.frame)
    types = table.texts("instance_type") if table.has("instance_type") else [""] * count
    nodes = table.numbers("gpus_per_node") if table.has("gpus_per_node") else math.nan
    rows = pd.DataFrame(
        {"width": table.numbers(width), "speed": table.numbers(speed), "type": types, "node": nodes}
    )
    exact = rows["width"].round().where(rows["width"] >= 1, 1 / (1 / rows["width"]).round())
    positive = (rows["width"] > 0) & (rows["speed"] > 0) & (rows["speed"] < math.inf)
    for wrong, message in (
        (~positive, f"{width} and {speed} must be numbers above 0"),
        (
            ~((exact - rows["width"]).abs() <= _PACKED),
            f"{width} must be whole GPUs, or 0.5, 0.33 … for two, three … trials on one",
        ),
    ):
        table.refuse(wrong, message)
    rows["width"] = exact
    if set(rows["type"]) != set(rows.loc[rows["width"] == 1.0, "type"]):
        raise UsageError(_no_width_1(str(table.path)))
    unit = float(rows.loc[rows["width"] == 1.0, "speed"].iloc[0])
    return [Scaling(_fitting(table, rows, unit, machine)) for machine in machines]


def _fitting(
    table: Table, rows: pd.DataFrame, unit: float, machine: InstanceType
) -> dict[Width, float]:
    """Return the speeds of an instance type by their widths, ascending.

    Raises:
        UsageError: there are none, none of this many GPUs a node, or two contradict each other.
    """
    own = rows[rows["type"].isin(["", machine.name])]
    if own.empty:
        types = list(dict.fromkeys(rows["type"]))
        raise UsageError(_nothing_known(str(table.path), machine.name, types))
    # Nothing is guessed of several nodes: a width counts where it fits into one of either kind.
    here = own["node"].isna() | (own["node"] == machine.gpus)
    fits = own["width"] <= own["node"].clip(upper=machine.gpus)
    usable = own[here | fits].assign(other=own["node"] != machine.gpus)
    ordered = usable.sort_values(["width", "other"], kind="stable")
    chosen = ordered.drop_duplicates("width")
    if 1.0 not in set(chosen["width"]):
        raise UsageError(_no_width_1(f"{table.path}, {machine.name} ({machine.gpus} GPUs a node)"))
    alike = ordered[["width", "node", "speed"]].drop_duplicates()
    twice = alike.duplicated(["width", "node"])
    table.refuse(twice, "its width has another speed in another row; keep one of them")
    speeds = zip(chosen["width"].tolist(), chosen["speed"].tolist(), strict=True)
    return {width: speed / unit for width, speed in speeds}
