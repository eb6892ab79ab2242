"""The rows of one configuration, put in order: which epochs they are of, and what is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.simulation.table_file import TableFile

_DENSE = 0.5
"""Steps are epochs with gaps where at least this share of them is there, of any configuration."""


class Row(NamedTuple):
    """One evaluation, and its place in the file; None where a cell is empty or nan."""

    place: int
    step: float
    value: float | None
    seconds: float | None
    elapsed: bool


@dataclass(frozen=True)
class Numbering:
    """How steps become epochs: epoch k is step k * `each`; with None, a row's place in order."""

    each: int | None = 1

    def epochs(self, steps: Sequence[float]) -> list[int]:
        """Return the epoch of each step, ascending."""
        if self.each is None:
            return list(range(1, len(steps) + 1))
        return [round(step / self.each) for step in steps]


@dataclass
class Drawing:
    """A curve as far as its own rows tell; None for what isn't known from them.

    `last` is the last epoch that there is a row of; `diverged` whether the values end in a nan,
    and `cut` whether nothing came after that. `again`, `before`, `gaps` and `after_nan` count what
    was left out or isn't there.
    """

    values: list[float | None] = field(default_factory=list)
    seconds: list[float | None] = field(default_factory=list)
    last: int = 0
    diverged: bool = False
    cut: bool = False
    again: int = 0
    before: int = 0
    gaps: int = 0
    after_nan: int = 0


def rows_of(
    file: TableFile, *, config: str, epoch: str, value: str, seconds: str, elapsed: bool
) -> dict[str, list[Row]]:
    """Return the rows of each configuration.

    Raises:
        UsageError: an epoch that is none, or seconds that can't be, with the line.
    """
    steps, values = file.numbers(epoch), file.numbers(value)
    times = file.numbers(seconds) if seconds else [None] * file.rows
    found: dict[str, list[Row]] = {}
    for place, name in enumerate(file.names(config)):
        step, time = steps[place], _finite(times[place])
        if step is None or not math.isfinite(step) or step < 0:
            raise UsageError(f"{file.where(place)}: {epoch} is {_shown(step)}; write 1, 2, 3 …")
        if time is not None and (time < 0 or (time == 0 and not elapsed)):
            raise UsageError(
                f"{file.where(place)}: {seconds} is {time:g}; an epoch takes more than 0 seconds"
            )
        row = Row(place, step, _finite(values[place]), time, elapsed)
        found.setdefault(name, []).append(row)
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _shown(step: float | None) -> str:
    return "empty" if step is None else f"{step:g}"


def numbered(rows: Mapping[str, Sequence[Row]], notices: list[str]) -> Numbering:
    """Return how the steps of a table become epochs.

    As they are, if they are 1, 2, 3 … by and large; else by their common distance; else in the
    order of each configuration's rows.
    """
    steps = {row.step for found in rows.values() for row in found if row.step > 0}
    if all(step.is_integer() for step in steps) and steps:
        each = reduce(math.gcd, (int(step) for step in steps))
        if len(steps) >= _DENSE * max(steps) / each:
            if each > 1:
                notices.append(f"the steps are {each} apart: epoch 1 is step {each}, and so on")
            return Numbering(each)
    notices.append(
        "the steps are not 1, 2, 3 …: the first evaluation of a configuration counts as epoch 1, "
        "and so on"
    )
    return Numbering(None)


def draw(
    file: TableFile, name: str, rows: Iterable[Row], numbering: Numbering, metric: str
) -> Drawing:
    """Return the curve of one configuration; without a row it diverged in its first epoch.

    Raises:
        UsageError: rows contradict each other, or accumulated seconds don't grow, with the line.
    """
    drawing = Drawing()
    ordered = _unrepeated(file, name, sorted(rows, key=lambda row: row.step), metric, drawing)
    begun = [row for row in ordered if row.step > 0]
    drawing.before = len(ordered) - len(begun)
    zero = ordered[0].seconds if drawing.before and ordered[0].elapsed else None
    at = (0, zero or 0.0)  # the last epoch with known accumulated seconds, and these
    for epoch, row in zip(numbering.epochs([row.step for row in begun]), begun, strict=True):
        drawing.last = epoch
        if drawing.diverged:
            drawing.after_nan += row.value is not None
            drawing.cut = False
            continue
        _hold(drawing, epoch - 1)
        drawing.values.append(math.nan if row.value is None else row.value)
        drawing.seconds.append(None if row.elapsed else row.seconds)
        if row.elapsed and row.seconds is not None:
            at = _share_out(file, row, epoch, at, drawing)
        drawing.diverged = drawing.cut = row.value is None
    if not begun:
        drawing.values, drawing.seconds = [math.nan], [None]
        drawing.diverged = drawing.cut = True
    return drawing


def _unrepeated(
    file: TableFile, name: str, rows: Sequence[Row], metric: str, drawing: Drawing
) -> list[Row]:
    kept: list[Row] = []
    for row in rows:
        if not kept or kept[-1].step != row.step:
            kept.append(row)
            continue
        one, other = sorted((kept[-1], row))
        if (one.value, one.seconds) != (other.value, other.seconds):
            raise UsageError(
                f"{file.where(other.place)}: step {row.step:g} of configuration {name} has "
                f"{_cells(other, metric)}, but {_cells(one, metric)} in {file.where(one.place)}; "
                "keep one of them"
            )
        drawing.again += 1
    return kept


def _cells(row: Row, metric: str) -> str:
    value = "nan" if row.value is None else f"{row.value:g}"
    seconds = "" if row.seconds is None else f" after {row.seconds:g} s"
    return f"{metric} {value}{seconds}"


def _hold(drawing: Drawing, epochs: int) -> None:
    """Let the metric stay as it was in epochs that nobody evaluated."""
    while len(drawing.values) < epochs:
        drawing.values.append(drawing.values[-1] if drawing.values else None)
        drawing.seconds.append(None)
        drawing.gaps += 1


def _share_out(
    file: TableFile, row: Row, epoch: int, at: tuple[int, float], drawing: Drawing
) -> tuple[int, float]:
    """Give the epochs since the last known time equal parts of what has passed since."""
    assert row.seconds is not None
    before, elapsed = at
    if row.seconds <= elapsed:
        raise UsageError(
            f"{file.where(row.place)}: {row.seconds:g} s since training began, after {elapsed:g} s "
            "in an earlier epoch; accumulated seconds must grow"
        )
    each = (row.seconds - elapsed) / (epoch - before)
    drawing.seconds[before:epoch] = [each] * (epoch - before)
    return epoch, row.seconds
