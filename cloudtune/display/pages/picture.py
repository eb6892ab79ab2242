"""A run as one figure: which trial had which GPU when, and the best metric over time.

Plain SVG, with what the HTML page shows: text stays text, and nothing in it is a script.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

from cloudtune.display.pages.figures import reach
from cloudtune.display.pages.gantt import BOOT, IDLE, LOST, RETURN, START, WAIT, drawn_bars
from cloudtune.display.pages.trials import FAILED, groups
from cloudtune.model.text import count_noun, percent
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cloudtune.display.pages.gantt import GpuBar, InstanceRows
    from cloudtune.runs.report import Report

WIDTH = 800
# Pixels between which time is drawn.
_LEFT, _RIGHT = 104, 784
_TOP = 84
# Pixels that all GPUs may take; one takes no more than `_ROW`.
_GPUS = 300
_ROW = 20
# Pixels between two instances.
_GAP = 8
_METRIC = 170
# Seconds that may lie between two ticks: the least that make `_TICKS` at most.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_TICKS = 8
# With more epochs than that, only the best trials have curves: the file would be too large.
_POINTS = 2500
_BEST = 10
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" fill="{fill}" font-size="11" font-family="ui-sans-serif,system-ui,\
-apple-system,'Segoe UI',Helvetica,Arial,sans-serif">"""
_DEFINITIONS = """\
<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><path d="M0 0V5" stroke="{hatch}" stroke-width="2"/></pattern>\
<clipPath id="plot">{plot}</clipPath></defs>"""
_OPACITY = {START: 0.4, WAIT: 0.22}


@dataclass(frozen=True)
class Theme:
    """The colours of a picture; `shallow` to `deep` are of trials, by how far they came."""

    text: str
    muted: str
    track: str
    hatch: str
    grid: str
    shallow: str
    deep: str
    best: str
    failed: str


LIGHT = Theme(
    text="#1f2328",
    muted="#656d76",
    track="#eef1f4",
    hatch="#ccd3da",
    grid="#e4e8ec",
    shallow="#b9c7d8",
    deep="#1f6fb5",
    best="#d98613",
    failed="#d0453e",
)
DARK = Theme(
    text="#e6edf3",
    muted="#8d96a0",
    track="#1b222b",
    hatch="#39424d",
    grid="#262d36",
    shallow="#4a5a70",
    deep="#58a6ff",
    best="#f0b03f",
    failed="#f0655d",
)


def draw(report: Report, theme: Theme = LIGHT) -> str:
    """Return a run as an SVG."""
    return _Picture(report, theme).svg()


