"""Where the money of a run went, its rungs, and its plan against what it took, as charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.display.cost_tables import LABELS
from cloudtune.display.pages.figures import COLOURS, PLAN, Figure, TimeUnit, axis, layout, plain
from cloudtune.model.text import percent
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.display.pages.figures import Trace
    from cloudtune.model.plans import Spread
    from cloudtune.runs.report import Report


def money(report: Report) -> Figure:
    """Return a bar for each category of the bill; of what is free, of the GPU-seconds."""
    accounting = report.accounting
    free = report.job.plan.free
    whole = accounting.whole.gpu_seconds if free else accounting.whole.dollars
    rows = []
    for name, amount in accounting.amounts.items():
        value = amount.gpu_seconds if free else amount.dollars
        if value > 0:
            text = format_seconds(value) if free else format_dollars(value)
            rows.append((LABELS[name], value, f"{text} ({percent(value / whole)})"))
    shown = layout(
        90 + 34 * max(2, len(rows)),
        xaxis=axis(
            "GPU-seconds" if free else "dollars",
            tickprefix="" if free else "$",
            range=[0, 1.35 * max([value for _, value, _ in rows], default=1.0)],
        ),
        yaxis=axis("", autorange="reversed"),
        margin={"l": 70, "r": 110, "t": 20, "b": 50},
    )
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": [value for _, value, _ in rows],
        "y": [label for label, _, _ in rows],
        "customdata": [text for _, _, text in rows],
        "marker": {"color": [COLOURS[0] if label == "training" else PLAN for label, _, _ in rows]},
        "hovertemplate": "%{y}: %{customdata}<extra></extra>",
        "showlegend": False,
    }
    words: Trace = {
        "type": "scatter",
        "mode": "text",
        "x": trace["x"],
        "y": trace["y"],
        "text": [f"  {text}" for _, _, text in rows],
        "textposition": "middle right",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    best = f"{percent(accounting.busy_share)} of the time billed trained."
    total = format_seconds(whole) if free else format_dollars(whole)
    return Figure([trace, words], shown, f"{total} in all; {best}")


def rungs(report: Report) -> Figure:
    """Return how many trials came to each rung, and the best of them there."""
    reached = report.rungs
    names = [f"epoch {rung.epoch}" for rung in reached]
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": "trials",
            "x": names,
            "y": [rung.trials for rung in reached],
            "text": [str(rung.trials) for rung in reached],
            "marker": {"color": COLOURS[0]},
            "hovertemplate": "%{x}: %{y} trials<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"best {plain(report.metric)} there",
            "x": names,
            "y": [rung.best for rung in reached],
            "yaxis": "y2",
            "line": {"color": COLOURS[1]},
            "hovertemplate": "%{x}: %{y:.5g}<extra></extra>",
        },
    ]
    shown = layout(
        340,
        xaxis=axis("", type="category"),
        yaxis=axis("trials", rangemode="tozero"),
        yaxis2=axis(report.metric, overlaying="y", side="right", showgrid=False, tickmode="auto"),
    )
    counts = ", ".join(f"{rung.trials} to epoch {rung.epoch}" for rung in reached)
    return Figure(traces, shown, f"Trials that trained so far: {counts}.")


# ---- plan against actual -------------------------------------------------------------------------


def against_plan(report: Report) -> Figure:
    """Return planned and actual time and dollars: stage by stage, or as a forecast's ranges."""
    traces = _by_stage(report) if report.stages else _by_forecast(report)
    title = _clock(report).name
    shown = layout(
        360,
        barmode="group",
        grid={"rows": 1, "columns": 2, "pattern": "independent", "xgap": 0.2},
        xaxis=axis("", type="category"),
        xaxis2=axis("", type="category"),
        yaxis=axis(title, rangemode="tozero"),
        yaxis2=axis("dollars", tickprefix="$", rangemode="tozero"),
    )
    planned = report.job.plan.estimate
    says = (
        f"Planned {format_seconds(planned.seconds)} and {format_dollars(planned.dollars)}; "
        f"came to {format_seconds(report.seconds)} and {format_dollars(report.dollars)}."
    )
    return Figure(traces, shown, says)


def _clock(report: Report) -> TimeUnit:
    return TimeUnit.until(max(report.seconds, report.planned_seconds))


def _by_stage(report: Report) -> list[Trace]:
    stages = report.stages
    clock = _clock(report)
    names = [f"stage {number}" for number in range(1, len(stages) + 1)]
    seconds = [clock.of(stage.plan.seconds) for stage in stages]
    taken = [None if stage.seconds is None else clock.of(stage.seconds) for stage in stages]
    dollars = [s.plan.dollars for s in stages]
    paid = [s.dollars for s in stages]
    return [
        _bars("planned", names, seconds, PLAN, 1),
        _bars("actual", names, taken, COLOURS[0], 1),
        {**_bars("planned", names, dollars, PLAN, 2), "showlegend": False},
        {**_bars("actual", names, paid, COLOURS[0], 2), "showlegend": False},
    ]


def _bars(name: str, x: Sequence[str], y: Sequence[float | None], colour: str, place: int) -> Trace:
    return {
        "type": "bar",
        "name": name,
        "legendgroup": name,
        "x": list(x),
        "y": list(y),
        "xaxis": f"x{place}" if place > 1 else "x",
        "yaxis": f"y{place}" if place > 1 else "y",
        "marker": {"color": colour},
        "hovertemplate": f"%{{x}}, {name}: %{{y:.4g}}<extra></extra>",
    }


def _by_forecast(report: Report) -> list[Trace]:
    clock = _clock(report)
    forecast = report.forecast
    time = forecast.seconds
    cost = forecast.dollars
    return [
        *_range("time", time, clock.seconds, clock.of(report.seconds), 1),
        *_range("cost", cost, 1.0, report.dollars, 2),
    ]


def _range(name: str, spread: Spread, unit: float, actual: float, place: int) -> list[Trace]:
    axes = {"xaxis": f"x{place}", "yaxis": f"y{place}"} if place > 1 else {}
    middle = spread.p50 / unit
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "forecast, p5 to p95",
            "x": [name],
            "y": [middle],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [spread.p95 / unit - middle],
                "arrayminus": [middle - spread.p5 / unit],
                "thickness": 3,
            },
            "marker": {"color": PLAN, "size": 12},
            "showlegend": place == 1,
            **axes,
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "actual",
            "x": [name],
            "y": [actual],
            "marker": {"color": COLOURS[0], "size": 14, "symbol": "diamond"},
            "showlegend": place == 1,
            **axes,
        },
    ]
