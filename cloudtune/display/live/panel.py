"""A run at one moment as lines of a terminal, fitted to its size."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cloudtune.model.fleet import Rented
from cloudtune.model.plans import Forecast, Spread
from cloudtune.model.progress import OVER, TrialProgress
from cloudtune.model.text import EPOCHS, Scale, machine_text, metric_text, width_text
from cloudtune.model.trial import rank_key
from cloudtune.model.units import format_clock, format_dollars
from cloudtune.policy.run import RunPolicy

# The minimum number of lines of a terminal for the panel.
LEAST_LINES = 20
# The minimum number of lines left above the panel for events.
_EVENTS = 6
# With at least this many lines below the bars, the fleet has its own table.
_TWO_TABLES = 12
_NARROW = 110
_OUTLOOK = 52
_LEAST_BAR = 10
_STYLES = {
    "training": "green",
    "up": "green",
    "failed": "red",
    "diverged": "red",
    "being lost": "red",
    "cut": "dim",
    "paused": "dim",
    "finished": "dim",
}


class _Outlook(NamedTuple):
    """An expected value; `low` and `high` are its 5th and 95th percentile.

    `origin` says where it comes from: "planned" or "forecast" beforehand, or the latest plan.
    """

    expected: float
    low: float | None
    high: float | None
    origin: str


class Bar(NamedTuple):
    """How much of something is used of its `limit`; None if there is none, or it is unknown."""

    used: float
    limit: float | None
    outlook: _Outlook | None


class _Instance(NamedTuple):
    """An instance; its name is "-" while it is only requested."""

    name: str
    machine: str
    state: str
    trials: Sequence[str]


@dataclass(frozen=True)
class RunPanel:
    """The live panel of a run: its figures, its fleet and its trials.

    `forecast` was made before the run began; `before` are the dollars of the same budget spent on
    measuring the script. With `free`, dollars aren't shown; `cost` shows them.
    """

    policy: RunPolicy
    forecast: Forecast | None = None
    before: float = 0.0
    free: bool = False
    cost: Callable[[float], str] = format_dollars
    emulated: bool = False
    scale: Scale = EPOCHS

    def draw(self, at: float, width: int, height: int) -> RenderableType:
        """Return the panel at run second `at` for that many columns and lines (`LEAST_LINES` on).

        A quarter of the lines, at least six, stay free for events.
        """
        trials = self._trials(narrow=width < _NARROW)
        instances = self._instances()
        top = self._top(at, width, [row[1] for row in trials])
        room = height - max(_EVENTS, height // 4) - len(top)
        if room < _TWO_TABLES:
            kinds = Counter((it.machine, it.state) for it in instances)
            short = ", ".join(f"{count} x {' '.join(kind)}" for kind, count in kinds.items())
            fleet: list[RenderableType] = [_line(f"{'fleet':9}{short or 'none'}")]
            taken = 1
        else:
            # Each table has a head and an empty line above it.
            machines = _machines(instances, (room - 4) // 3)
            fleet = [Text(""), _table(("instance", "type", "state", "trials"), machines, width)]
            taken = 2 + len(machines)
        unit = self.scale.unit
        metric = self.policy.state.metric.name
        columns = ("trial", "status", unit, metric, "GPUs", "instance")
        rows = _cut(trials or [("none", "", "", "", "", "")], room - taken - 2, _rest)
        table = _table(columns, rows, width, right={unit, metric, "GPUs"})
        return Group(*top, *fleet, Text(""), table)

    def _top(self, at: float, width: int, statuses: Iterable[str]) -> list[RenderableType]:
        """Return a rule, the bars (two lines each in a narrow terminal), and the best."""
        policy = self.policy
        it = policy.itinerary
        ending = policy.ending
        counts = Counter(statuses)
        by_status = ", ".join(f"{count} {status}" for status, count in counts.items())
        head = [
            *([] if ending is None else [f"ending ({ending.value})"]),
            *([] if it is None else [f"stage {it.stage + 1} of {len(it.plan.stages)}"]),
            f"trials: {by_status}" if by_status else "no trial has started",
        ]
        time = Bar(at, policy.limits.deadline, self._finish())
        word = "ends at about" if ending is None else ""
        lines: list[RenderableType] = [
            Text("─" * width, style="dim", no_wrap=True),
            _line(" | ".join(head)),
            *_bar("time", time, format_clock, word, width),
        ]
        if not self.free:
            name = "emulated" if self.emulated else "cost"
            word = "comes to about" if ending is None else ""
            lines += _bar(name, self.dollars(at), self.cost, word, width)
        trained = sum(map(_trained_epochs, policy.trials.values()))
        planned_epochs = None if it is None else it.plan.epochs
        epochs = Bar(trained, planned_epochs, None)
        lines += _bar(
            f"{self.scale.unit}s",
            epochs,
            self.scale.text,
            "",
            width,
            plan=True,
        )
        best = policy.best
        text = "none yet"
        if best is not None:
            text = f"{metric_text(best.metric)} by {best.trial} at {self.scale.at(best.epoch)}"
            if lost := policy.best_lost:
                text += f"; {metric_text(lost.metric)} at {self.scale.at(lost.epoch)} wasn't saved"
        lines.append(_line(f"{'best':9}{policy.state.metric.name} {text}"))
        return lines

    def next_text(self, at: float) -> str:
        """Return when the run is expected to end, and at what cost, in a line."""
        if self.policy.ending is not None:
            return f"ending ({self.policy.ending.value})"
        time = Bar(at, self.policy.limits.deadline, self._finish())
        text = f"ends at about {_outlook(time, format_clock)}"
        if self.free:
            return text
        return f"{text}, comes to about {_outlook(self.dollars(at), self.cost)}"

    def _finish(self) -> _Outlook | None:
        """Return when the run is expected to end, in run seconds."""
        it = self.policy.itinerary
        began = self.policy.began
        if began is None:
            return None
        planned = 0.0 if it is None else it.end.at
        spread = None if self.forecast is None else self.forecast.seconds
        return self._outlook(planned, spread, began)

    def dollars(self, at: float) -> Bar:
        """Return the bill so far, with what measuring took, of the whole budget."""
        policy = self.policy
        before = self.before
        budget = policy.limits.budget
        planned = 0.0 if policy.itinerary is None else policy.forecast(at) + before
        spread = None if self.forecast is None else self.forecast.dollars
        outlook = self._outlook(planned, spread, before)
        limit = None if budget is None else budget + before
        return Bar(billed_dollars(policy, at) + before, limit, outlook)

    def _outlook(self, planned: float, spread: Spread | None, begin: float) -> _Outlook | None:
        """Return the outlook: `planned` by the present plan, or else by the forecast.

        The range comes from the forecast, counted from `begin` on, unless the plan has changed.
        """
        it = self.policy.itinerary
        if self.policy.ending is not None or (it is None and spread is None):
            return None
        if it is not None and it.replanned:
            return _Outlook(planned, None, None, f"replanned at {format_clock(it.planned_at)}")
        if spread is None:
            return _Outlook(planned, None, None, "planned")
        low = spread.p5 + begin
        high = spread.p95 + begin
        if it is None:
            return _Outlook(spread.p50 + begin, low, high, "forecast")
        return _Outlook(planned, low, high, "planned")

    def _instances(self) -> list[_Instance]:
        on: defaultdict[str | None, list[str]] = defaultdict(list)
        for trial in self.policy.state.live:
            for part in trial.placement:
                on[part.instance].append(trial.id)
        return [
            _Instance(
                rented.instance or "-",
                machine_text(rented.offer.instance_type.name, rented.offer.market, rented.zone),
                _state(rented),
                on[rented.instance],
            )
            for rented in self.policy.fleet.alive()
        ]

    def _trials(self, *, narrow: bool) -> list[tuple[str, ...]]:
        """Return a row for each trial, best first; those without a metric come last."""
        mode = self.policy.state.mode
        ordered = sorted(
            self.policy.trials.values(), key=lambda t: (*rank_key(mode, t.metric), t.status in OVER)
        )
        rows: list[tuple[str, ...]] = []
        for trial in ordered:
            on = list(dict.fromkeys(part.instance for part in trial.placement))
            places = f"{on[0]} and {len(on) - 1} more" if narrow and len(on) > 1 else " ".join(on)
            rows.append(
                (
                    trial.id,
                    "paused" if trial.status == "parked" else trial.status,
                    self.scale.text(trial.epoch),
                    "-" if trial.metric is None else f"{trial.metric:.4g}",
                    width_text(trial.width) if trial.live and trial.width else "-",
                    places or "-",
                )
            )
        return rows


def billed_dollars(policy: RunPolicy, at: float) -> float:
    """Return the dollars billed so far, without requested instances (the policy counts them)."""
    asked = [rented for rented in policy.fleet.alive() if rented.launched_at is None]
    spent = policy.spent(at) - sum(rented.dollars(at) for rented in asked)
    return spent - len(asked) * policy.state.charges.usd_per_launch


def _trained_epochs(trial: TrialProgress) -> int:
    """Return how many epochs a trial has trained, without lost ones and those of another trial."""
    return sum(epoch <= trial.epoch for epoch in trial.history)


def _state(rented: Rented) -> str:
    if rented.released:
        return "returning"
    if rented.kept_until:
        return f"kept to {format_clock(rented.kept_until)}"
    if rented.surplus:
        return "being lost" if rented.being_lost else "leaving"
    if rented.launched_at is None:
        return "asked for"
    if rented.joined:
        return "at risk" if rented.at_risk else "up"
    return "booting"


def _bar(
    name: str, bar: Bar, show: Callable[[float], str], word: str, width: int, *, plan: bool = False
) -> list[RenderableType]:
    """Return a bar with its figures; the outlook is on a separate line if there is little room."""
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
    if not outlook:
        grid.add_row(name, drawn, Text(figures))
        return [grid]
    if beside:
        grid.add_row(name, drawn, Text(f"{figures:24}  {outlook}"))
        return [grid]
    grid.add_row(name, drawn, Text(figures))
    return [grid, _line(f"{'':9}{outlook}")]


def _outlook(bar: Bar, show: Callable[[float], str]) -> str:
    outlook = bar.outlook
    if outlook is None:
        return "unknown"
    # The run ends at its limits, whatever is expected of it.
    most = math.inf if bar.limit is None else bar.limit
    expected = min(outlook.expected, most)
    spread = "range unknown"
    if outlook.low is not None and outlook.high is not None:
        # The range is the forecast's, which may lag behind the bill: include the expected value.
        low = min(outlook.low, expected)
        high = min(max(outlook.high, expected), most)
        spread = f"{show(low)} to {show(high)}"
    late = ", which has passed" if bar.used > expected else ""
    return f"{show(expected)} ({spread}; {outlook.origin}{late})"


def _machines(instances: Sequence[_Instance], most: int) -> list[tuple[str, ...]]:
    """Return a row for each instance, or for each type and state if there are too many."""
    if not instances:
        return [("none", "", "", "")]
    if len(instances) <= most:
        return [(it.name, it.machine, it.state, " ".join(it.trials)) for it in instances]
    kinds = Counter((it.machine, it.state) for it in instances)
    trials: Counter[tuple[str, str]] = Counter()
    for it in instances:
        trials[it.machine, it.state] += len(it.trials)
    rows: list[tuple[str, ...]] = [
        (f"{count} x", *kind, f"{trials[kind]} on them") for kind, count in kinds.most_common()
    ]
    return _cut(rows, most, lambda rest: f"and {sum(int(row[0].split()[0]) for row in rest)} more")


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
    """Return a table with one line per row; a row with a single cell goes below it."""
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