def _mix(one: str, other: str, share: float) -> str:
    """Return a colour that lies between two, at a share of the way."""
    pairs = zip(bytes.fromhex(one[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _number(pixels: float) -> str:
    """Return a coordinate, as short as it may be."""
    return f"{pixels:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class _Picture:
    """A run, and where its parts are drawn."""

    report: Report
    theme: Theme

    # ---- where -------------------------------------------------------------------------------

    @cached_property
    def _drawn(self) -> tuple[list[InstanceRows], list[GpuBar]]:
        return drawn_bars(self.report)

    @cached_property
    def _row(self) -> float:
        """Pixels of a GPU."""
        rows, _ = self._drawn
        count = sum(row.account.offer.gpus for row in rows)
        return max(1.5, min(_ROW, (_GPUS - _GAP * len(rows)) / max(1, count)))

    @cached_property
    def _bottom(self) -> float:
        """Where the GPUs end."""
        rows, _ = self._drawn
        return self._y(sum(row.account.offer.gpus for row in rows)) - _GAP

    @cached_property
    def _metric_top(self) -> float:
        return self._bottom + 36

    @cached_property
    def _metric_bottom(self) -> float:
        return self._metric_top + _METRIC

    @cached_property
    def _end(self) -> float:
        """The last second that is drawn."""
        return reach(self.report.timeline.over_at, self.report.job.limits.deadline)

    def _x(self, seconds: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(max(0.0, seconds), self._end) / self._end

    def _y(self, row: float) -> float:
        """Return where a row of the chart begins: instances are a gap apart."""
        rows, _ = self._drawn
        above = sum(it.base + it.account.offer.gpus <= row for it in rows)
        return _TOP + row * self._row + above * _GAP

    # ---- the colours of trials -----------------------------------------------------------------

    @cached_property
    def _winner(self) -> str:
        best = self.report.policy.best
        return "" if best is None else best.trial

    @cached_property
    def _groups(self) -> dict[str, tuple[str, list[str]]]:
        """The colour and the trials of each line of the legend."""
        grouped, theme = groups(self.report), self.theme
        depth = max(1, sum(name != FAILED for name in grouped) - 1)
        legend = {}
        for number, (name, trials) in enumerate(grouped.items()):
            colour = _mix(theme.shallow, theme.deep, number / depth)
            if name == FAILED:
                colour = theme.failed
            others = [trial.id for trial in trials if trial.id != self._winner]
            if others:
                legend[name] = (colour, others)
        if self._winner:
            legend[f"best: {self._winner}"] = (theme.best, [self._winner])
        return legend

    @cached_property
    def _colours(self) -> dict[str, str]:
        return {name: colour for colour, names in self._groups.values() for name in names}

    # ---- the parts -----------------------------------------------------------------------------

    def svg(self) -> str:
        """Return the whole picture."""
        height = round(self._metric_bottom + 34)
        theme = self.theme
        plot = self._rect(_LEFT, self._metric_top - 4, _RIGHT, self._metric_bottom)
        parts = [
            _SVG.format(width=WIDTH, height=height, fill=theme.text),
            f"<title>{escape(self._headline())}</title>",
            _DEFINITIONS.format(hatch=theme.hatch, plot=plot),
            *self._head(),
            *self._time_axis(),
            *self._instances(),
            *self._trials(),
            *self._curves(),
            *self._deadline(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _headline(self) -> str:
        report = self.report
        best = report.policy.best
        spent = f"{format_dollars(report.dollars)} in {format_seconds(report.seconds)}"
        name = report.job.experiment.name
        return (
            f"{name}: {spent}"
            if best is None
            else (f"{name}: {report.metric} {best.metric:.4g} for {spent}")
        )

    def _head(self) -> Iterator[str]:
        """Give the headline, what the run was, and the legend."""
        report, theme = self.report, self.theme
        limits = report.job.limits
        of = [] if limits.deadline is None else [format_seconds(limits.deadline)]
        of += [] if limits.budget is None else [format_dollars(limits.budget)]
        parts = [
            count_noun(len(report.policy.trials), "trial"),
            count_noun(len(self._drawn[0]), "instance"),
            f"GPUs busy {percent(report.accounting.busy_share)} of the time billed",
            *([f"limits {' and '.join(of)}"] if of else []),
        ]
        headline, words = escape(self._headline()), escape(" · ".join(parts))
        yield f'<text x="16" y="24" font-size="16" font-weight="600">{headline}</text>'
        yield f'<text x="16" y="43" font-size="12" fill="{theme.muted}">{words}</text>'
        legend = [(colour, name) for name, (colour, _) in self._groups.items()]
        x = 16.0
        for colour, name in (*legend, ("url(#hatch)", "instance boots")):
            yield f'<rect x="{_number(x)}" y="57" width="10" height="10" rx="2" fill="{colour}"/>'
            yield f'<text x="{_number(x + 15)}" y="66" fill="{theme.muted}">{escape(name)}</text>'
            x += 15 + 5.9 * len(name) + 16

    def _time_axis(self) -> Iterator[str]:
        theme = self.theme
        days = 86400 * math.ceil(self._end / 86400 / 8)
        step = next((step for step in _STEPS if self._end / step <= _TICKS), days)
        for number in range(int(self._end // step) + 1):
            x = _number(self._x(number * step))
            text = format_seconds(number * step) if number else "0"
            yield f'<path d="M{x} {_TOP}V{_number(self._metric_bottom)}" stroke="{theme.grid}"/>'
            yield (
                f'<text x="{x}" y="{_number(self._metric_bottom + 18)}" text-anchor="middle" '
                f'fill="{theme.muted}">{text}</text>'
            )

    @staticmethod
    def _rect(left: float, top: float, right: float, bottom: float, more: str = "") -> str:
        return (
            f'<rect x="{_number(left)}" y="{_number(top)}" width="{_number(right - left)}" '
            f'height="{_number(bottom - top)}"{more}/>'
        )

    def _box(self, bar: GpuBar, gap: float) -> tuple[float, float, float, float]:
        """Return the left, top, right and bottom of a bar, `gap` pixels of its row left free."""
        top = self._y(bar.low)
        return self._x(bar.begin), top + gap, self._x(bar.end), top + bar.gpus * self._row - gap

    def _instances(self) -> Iterator[str]:
        """Give the name of each instance, and its GPUs from when it bills until it doesn't."""
        rows, bars = self._drawn
        fills = {BOOT: "url(#hatch)", IDLE: self.theme.track, RETURN: "url(#hatch)"}
        for bar in bars:
            if bar.kind in fills:
                yield self._rect(*self._box(bar, 0.5), f' fill="{fills[bar.kind]}"')
        for row in rows:
            offer = row.account.offer
            middle = self._y(row.base) + offer.gpus * self._row / 2
            if offer.gpus * self._row >= 9:  # else names would lie over each other
                kind = offer.instance_type.name
                spot = " spot" if offer.spot else ""
                yield (
                    f'<text x="16" y="{_number(middle + 3.5)}" fill="{self.theme.muted}">'
                    f"{escape(kind + spot)}</text>"
                )

    def _trials(self) -> Iterator[str]:
        """Give the GPUs of each trial: bright where it trained, pale where it waited."""
        _, bars = self._drawn
        gap = 1.0 if self._row > 5 else 0.2
        for name in self.report.policy.trials:
            own = [bar for bar in bars if bar.trial == name]
            paths = []
            for kind in {bar.kind: 0 for bar in own}:
                boxes = [self._box(bar, gap) for bar in own if bar.kind == kind]
                fill = f' fill="{self.theme.failed}"' if kind == LOST else ""
                pale = f' fill-opacity="{_OPACITY[kind]}"' if kind in _OPACITY else ""
                paths.append(f'<path d="{_boxes(boxes)}"{fill}{pale}/>')
            drawn = "".join(paths)
            yield f'<g fill="{self._colours[name]}"><title>{escape(name)}</title>{drawn}</g>'
        if self._row >= 9:
            yield from self._names(bar for bar in bars if bar.trial)

    def _names(self, bars: Iterable[GpuBar]) -> Iterator[str]:
        """Write the names of trials where they have room."""
        for bar in bars:
            left, top, right, bottom = self._box(bar, 0)
            if bar.kind in {START, WAIT, LOST} or right - left < 6 * len(bar.trial) + 4:
                continue
            yield (
                f'<text x="{_number((left + right) / 2)}" y="{_number((top + bottom) / 2 + 3.2)}" '
                'text-anchor="middle" font-size="9" '
                f'fill="{_readable(self._colours[bar.trial])}">{escape(bar.trial)}</text>'
            )

    def _curves(self) -> Iterator[str]:
        """Give the metric of each trial, and the best so far, over time."""
        report, theme = self.report, self.theme
        curves: dict[str, list[tuple[float, float]]] = {}
        for name, epochs in report.epochs_by_trial.items():
            reports = [epoch.report for epoch in epochs]
            curves[name] = [(it.at, it.metrics.get(report.metric, math.nan)) for it in reports]
        path = [(e.report.at, e.report.metrics[report.metric]) for e in report.improvements]
        values = sorted(
            value
            for points in (*curves.values(), path)
            for _, value in points
            if math.isfinite(value)
        )
        if not values or not path:
            return
        # What is far off, as the first epochs of a bad rate are, would make a line of all else.
        low, high = values[len(values) // 50], values[-1 - len(values) // 50]
        for _, value in path[-1:]:
            low, high = min(low, value), max(high, value)
        pad = (high - low or abs(high) or 1.0) * 0.06
        low, high = low - pad, high + pad

        def y(value: float) -> float:
            share = (min(max(value, low - pad), high + pad) - low) / (high - low)
            return self._metric_bottom - share * _METRIC

        step = _nice((high - low) / 5)
        for number in range(math.ceil(low / step), math.floor(high / step) + 1):
            tick = y(number * step)
            yield f'<path d="M{_LEFT} {_number(tick)}H{_RIGHT}" stroke="{theme.grid}"/>'
            yield (
                f'<text x="{_LEFT - 8}" y="{_number(tick + 3.5)}" text-anchor="end" '
                f'fill="{theme.muted}">{number * step:.6g}</text>'
            )
        yield (
            f'<text x="16" y="{_number(self._metric_top - 12)}" font-weight="600">'
            f"{escape(report.metric)}</text>"
        )
        yield '<g clip-path="url(#plot)" fill="none" stroke-linejoin="round">'
        yield from self._trial_curves(curves, y)
        at, value = path[-1]
        corners = [(self._x(path[0][0]), y(path[0][1]))]
        for later, metric in (*path[1:], (max(at, report.timeline.over_at), value)):
            corners += [(self._x(later), corners[-1][1]), (self._x(later), y(metric))]
        yield f'<path d="{_line(corners)}" stroke="{theme.best}" stroke-width="2.6"/></g>'
        yield (
            f'<circle cx="{_number(self._x(at))}" cy="{_number(y(value))}" r="4" '
            f'fill="{theme.best}"/>'
        )
        x = min(self._x(at), _RIGHT - 8)  # its text has room to the right
        yield (
            f'<text x="{_number(x)}" y="{_number(y(value) - 9)}" text-anchor="middle" '
            f'font-weight="600" fill="{theme.best}">{value:.4g}</text>'
        )

    def _trial_curves(
        self, curves: Mapping[str, Sequence[tuple[float, float]]], y: Callable[[float], float]
    ) -> Iterator[str]:
        """Give the metric of each trial, or of the best ones if there are many."""
        names = list(curves)
        if sum(map(len, curves.values())) > _POINTS:
            best = self.report.best_first()[:_BEST]
            names = [trial.id for trial in best if trial.id in curves]
        for name in names:
            placed = [(self._x(at), y(value)) for at, value in curves[name] if math.isfinite(value)]
            if placed:
                colour = self._colours[name]
                yield f'<path d="{_line(placed)}" stroke="{colour}" stroke-width="1.2"/>'

    def _deadline(self) -> Iterator[str]:
        deadline = self.report.job.limits.deadline
        if deadline is None or deadline > self._end:
            return
        x, theme = _number(self._x(deadline)), self.theme
        yield (
            f'<path d="M{x} {_TOP}V{_number(self._metric_bottom)}" stroke="{theme.failed}" '
            'stroke-width="1.2" stroke-dasharray="4 3"/>'
        )
        yield (
            f'<text x="{_number(float(x) - 5)}" y="{_number(self._metric_bottom - 6)}" '
            f'text-anchor="end" fill="{theme.failed}">deadline</text>'
        )


def _boxes(boxes: Iterable[tuple[float, float, float, float]]) -> str:
    """Return rectangles as one path."""
    return "".join(
        f"M{_number(left)} {_number(top)}H{_number(right)}V{_number(bottom)}H{_number(left)}Z"
        for left, top, right, bottom in boxes
    )


def _line(points: Iterable[tuple[float, float]]) -> str:
    """Return points as a path of straight lines."""
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def _nice(step: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is no smaller than a step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _readable(colour: str) -> str:
    """Return black or white, whichever can be read on a colour."""
    red, green, blue = bytes.fromhex(colour[1:])
    return "#000" if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "#fff"
