"""The fleet and the bill of a run over its time, against the plan and the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.display.pages.figures import (
    COLOURS,
    PLAN,
    Figure,
    axis,
    layout,
    limit_lines,
    plain,
    reach,
    steps,
    time_axis,
)
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.display.pages.figures import Trace
    from cloudtune.display.pages.trials import ChartedRun
    from cloudtune.model.plans import Plan

_POINTS = 400


def fleet(run: ChartedRun) -> Figure:
    """Return the GPUs that bill and that train, and the dollars spent, over time."""
    report, clock = run.report, run.clock
    plan, limits = report.job.plan.followed, report.job.limits
    planned_end = 0.0 if plan is None else plan.stages[-1].begin + plan.stages[-1].seconds
    end = max(run.end, planned_end)
    most = max([report.dollars, *([plan.estimate.dollars] if plan else [])])
    drawn = limit_lines(limits, clock, dollars="y2", ends=(end, most))
    shown = layout(
        520,
        xaxis=time_axis(clock, end, limits.deadline, anchor="y2"),
        yaxis=axis("GPUs", domain=[0.56, 1], rangemode="tozero"),
        yaxis2=axis(
            "dollars", domain=[0, 0.48], tickprefix="$", range=[0, reach(most, limits.budget)]
        ),
        hovermode="x unified",
        **drawn,
    )
    traces = [*_gpus(run), *_spend(run), *([] if plan is None else _planned(run, plan))]
    planned = report.job.plan.estimate.dollars
    says = (
        f"At most {report.figures.instances:g} at once; {format_dollars(report.dollars)} in "
        f"{format_seconds(report.seconds)}, where {format_dollars(planned)} "
        f"and {format_seconds(report.planned_seconds)} were planned."
    )
    return Figure([*traces, *_changes(run)], shown, says)


def _steps(
    run: ChartedRun, name: str, changes: Sequence[tuple[float, float]], **line: object
) -> Trace:
    x, y = steps(changes, run.end)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": run.clock.all(x),
        "y": y,
        "line": {"shape": "hv", "width": 2, **line},
        "hovertemplate": f"{name}: %{{y:.3g}}<extra></extra>",
    }


def _gpus(run: ChartedRun) -> list[Trace]:
    rented = _steps(run, "GPUs that bill", run.audit.fleet(), color=COLOURS[0])
    busy = sum_over_time(account.busy for account in run.report.accounting.instances)
    trains = _steps(run, "GPUs that train", busy, color=COLOURS[2])
    return [rented, {**trains, "fill": "tozeroy", "fillcolor": "rgba(44,165,141,0.25)"}]


def sum_over_time(parts: Iterable[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the sum of several values over time, after each change; each begins with nothing."""
    changes: dict[float, float] = {}
    for part in parts:
        before = 0.0
        for at, value in part:
            changes[at] = changes.get(at, 0.0) + value - before
            before = value
    level, sums = 0.0, []
    for at in sorted(changes):
        level += changes[at]
        sums.append((at, abs(round(level, 9))))
    return sums


def _spend(run: ChartedRun) -> list[Trace]:
    ends = {moment for lease in run.audit.leases for moment in (lease.begin, lease.end)}
    grid = {run.end * step / _POINTS for step in range(_POINTS + 1)}
    times = sorted(ends | grid)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "spent",
            "yaxis": "y2",
            "x": run.clock.all(times),
            "y": [run.spent(at) for at in times],
            "line": {"color": COLOURS[1], "width": 2},
            "hovertemplate": "spent: $%{y:.4g}<extra></extra>",
        }
    ]


def _planned(run: ChartedRun, plan: Plan) -> list[Trace]:
    """Return what the plan said before the run: GPUs, and dollars as they fall due by the stage."""
    ends = [stage.begin + stage.seconds for stage in plan.stages]
    sizes = [
        (stage.begin, float(sum(group.instances * group.offer.gpus for group in stage.groups)))
        for stage in plan.stages
    ]
    x, y = steps([*sizes, (ends[-1], 0.0)], ends[-1])
    dash = {"color": PLAN, "dash": "dot", "width": 2}
    dollars, spent = 0.0, [0.0]
    for stage in plan.stages:
        dollars += stage.dollars
        spent.append(dollars)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "GPUs planned",
            "x": run.clock.all(x),
            "y": y,
            "line": {**dash, "shape": "hv"},
            "hovertemplate": "planned: %{y:.3g} GPUs<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "dollars planned",
            "yaxis": "y2",
            "x": run.clock.all([plan.stages[0].begin, *ends]),
            "y": spent,
            "line": dash,
            "hovertemplate": "planned: $%{y:.4g}<extra></extra>",
        },
    ]


def _changes(run: ChartedRun) -> list[Trace]:
    """Return a mark for each time that the rest was replanned, with the reason."""
    changes = run.report.plan_changes
    if not changes:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "replanned",
            "x": run.clock.all(at for at, _ in changes),
            "y": [0.0 for _ in changes],
            "marker": {"symbol": "triangle-up", "size": 10, "color": PLAN},
            "text": [plain(change.why) for _, change in changes],
            "hovertemplate": "replanned: %{text}<extra></extra>",
        }
    ]
