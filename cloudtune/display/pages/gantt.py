"""The GPUs of a run as a Gantt chart: who had them, how wide, and what nobody used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.display.pages.figures import (
    LIMIT,
    Figure,
    axis,
    layout,
    limit_lines,
    plain,
    time_axis,
)
from cloudtune.engine.record.accounting import uses
from cloudtune.engine.record.gpu_series import GpuRows
from cloudtune.model.text import counted, gpus_text, machine_text, percent
from cloudtune.model.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cloudtune.display.pages.figures import Trace
    from cloudtune.display.pages.trials import Told
    from cloudtune.engine.record.accounting import InstanceAccount, Stretch
    from cloudtune.engine.record.timeline import Session
    from cloudtune.model.trial import Slice

_SAME = 1e-6
_TALL, _LOW = 24, 3
"""Pixels of a GPU, at most and at least."""
_HEIGHT, _MOST = 260, 1500
_NAMED = 40
"""Instances whose names have room."""
_UNSEEN = 500.0
"""What takes a smaller part of the run than one of so many is too narrow to be seen."""
_SHOWN = 400
"""Of more bars than that none has its trial written in it."""

BOOT, IDLE, RETURN = "boots", "idle", "given back"
START, WAIT, LOST = "trial starts or stops", "waits for others", "lost, trained again"
_WIDTHS = ("#3f8fd6", "#2ca58d", "#7b6fd0", "#6f9e3c", "#1f6fa8", "#d6598b")
_KINDS = {
    IDLE: ("#9aa4b1", ""),
    BOOT: ("#8a93a6", "/"),
    RETURN: ("#8a93a6", "x"),
    START: ("#e0b34f", ""),
    WAIT: ("#c9a9e0", "\\"),
    LOST: (LIMIT, ""),
}
_WRITTEN = {
    "textposition": "inside",
    "insidetextanchor": "middle",
    "textangle": 0,
    "insidetextfont": {"color": "#ffffff"},
}
_USES = {"start-up": START, "barrier": WAIT, "lost": LOST}


class GpuBar(NamedTuple):
    """GPUs from row `low` on, from when until when; `trial` is "" where no trial had them."""

    low: float
    gpus: float
    begin: float
    end: float
    kind: str
    trial: str
    told: str


@dataclass
class InstanceRows:
    """The rows of an instance's GPUs; `base` is its first one in the chart."""

    account: InstanceAccount
    base: int
    gpus: GpuRows = field(init=False)

    def __post_init__(self) -> None:
        self.gpus = GpuRows(self.account.offer.gpus)

    def take(self, piece: Slice, begin: float, end: float) -> Iterator[tuple[float, float]]:
        """Give rows for GPUs: the first of each stretch and how many, the lowest that are free."""
        places = self.gpus.take(piece, begin, end)
        if piece.gpus < 1:
            yield from ((self.base + place.gpu + place.low, place.share) for place in places)
            return
        for first, count in _runs(place.gpu for place in places):
            yield self.base + first, count


