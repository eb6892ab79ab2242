"""What runs on spot traces came to, beside the omniscient bound and on-demand alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from cloudtune.display.terminal import Fact, Sheet, print_facts, print_sheet
from cloudtune.serialization import encode
from cloudtune.text import counted, percent
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from cloudtune.engine.spot_pools import PoolTrace
    from cloudtune.plans import Limits, RunPlan
    from cloudtune.simulation.spot_replay import Replayed


@dataclass(frozen=True)
class Told:
    """Runs of a plan on traces, one for each start; `alone` are the same without spot, if any."""

    plan: RunPlan
    limits: Limits
    traces: tuple[PoolTrace, ...]
    runs: tuple[Replayed, ...]
    alone: tuple[Replayed, ...] | None


def show(out: Console, told: Told) -> None:
    """Print the runs, what whoever knew the traces would have paid, and the forecast."""
    print_sheet(out, _sheet(told))
    print_facts(out, list(_facts(told)))


def _sheet(told: Told) -> Sheet:
    alone: Sequence[Replayed | None] = told.alone or [None] * len(told.runs)
    rows = tuple(_row(run, other) for run, other in zip(told.runs, alone, strict=True))
    columns = (
        *("trace from", "time", "cost", "bound", "cost / bound", "on-demand alone"),
        *("spot h", "on-demand h", "lost", "refused", "ended"),
    )
    sheet = Sheet("On the spot trace, simulated", columns, rows)
    return sheet if told.alone else sheet.without("on-demand alone")


def _row(run: Replayed, other: Replayed | None) -> tuple[str, ...]:
    return (
        format_seconds(run.start),
        format_seconds(run.seconds),
        format_dollars(run.dollars),
        format_dollars(run.bound),
        f"{run.ratio:.2f}",
        "" if other is None else format_dollars(other.dollars),
        f"{run.spot_hours:.2f}",
        f"{run.on_demand_hours:.2f}",
        f"{run.lost}",
        f"{run.refused}",
        run.ended,
    )


def _facts(told: Told) -> Iterator[Fact]:
    runs, forecast = told.runs, told.plan.forecast
    paid, least = mean(run.dollars for run in runs), mean(run.bound for run in runs)
    for trace in told.traces:
        yield Fact(
            "trace",
            f"{trace.name}: {format_seconds(trace.length)}, there {percent(trace.availability)} of "
            f"the time, {trace.losses:.2g} losses an hour held",
        )
    ratio = f"; {median(run.ratio for run in runs):.2f} times in the median run"
    yield Fact(
        "bound",
        f"whoever knew the trace would have paid {format_dollars(least)} at the least for the same "
        f"work; paid {format_dollars(paid)}" + ratio * (len(runs) > 1),
    )
    if told.alone:
        other = mean(run.dollars for run in told.alone)
        yield Fact("", f"on-demand alone: {format_dollars(other)}")
    both = f"{format_dollars(forecast.dollars.p5)} to {format_dollars(forecast.dollars.p95)}"
    yield Fact(
        "forecast",
        f"{format_dollars(forecast.dollars.mean)} on average ({both} in nine of ten runs): "
        f"paid {paid / forecast.dollars.mean:.0%} of that"
        if forecast.dollars.mean > 0
        else "nothing",
    )
    short = sum(not run.finished for run in runs)
    passed = sum(bool(run.violations) for run in runs)
    yield Fact(
        "limits",
        f"{counted(len(runs), 'run')}: {passed} passed a limit, {short} were ended by one before "
        "their work was done",
        bool(short or passed),
    )


def to_json(told: Told) -> dict[str, Any]:
    """Return the runs as JSON; their ledgers aside."""
    return {
        "traces": [
            {
                "name": trace.name,
                "seconds": trace.length,
                "availability": trace.availability,
                "losses_per_hour": trace.losses,
            }
            for trace in told.traces
        ],
        "limits": encode(told.limits),
        "forecast": encode(told.plan.forecast),
        "runs": [_run_json(run) for run in told.runs],
        "on_demand_alone": None if told.alone is None else [_run_json(run) for run in told.alone],
    }


def _run_json(run: Replayed) -> dict[str, Any]:
    names = [field.name for field in fields(run) if field.name != "entries"]
    return {name: encode(getattr(run, name)) for name in names}
