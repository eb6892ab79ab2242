"""A chart of plain characters: which trial trained on which GPU when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudtune.model.text import offer_text
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.engine.record.accounting import InstanceAccount
    from cloudtune.engine.record.timeline import SessionSpan
    from cloudtune.runs.report import Report

_TIME_STEPS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600.0 * hours for hours in (1, 2, 3, 6, 12)),
    *(86400.0 * days for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)

BOOT = "~"
TRAINS = "="
WINNER = "#"
IDLE = "."
BEGINS = "|"
_MARKS = {
    BOOT: f"{BOOT} boots",
    TRAINS: f"{TRAINS} trains (with the number of its trial)",
    WINNER: f"{WINNER} the best trial",
    IDLE: f"{IDLE} idle, starting or ending",
}
_MAX_ROWS = 16
"""More GPUs than that get no row each: there is one for each instance."""
_MAX_TICKS = 6
_COST_WIDTH = 7
_LEAST_WIDTH = 20
# What ends where another begins leaves its GPU to that.
_EARLY = 1e-6


@dataclass
class _Row:
    """A GPU: its cells, and until when it is taken."""

    cells: list[str]
    taken: float = -math.inf


@dataclass
class _Gantt:
    """The field: `width` cells are `seconds` long."""

    seconds: float
    width: int
    best: str
    rows: dict[str, list[_Row]] = field(default_factory=dict)

    def cell(self, at: float) -> int:
        return min(self.width, max(0, round(at / self.seconds * self.width)))

    def paint(self, row: _Row, begin: float, end: float, text: str) -> None:
        """Fill the cells between two times by the last character of a text that begins them."""
        first = self.cell(begin)
        after = self.cell(end)
        drawn = text.ljust(after - first, text[-1])[: after - first]
        row.cells[first:after] = drawn

    def rent(self, account: InstanceAccount, joined: float, rows: int) -> None:
        rented = [_Row([" "] * self.width) for _ in range(rows)]
        for row in rented:
            self.paint(row, account.begin, account.end, IDLE)
            self.paint(row, account.begin, joined, BOOT)
        self.rows[account.instance or ""] = rented

    def train(self, session: SessionSpan) -> None:
        """Give a session the first rows of its instances that are free."""
        trial = session.start.trial
        begin = session.begin
        end = min(session.end, self.seconds)
        fill = WINNER if trial == self.best else TRAINS
        name = trial.removeprefix("t")
        fits = self.cell(end) - self.cell(begin) > len(name) + 1
        text = f"{BEGINS}{name}{fill}" if fits else f"{BEGINS}{fill}"
        for piece in session.start.placement:
            rows = self.rows.get(piece.instance, [])
            free = [row for row in rows if row.taken <= begin + _EARLY]
            shared = sorted(rows, key=lambda row: row.taken)
            for row in (free or shared)[: math.ceil(piece.gpus)]:
                self.paint(row, begin, end, text)
                row.taken = end


def gantt(report: Report, columns: int = 100) -> list[str]:
    """Return the lines of the chart: its rows, two of axis, and the legend; none without instances.

    A row is a GPU, or an instance where there are more than 16 GPUs; a row ends with what its
    instance cost. Lines take at most `columns` columns, and go from the first request to the end of
    the run, or to its last record.
    """
    accounts = [one for one in report.accounting.instances if one.end > one.begin]
    seconds = max((account.end for account in accounts), default=0.0)
    if seconds <= 0:
        return []
    best = report.policy.best
    room = columns - _names_width(accounts) - 2 - _COST_WIDTH
    chart = _Gantt(seconds, max(_LEAST_WIDTH, room), "" if best is None else best.trial)
    by_gpu = sum(account.offer.gpus for account in accounts) <= _MAX_ROWS
    for account in accounts:
        instance = report.timeline.instances[account.intent]
        joined = account.end if instance.joined_at is None else instance.joined_at
        chart.rent(account, joined, max(1, account.offer.gpus) if by_gpu else 1)
    for session in report.timeline.sessions.values():
        chart.train(session)
    lines = list(_gantt_lines(chart, accounts, free=report.job.plan.free))
    drawn = {cell for rows in chart.rows.values() for row in rows for cell in row.cells}
    legend = "  ".join(text for mark, text in _MARKS.items() if mark in drawn)
    return [*lines, *_time_axis(chart, _names_width(accounts)), legend]


def _names_width(accounts: Sequence[InstanceAccount]) -> int:
    return max(len(offer_text(account.offer)) for account in accounts)


def _gantt_lines(
    chart: _Gantt, accounts: Sequence[InstanceAccount], *, free: bool
) -> Iterator[str]:
    margin = _names_width(accounts)
    for account in accounts:
        for number, row in enumerate(chart.rows[account.instance or ""]):
            name = offer_text(account.offer) if number == 0 else ""
            cost = format_dollars(account.whole.dollars) if number == 0 and not free else ""
            yield f"{name:<{margin}} {''.join(row.cells)} {cost}".rstrip()


def _time_axis(chart: _Gantt, margin: int) -> Iterator[str]:
    step = next((s for s in _TIME_STEPS if chart.seconds / s <= _MAX_TICKS), chart.seconds)
    ticks = [n * step for n in range(math.floor(chart.seconds / step) + 1)]
    marks = {min(chart.cell(tick), chart.width - 1) for tick in ticks}
    yield " " * (margin + 1) + "".join("+" if n in marks else "-" for n in range(chart.width))
    line = " " * (margin + 1)
    for tick in ticks:
        label = format_seconds(tick)
        begin = min(margin + 1 + chart.cell(tick), margin + 1 + chart.width - len(label))
        line = f"{line:<{begin}}{label}" if begin >= len(line.rstrip()) + 1 or tick == 0 else line
    yield line