def _runs(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Give stretches of rows without a gap: the first, and how many."""
    found: list[list[int]] = []
    for row in rows:
        if found and found[-1][-1] == row - 1:
            found[-1].append(row)
        else:
            found.append([row])
    for each in found:
        yield each[0], len(each)


def gpus(told: Told) -> Figure:
    """Return the GPUs over time: a band for each instance, a row for each of its GPUs."""
    accounts = told.report.accounting.instances
    rows, bars = drawn_bars(told)
    count = sum(each.account.offer.gpus for each in rows)
    limits, clock = told.report.job.limits, told.clock
    drawn = limit_lines(limits, clock, dollars="", ends=(told.end, 0.0))
    tall = max(_LOW, min(_TALL, (_MOST - _HEIGHT) / max(1, count)))
    shown = layout(
        round(_HEIGHT / 2 + max(6, count) * tall),
        barmode="overlay",
        bargap=0,
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis=time_axis(clock, told.end, limits.deadline),
        yaxis=axis("", range=[max(1, count), 0], showgrid=False, **_names(rows)),
        **drawn,
    )
    busy = percent(told.report.accounting.busy_share)
    says = f"{counted(len(accounts), 'instance')}; GPUs trained in {busy} of the time billed."
    return Figure(_traces(told, bars), shown, says, linked=True)


def drawn_bars(told: Told) -> tuple[list[InstanceRows], list[GpuBar]]:
    """Return the rows of each instance, and what is drawn in them: instances, then trials."""
    rows: dict[str, InstanceRows] = {}
    count = 0
    for account in told.report.accounting.instances:
        rows[account.instance or account.intent] = InstanceRows(account, count)
        count += account.offer.gpus
    return list(rows.values()), [*_instances(told, rows.values()), *_sessions(told, rows)]


def _names(rows: Sequence[InstanceRows]) -> dict[str, object]:
    every = -(-len(rows) // _NAMED) or 1
    shown = rows[::every]
    names = []
    for each in shown:
        offer = each.account.offer
        kind = machine_text(offer.instance_type.name, offer.market, "")
        names.append(f"{plain(each.account.instance or each.account.intent)}<br>{plain(kind)}")
    middles = [each.base + each.account.offer.gpus / 2 for each in shown]
    return {"tickvals": middles, "ticktext": names, "tickfont": {"size": 11}}


def _instances(told: Told, rows: Iterable[InstanceRows]) -> Iterator[GpuBar]:
    """Give the time of each instance that no trial is drawn over."""
    for each in rows:
        account, known = each.account, told.report.timeline.instances[each.account.intent]
        begin, end = account.begin, account.end
        left = end if known.left_at is None else min(max(begin, known.left_at), end)
        joined = left if known.joined_at is None else min(max(begin, known.joined_at), left)
        name = account.instance or account.intent
        for since, until, kind in (
            (begin, joined, BOOT),
            (joined, left, IDLE),
            (left, end, RETURN),
        ):
            if until > since:
                yield GpuBar(each.base, account.offer.gpus, since, until, kind, "", name)


def _sessions(told: Told, rows: dict[str, InstanceRows]) -> Iterator[GpuBar]:
    """Give what each session did, on the GPUs that it had."""
    ordered = sorted(uses(told.report.timeline), key=lambda use: use[0].begin)
    for session, end, found in ordered:
        parts = list(_parts(session, found, least=told.end / _UNSEEN))
        for piece in session.start.placement:
            place = rows[piece.instance]
            for low, count in place.take(piece, session.begin, end):
                for begin, until, kind, text in parts:
                    until_ = min(until, place.account.end)
                    if until_ > begin:
                        yield GpuBar(low, count, begin, until_, kind, session.start.trial, text)


def _parts(
    session: Session, found: Sequence[Stretch], least: float
) -> Iterator[tuple[float, float, str, str]]:
    """Give what a session did, with neighbours of one kind as one: begin, end, kind and words.

    A wait between two epochs that takes less than `least` seconds is left out.
    """
    width = session.start.width
    merged: list[tuple[float, float, str]] = []
    for place, each in enumerate(found):
        kind = _USES.get(each.use, f"trains on {gpus_text(width)}")
        short = each.use == "barrier" and each.end - each.begin < least
        if short and 0 < place < len(found) - 1:
            continue
        if merged and merged[-1][2] == kind and each.begin - merged[-1][1] < max(least, _SAME):
            merged[-1] = (merged[-1][0], each.end, kind)
        else:
            merged.append((each.begin, each.end, kind))
    for begin, end, kind in merged:
        done = [e.number for e in session.epochs if begin < e.told.at <= end + 1.0]
        epochs = f", epochs {min(done)} to {max(done)}" if done and kind not in _KINDS else ""
        yield begin, end, kind, f"on {gpus_text(width)}{epochs}"


def _traces(told: Told, bars: Sequence[GpuBar]) -> list[Trace]:
    widths = sorted({s.start.width for s in told.report.timeline.sessions.values()})
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
                _trace(told, kind, own, colour, pattern, texts=texts and kind in training)
            )
    return [*traces, {**_trace(told, "", [], "", "", texts=False), "showlegend": False}]


def _trace(
    told: Told, kind: str, bars: Sequence[GpuBar], colour: str, pattern: str, *, texts: bool
) -> Trace:
    clock = told.clock
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
            [bar.trial, plain(bar.told), format_seconds(bar.begin), format_seconds(bar.end)]
            for bar in bars
        ],
        "marker": {
            "color": colour or "#000000",
            "opacity": 0.35 if background else 1,
            "pattern": {"shape": pattern, "size": 6},
            "line": {"width": 0.5 if texts else 0, "color": "#20262f"},
        },
        **({"text": [bar.trial for bar in bars], **_WRITTEN} if texts else {}),
        "hovertemplate": f"%{{customdata[0]}} {plain(kind)}<br>%{{customdata[1]}}<br>"
        "%{customdata[2]} to %{customdata[3]}<extra></extra>",
    }
