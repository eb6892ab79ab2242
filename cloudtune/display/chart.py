"""The front of time and cost as a small chart of plain characters.

`axis` and its ticks serve the drawn plot as well, so that both show the same scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.plans import Estimate, Limits

CHOICE, OTHER, DEADLINE, BUDGET, BROKEN = "@", "o", ":", "-", "."

_DECADES = tuple(n * 10.0**power for power in range(-4, 10) for n in (1, 2, 5))
_DAYS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TIME_STEPS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600.0 * hours for hours in (1, 2, 3, 6, 12)),
    *(86400.0 * days for days in _DAYS),
)
DOLLAR_STEPS = _DECADES

_PADDING = 0.05
# Beyond this ratio a linear scale squeezes most of a front into a corner.
_WIDE, _ENDLESS = 8.0, 1e9
# A limit this share of the range away from all plans would squeeze them for nothing.
_NEAR = 0.6


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, linear or logarithmic, with marks at round values."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Return where a value lies, from 0 at the low end to 1 at the high end."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return (self._scaled(value) - low) / (high - low)

    def cell(self, value: float, cells: int) -> int:
        """Return the cell of 0 … `cells` - 1 that a value falls into; -1 or `cells` beyond them."""
        if not self.holds(value):
            return -1 if value < self.low else cells
        return round(self.share(value) * (cells - 1))

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return self.low <= value <= self.high

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value


def axis(
    values: Sequence[float], limit: float | None, steps: Sequence[float], max_ticks: int
) -> Axis:
    """Return a scale that holds the values, and the limit where it is near them."""
    low, high = min(values), max(values)
    log = low > 0 and _WIDE < high / low < _ENDLESS
    scaled, back = (math.log, math.exp) if log else (float, float)
    begin, end = scaled(low), scaled(high)
    span = end - begin or abs(end) * 0.2 or 1.0
    if limit is not None and (limit > 0 or not log):
        near = begin - _NEAR * span <= scaled(limit) <= end + _NEAR * span
        begin, end = (min(begin, scaled(limit)), max(end, scaled(limit))) if near else (begin, end)
    pad = _PADDING * span if end > begin else span / 2
    low, high = back(begin - pad), back(end + pad)
    low = max(0.0, low)
    return Axis(low, high, log, _ticks(low, high, steps, max_ticks, log=log))


def _ticks(
    low: float, high: float, steps: Sequence[float], most: int, *, log: bool
) -> tuple[float, ...]:
    """Return at most so many round values; the two ends where there is no round one."""
    if log:
        inside = [step for step in steps if low <= step <= high]
        found = inside[:: math.ceil(len(inside) / most) or 1]
    else:
        rows = (_multiples(low, high, step) for step in steps if (high - low) / step < most + 1)
        found = next((row for row in rows if len(row) <= most), [])
    return tuple(found) if len(found) > 1 else (low, high)


def _multiples(low: float, high: float, step: float) -> list[float]:
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True)
class _Canvas:
    """The field of the chart: columns are time, rows are cost, the dearest on top."""

    times: Axis
    costs: Axis
    limits: Limits
    width: int
    height: int

    def rows(self, front: Sequence[Estimate], chosen: Estimate) -> list[str]:
        cells = [[self._ground(x, y) for x in range(self.width)] for y in range(self.height)]
        for mark, points in ((OTHER, front), (CHOICE, [chosen])):
            for point in points:
                cells[self.row(point.dollars)][self.column(point.seconds)] = mark
        return ["".join(row) for row in cells]

    def column(self, seconds: float) -> int:
        return self.times.cell(seconds, self.width)

    def row(self, dollars: float) -> int:
        return self.height - 1 - self.costs.cell(dollars, self.height)

    def _ground(self, x: int, y: int) -> str:
        deadline, budget = self.limits.deadline, self.limits.budget
        late = deadline is not None and x > self.column(deadline)
        dear = budget is not None and y < self.row(budget)
        if late or dear:
            return BROKEN if (x + 2 * y) % 4 == 0 else " "
        if deadline is not None and x == self.column(deadline):
            return DEADLINE
        return BUDGET if budget is not None and y == self.row(budget) else " "


def chart(
    front: Sequence[Estimate],
    chosen: Estimate,
    limits: Limits,
    *,
    width: int = 78,
    height: int = 9,
) -> list[str]:
    """Return the lines of the chart: a title, `height` rows, two of axis, one or two of legend.

    Time goes to the right and cost up; `width` is that of the field alone. The choice is marked
    on top of everything else.
    """
    points = [*front, chosen]
    times = axis([p.seconds for p in points], limits.deadline, TIME_STEPS, 6)
    costs = axis([p.dollars for p in points], limits.budget, DOLLAR_STEPS, 4)
    canvas = _Canvas(times, costs, limits, width, height)
    labels = {canvas.row(tick): format_dollars(tick) for tick in costs.ticks}
    margin = max(map(len, labels.values()))
    rows = [
        f"{labels.get(number, ''):>{margin}} {'+' if number in labels else '|'}{row}".rstrip()
        for number, row in enumerate(canvas.rows(front, chosen))
    ]
    return [
        _title(times, costs),
        *rows,
        " " * margin + " +" + _rule(canvas),
        " " * (margin + 2) + _tick_labels(canvas),
        *_legend(times, costs, limits, others=any(p != chosen for p in front)),
    ]


def _title(times: Axis, costs: Axis) -> str:
    scales = [name for name, one in (("time", times), ("cost", costs)) if one.log]
    return "Cost against time" + (f" ({' and '.join(scales)} on a log scale)" if scales else "")


def _rule(canvas: _Canvas) -> str:
    marks = {canvas.column(tick) for tick in canvas.times.ticks}
    return "".join("+" if x in marks else "-" for x in range(canvas.width))


def _tick_labels(canvas: _Canvas) -> str:
    """Return the labels of the time axis, each under its mark where there is room for it."""
    line = ""
    for tick in canvas.times.ticks:
        label = format_seconds(tick)
        begin = max(0, canvas.column(tick) - len(label) // 2)
        begin = min(begin, canvas.width - len(label))
        if not line or begin > len(line):
            line = f"{line:<{begin}}{label}"
    return line


def _legend(times: Axis, costs: Axis, limits: Limits, *, others: bool) -> list[str]:
    """Return what the marks mean: a line for the plans, and one for the limits if there are any."""
    lines = [f"{CHOICE} this plan" + (f"  {OTHER} others on the front" if others else "")]
    parts = []
    if limits.deadline is not None:
        name = f"deadline {format_seconds(limits.deadline)}"
        parts.append(_limit(times, limits.deadline, f"{DEADLINE} {name}", f"{name}: off the right"))
    if limits.budget is not None:
        name = f"budget {format_dollars(limits.budget)}"
        parts.append(_limit(costs, limits.budget, f"{BUDGET} {name}", f"{name}: off the top"))
    return [*lines, "  ".join([*parts, f"{BROKEN} over a limit"])] if parts else lines


def _limit(scale: Axis, limit: float, drawn: str, beyond: str) -> str:
    """Return how a limit is told: as drawn, or as out of the chart, which it breaks or not."""
    if scale.holds(limit):
        return drawn
    return beyond if limit > scale.high else f"{beyond.partition(':')[0]}: less than all of these"
