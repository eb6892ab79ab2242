"""The GPUs of a run as a Gantt chart: which trial had them, how wide, and which were idle."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from cloudtune.display.pages import figures
from cloudtune.display.pages.figures import Figure, TimeUnit, Trace
from cloudtune.engine.record.accounting import InstanceAccount, Stretch, uses
from cloudtune.engine.record.gpu_series import GpuRows
from cloudtune.engine.record.timeline import SessionSpan
from cloudtune.model.text import count_noun, gpus_text, machine_text, percent
from cloudtune.model.trial import Slice
from cloudtune.model.units import format_seconds
from cloudtune.runs.report import Report

_SAME = 1e-6
# The maximum and minimum height of a GPU in pixels.
_TALL = 24
_LOW = 3
_HEIGHT = 260
_MOST = 1500
# Up to this many instances their names are shown.
_NAMED = 40
# A bar shorter than this fraction (1/n) of the run is too narrow to be seen.
_UNSEEN = 500.0
# Up to this many bars show the names of their trials.
_SHOWN = 400

BOOT = "boots"
IDLE = "idle"
RETURN = "given back"
START = "trial starts or stops"
WAIT = "waits for others"
LOST = "lost, trained again"
_WIDTHS = ("#3f8fd6", "#2ca58d", "#7b6fd0", "#6f9e3c", "#1f6fa8", "#d6598b")
_KINDS = {
    IDLE: ("#9aa4b1", ""),
    BOOT: ("#8a93a6", "/"),
    RETURN: ("#8a93a6", "x"),
    START: ("#e0b34f", ""),
    WAIT: ("#c9a9e0", "\\"),
    LOST: (figures.LIMIT, ""),
}
_USES = {"start-up": START, "barrier": WAIT, "lost": LOST}


class GpuBar(NamedTuple):
    """GPUs from row `low` on during a time; `trial` is "" if no trial had them."""

    low: float
    gpus: float
    begin: float
    end: float
    kind: str
    trial: str
    text: str


@dataclass
class InstanceRows:
    """The rows of an instance's GPUs; `base` is the first one in the chart."""

    account: InstanceAccount
    base: int
    gpus: GpuRows

    def take(self, piece: Slice, begin: float, end: float) -> Iterator[tuple[float, float]]:
        """Yield the lowest free rows for GPUs: the first of each stretch, and its length."""
        places = self.gpus.take(piece, begin, end)
        if piece.gpus < 1:
            yield from ((self.base + place.gpu + place.low, place.share) for place in places)
            return
        for first, count in _runs(place.gpu for place in places):
            yield self.base + first, count


