"""A run at one moment as lines of a terminal, as many as there is room for."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cloudtune.display.live.overview import Bar, InstanceRow, Overview, TrialRow
from cloudtune.model.text import EPOCHS, Scale, width_text
from cloudtune.model.units import format_clock, format_dollars

# In a terminal of fewer lines the panel has no room.
LEAST_LINES = 20
# Lines above the panel that are left to what has just happened, at least.
_EVENTS = 6
# Lines that are left below the bars where the fleet has a table of its own.
_TWO_TABLES = 12
_NARROW = 110
_OUTLOOK = 52
_LEAST_BAR = 10
_STYLES = {
    "training": "green",
    "up": "green",
    "failed": "red",
    "being lost": "red",
    "cut": "dim",
    "paused": "dim",
    "finished": "dim",
}


def panel(
    seen: Overview, width: int, height: int, *, emulated: bool = False, scale: Scale = EPOCHS
) -> RenderableType:
    """Return a run's panel for a terminal of that many columns and lines (`LEAST_LINES` or more).

    A quarter of the lines, six at least, stay free for what happens.
    """
    top = _top(seen, width, scale, emulated=emulated)
    room = height - max(_EVENTS, height // 4) - len(top)
    if room < _TWO_TABLES:
        fleet: list[RenderableType] = [_line(f"{'fleet':9}{_fleet_in_short(seen.instances)}")]
        taken = 1
    else:
        # Each table has a head and an empty line above it.
        machines = _machines(seen.instances, (room - 4) // 3)
        fleet = [Text(""), _table(("instance", "type", "state", "trials"), machines, width)]
        taken = 2 + len(machines)
    trials = _trials(seen, room - taken - 2, scale, narrow=width < _NARROW)
    return Group(
        *top,
        *fleet,
        Text(""),
        _table(
            ("trial", "status", scale.unit, seen.metric, "GPUs", "instance"),
            trials,
            width,
            right={scale.unit, seen.metric, "GPUs"},
        ),
    )


def _top(seen: Overview, width: int, scale: Scale, *, emulated: bool) -> list[RenderableType]:
    """Return a rule, the bars, a line each or two where the terminal is narrow, and the best."""
    stage, stages = seen.stage
    counts = Counter(row.status for row in seen.trials)
    by_status = ", ".join(f"{count} {status}" for status, count in counts.items())
    head = [
        *([f"ending ({seen.ending})"] if seen.ending else []),
        *([f"stage {stage} of {stages}"] if stages else []),
        f"trials: {by_status}" if by_status else "no trial has started",
    ]
    lines: list[RenderableType] = [
        Text("─" * width, style="dim", no_wrap=True),
        _line(" | ".join(head)),
        *_bar("time", seen.time, format_clock, "" if seen.ending else "ends at about", width),
    ]
    if seen.dollars is not None:
        name = "emulated" if emulated else "dollars"
        word = "" if seen.ending else "comes to about"
        lines += _bar(name, seen.dollars, format_dollars, word, width)
    lines += _bar(
        f"{scale.unit}s",
        seen.epochs,
        lambda count: f"{count * scale.every:,.0f}",
        "",
        width,
        plan=True,
    )
    best = seen.best
    best_text = (
        f"{best.metric:.4f} by {best.trial} at {scale.at(best.epoch)}" if best else "none yet"
    )
    lines.append(_line(f"{'best':9}{seen.metric} {best_text}"))
    return lines


def _bar(
    name: str, bar: Bar, show: Callable[[float], str], word: str, width: int, *, plan: bool = False
) -> list[RenderableType]:
    """Return a bar with its figures; the outlook is on a line of its own where room is short."""
    of = "an unknown number: decided as results come in" if plan else "no limit"
    if bar.limit is not None:
        of = f"{show(bar.limit)}{' planned' * plan}"
    figures = f"{show(bar.used)} of {of}"
    outlook = f"{word} {_outlook(bar, show)}" if word else ""
    beside = width >= _NARROW
    room = width - 9 - max(24, len(figures)) - 2 - (_OUTLOOK if beside else 0)
    grid = Table.grid(padding=0)
    for size in (9, max(_LEAST_BAR, room), None):
        grid.add_column(no_wrap=True, width=size, overflow="ellipsis")
    share = 0.0 if not bar.limit else min(1.0, bar.used / bar.limit)
    drawn: RenderableType = Text("·" * max(_LEAST_BAR, room - 1), style="dim")
    if bar.limit is not None:
        style = "bar.complete" if share < 0.9 or plan else "yellow"
        drawn = ProgressBar(1.0, share, width=max(_LEAST_BAR, room - 1), complete_style=style)
    text = f"{figures:24}" if beside and outlook else figures
    grid.add_row(name, drawn, Text(f"{text}  {outlook}" if beside and outlook else figures))
    return [grid] if beside or not outlook else [grid, _line(f"{'':9}{outlook}")]


def _outlook(bar: Bar, show: Callable[[float], str]) -> str:
    outlook = bar.outlook
    if outlook is None:
        return "unknown"
    spread = "range unknown"
    if outlook.low is not None and outlook.high is not None:
        # The range is the forecast's, which lags behind a bill: what is expected lies within.
        low = min(outlook.low, outlook.expected)
        high = max(outlook.high, outlook.expected)
        spread = f"{show(low)} to {show(high)}"
    late = ", which has passed" if bar.used > outlook.expected else ""
    return f"{show(outlook.expected)} ({spread}; {outlook.origin}{late})"


def _fleet_in_short(instances: Sequence[InstanceRow]) -> str:
    kinds = Counter((row.machine, row.state) for row in instances)
    return ", ".join(f"{n} x {machine} {state}" for (machine, state), n in kinds.items()) or "none"


def _machines(instances: Sequence[InstanceRow], most: int) -> list[tuple[str, ...]]:
    """Return a row for each instance, or for each type and state where they are too many."""
    if not instances:
        return [("none", "", "", "")]
    if len(instances) <= most:
        return [
            (row.name or "-", row.machine, row.state, " ".join(row.trials)) for row in instances
        ]
    rows: list[tuple[str, ...]] = []
    kinds = Counter((row.machine, row.state) for row in instances)
    trials: Counter[tuple[str, str]] = Counter()
    for row in instances:
        trials[row.machine, row.state] += len(row.trials)
    rows = [(f"{count} x", *kind, f"{trials[kind]} on them") for kind, count in kinds.most_common()]
    return _cut(rows, most, lambda rest: f"and {sum(int(row[0].split()[0]) for row in rest)} more")


def _trials(seen: Overview, most: int, scale: Scale, *, narrow: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            row.name,
            row.status,
            f"{row.epoch * scale.every:,}",
            "-" if row.metric is None else f"{row.metric:.4g}",
            width_text(row.width) if row.width else "-",
            _places(row, narrow=narrow),
        )
        for row in seen.trials
    ]
    return _cut(rows or [("none", "", "", "", "", "")], most, _rest)


def _places(row: TrialRow, *, narrow: bool) -> str:
    if not row.instances:
        return "-"
    more = len(row.instances) - 1
    return f"{row.instances[0]} and {more} more" if narrow and more else " ".join(row.instances)


def _rest(rows: Sequence[tuple[str, ...]]) -> str:
    counts = Counter(row[1] for row in rows)
    return f"and {len(rows)} more: " + ", ".join(
        f"{count} {status}" for status, count in counts.items()
    )


def _cut(
    rows: list[tuple[str, ...]], most: int, rest: Callable[[Sequence[tuple[str, ...]]], str]
) -> list[tuple[str, ...]]:
    """Return at most `most` rows; the last says in one cell how many more there are."""
    if len(rows) <= most:
        return rows
    kept = most - 1
    return [*rows[:kept], (rest(rows[kept:]),)]


def _table(
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    width: int,
    right: Collection[str] = (),
) -> RenderableType:
    """Return a table of one line a row; a row of a single cell stands below it."""
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    for number, name in enumerate(columns):
        last = number == len(columns) - 1
        table.add_column(
            Text(name, style="dim"),
            justify="right" if name in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=min(len(name), 12),
            ratio=1 if last else None,
        )
    below = [row[0] for row in rows if len(row) == 1]
    for row in rows:
        if len(row) > 1:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return Group(table, *(_line(text, width) for text in below))


def _line(text: str, width: int | None = None) -> Text:
    line = Text(text, no_wrap=True, overflow="ellipsis")
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line