def _runs(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield contiguous stretches of rows: the first, and the length."""
    for _, neighbours in groupby(enumerate(rows), lambda row: row[1] - row[0]):
        stretch = [row for _, row in neighbours]
        yield stretch[0], len(stretch)


def gpus(report: Report) -> Figure:
    """Return the GPUs over time: a band for each instance, a row for each of its GPUs."""
    accounts = report.accounting.instances
    rows, bars = drawn_bars(report)
    count = sum(row.account.offer.gpus for row in rows)
    limits = report.job.limits
    clock = TimeUnit.until(report.timeline.over_at)
    drawn = figures.limit_lines(limits, clock, dollars="", ends=(report.timeline.over_at, 0.0))
    tall = max(_LOW, min(_TALL, (_MOST - _HEIGHT) / max(1, count)))
    figure = figures.layout(
        round(_HEIGHT / 2 + max(6, count) * tall),
        barmode="overlay",
        bargap=0,
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis=figures.time_axis(clock, report.timeline.over_at, limits.deadline),
        yaxis=figures.axis("", range=[max(1, count), 0], showgrid=False, **_names(rows)),
        **drawn,
    )
    busy = percent(report.accounting.busy_share)
    says = f"{count_noun(len(accounts), 'instance')}; GPUs trained in {busy} of the time billed."
    return Figure(_traces(report, bars), figure, says, linked=True)


def drawn_bars(report: Report) -> tuple[list[InstanceRows], list[GpuBar]]:
    """Return the rows of each instance, and the bars in them: instances, then trials."""
    rows: dict[str, InstanceRows] = {}
    count = 0
    for account in report.accounting.instances:
        gpus = account.offer.gpus
        rows[account.name] = InstanceRows(account, count, GpuRows(gpus))
        count += gpus
    return list(rows.values()), [*_instances(report, rows.values()), *_sessions(report, rows)]


def _names(rows: Sequence[InstanceRows]) -> dict[str, object]:
    every = -(-len(rows) // _NAMED) or 1
    shown = rows[::every]
    names = []
    for row in shown:
        offer = row.account.offer
        kind = machine_text(offer.instance_type.name, offer.market, "")
        names.append(f"{figures.plain(row.account.name)}<br>{figures.plain(kind)}")
    middles = [row.base + row.gpus.gpus / 2 for row in shown]
    return {"tickvals": middles, "ticktext": names, "tickfont": {"size": 11}}


def _instances(report: Report, rows: Iterable[InstanceRows]) -> Iterator[GpuBar]:
    """Yield the bars of each instance when no trial is drawn over it."""
    for row in rows:
        account = row.account
        instance = report.timeline.instances[account.intent]
        begin = account.begin
        end = account.end
        left = end if instance.left_at is None else min(max(begin, instance.left_at), end)
        joined = left if instance.joined_at is None else min(max(begin, instance.joined_at), left)
        name = account.name
        parts = ((begin, joined, BOOT), (joined, left, IDLE), (left, end, RETURN))
        for since, until, kind in parts:
            if until > since:
                yield GpuBar(row.base, account.offer.gpus, since, until, kind, "", name)


def _sessions(report: Report, rows: dict[str, InstanceRows]) -> Iterator[GpuBar]:
    """Yield the bars of each session, on its GPUs."""
    ordered = sorted(uses(report.timeline), key=lambda use: use[0].begin)
    for session, end, stretches in ordered:
        parts = list(_parts(session, stretches, least=report.timeline.over_at / _UNSEEN))
        for piece in session.start.placement:
            place = rows[piece.instance]
            for low, count in place.take(piece, session.begin, end):
                for begin, until, kind, text in parts:
                    until_ = min(until, place.account.end)
                    if until_ > begin:
                        yield GpuBar(low, count, begin, until_, kind, session.start.trial, text)


def _parts(
    session: SessionSpan, stretches: Sequence[Stretch], least: float
) -> Iterator[tuple[float, float, str, str]]:
    """Yield a session's parts, merged by kind: begin, end, kind and words.

    A wait between two epochs of less than `least` seconds is left out.
    """
    width = session.start.width
    merged: list[tuple[float, float, str]] = []
    for place, stretch in enumerate(stretches):
        kind = _USES.get(stretch.use, f"trains on {gpus_text(width)}")
        short = stretch.use == "barrier" and stretch.end - stretch.begin < least
        if short and 0 < place < len(stretches) - 1:
            continue
        if merged and merged[-1][2] == kind and stretch.begin - merged[-1][1] < max(least, _SAME):
            merged[-1] = (merged[-1][0], stretch.end, kind)
        else:
            merged.append((stretch.begin, stretch.end, kind))
    for begin, end, kind in merged:
        done = [e.number for e in session.epochs if begin < e.report.at <= end + 1.0]
        epochs = f", epochs {min(done)} to {max(done)}" if done and kind not in _KINDS else ""
        yield begin, end, kind, f"on {gpus_text(width)}{epochs}"


def _traces(report: Report, bars: Sequence[GpuBar]) -> list[Trace]:
    widths = sorted({s.start.width for s in report.timeline.sessions.values()})
    training = {
        f"trains on {gpus_text(width)}": (_WIDTHS[number % len(_WIDTHS)], "")
        for number, width in enumerate(widths)
    }
    texts = sum(1 for bar in bars if bar.trial) <= _SHOWN
    traces = []
    for kind, (colour, pattern) in {**_KINDS, **training}.items():
        own = [bar for bar in bars if bar.kind == kind]
        if own:
            traces.append(
                _trace(report, kind, own, colour, pattern, texts=texts and kind in training)
            )
    return [*traces, {**_trace(report, "", [], "", "", texts=False), "showlegend": False}]


def _trace(
    report: Report, kind: str, bars: Sequence[GpuBar], colour: str, pattern: str, *, texts: bool
) -> Trace:
    clock = TimeUnit.until(report.timeline.over_at)
    background = kind in {IDLE, BOOT, RETURN}
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "x": [clock.of(bar.end - bar.begin) for bar in bars],
        "base": [clock.of(bar.begin) for bar in bars],
        "y": [bar.low + bar.gpus / 2 for bar in bars],
        "width": [bar.gpus * (0.98 if background else 0.9) for bar in bars],
        "customdata": [
            [bar.trial, figures.plain(bar.text), format_seconds(bar.begin), format_seconds(bar.end)]
            for bar in bars
        ],
        "marker": {
            "color": colour or "#000000",
            "opacity": 0.35 if background else 1,
            "pattern": {"shape": pattern, "size": 6},
            "line": {"width": 0.5 if texts else 0, "color": "#20262f"},
        },
        **({"text": [bar.trial for bar in bars], **figures.WRITTEN} if texts else {}),
        "hovertemplate": f"%{{customdata[0]}} {figures.plain(kind)}<br>%{{customdata[1]}}<br>"
        "%{customdata[2]} to %{customdata[3]}<extra></extra>",
    }
