"""The fleet and the bill of a run over its time, against the plan and the limits."""

from collections.abc import Iterator, Sequence

from cloudtune.display.pages import figures
from cloudtune.display.pages.figures import Figure, TimeUnit, Trace
from cloudtune.engine.record.timeline import levels
from cloudtune.model.plans import Plan
from cloudtune.model.text import cost_format
from cloudtune.model.units import format_seconds
from cloudtune.runs.report import Report

_POINTS = 400


def fleet(report: Report) -> Figure:
    """Return the billed and the training GPUs, and the dollars spent, over time."""
    clock = TimeUnit.until(report.timeline.over_at)
    plan = report.job.plan.followed
    limits = report.job.limits
    planned_end = 0.0 if plan is None else plan.stages[-1].begin + plan.stages[-1].seconds
    end = max(report.timeline.over_at, planned_end)
    most = max([report.dollars, *([plan.estimate.dollars] if plan else [])])
    offers = report.job.plan.offers
    cost = cost_format(offers)
    drawn = figures.limit_lines(limits, clock, dollars="y2", ends=(end, most), cost=cost)
    figure = figures.layout(
        520,
        xaxis=figures.time_axis(clock, end, limits.deadline, anchor="y2"),
        yaxis=figures.axis("GPUs", domain=[0.56, 1], rangemode="tozero"),
        yaxis2=figures.cost_axis(offers, most, limits.budget, domain=[0, 0.48]),
        hovermode="x unified",
        **drawn,
    )
    traces = [*_gpus(report), _spend(report), *([] if plan is None else _plan_traces(report, plan))]
    planned = report.job.plan.estimate
    says = (
        f"At most {report.figures.instances:g} at once; {cost(report.dollars)} in "
        f"{format_seconds(report.seconds)}, where {cost(planned.dollars)} "
        f"and {format_seconds(planned.seconds)} were planned."
    )
    return Figure([*traces, *_changes(report)], figure, says)


def _steps(
    report: Report, name: str, changes: Sequence[tuple[float, float]], **line: object
) -> Trace:
    x, y = figures.steps(changes, report.timeline.over_at)
    at = TimeUnit.until(report.timeline.over_at).all(x)
    return figures.marks(
        name, at, y, f"{name}: %{{y:.3g}}", line={"shape": "hv", "width": 2, **line}
    )


def _gpus(report: Report) -> list[Trace]:
    accounts = report.accounting.instances
    billing = levels(
        change
        for account in accounts
        for change in ((account.begin, account.offer.gpus), (account.end, -account.offer.gpus))
    )
    busy = levels(change for account in accounts for change in _find_changes(account.busy))
    rented = _steps(report, "GPUs that bill", billing, color=figures.COLOURS[0])
    trains = _steps(report, "GPUs that train", busy, color=figures.COLOURS[2])
    return [rented, {**trains, "fill": "tozeroy", "fillcolor": "rgba(44,165,141,0.25)"}]


def _find_changes(values: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    before = 0.0
    for at, value in values:
        yield at, value - before
        before = value


def _spend(report: Report) -> Trace:
    ends = {at for account in report.accounting.instances for at in (account.begin, account.end)}
    grid = {report.timeline.over_at * step / _POINTS for step in range(_POINTS + 1)}
    times = sorted(ends | grid)
    x = TimeUnit.until(report.timeline.over_at).all(times)
    y = [report.spent(at) for at in times]
    look = {"yaxis": "y2", "line": {"color": figures.COLOURS[1], "width": 2}}
    _, prefix = figures.money(report.job.plan.offers)
    return figures.marks("spent", x, y, f"spent: {prefix}%{{y:.4g}}", **look)


def _plan_traces(report: Report, plan: Plan) -> list[Trace]:
    """Return the plan before the run: GPUs, and dollars as they fall due by stage."""
    clock = TimeUnit.until(report.timeline.over_at)
    times, spent = figures.spent_by_stage(plan)
    sizes = [(stage.begin, float(stage.gpus)) for stage in plan.stages]
    x, y = figures.steps([*sizes, (times[-1], 0.0)], times[-1])
    dash = {"color": figures.PLAN, "dash": "dot", "width": 2}
    gpus = "planned: %{y:.3g} GPUs"
    money, prefix = figures.money(plan.offers)
    hover = f"planned: {prefix}%{{y:.4g}}"
    return [
        figures.marks("GPUs planned", clock.all(x), y, gpus, line={**dash, "shape": "hv"}),
        figures.marks(f"{money} planned", clock.all(times), spent, hover, yaxis="y2", line=dash),
    ]


def _changes(report: Report) -> list[Trace]:
    """Return a mark for each replanning, with the reason."""
    changes = report.plan_changes
    if not changes:
        return []
    return [
        figures.marks(
            "replanned",
            TimeUnit.until(report.timeline.over_at).all(at for at, _ in changes),
            [0.0 for _ in changes],
            "replanned: %{text}",
            mode="markers",
            marker={"symbol": "triangle-up", "size": 10, "color": figures.PLAN},
            text=[figures.plain(change.why) for _, change in changes],
        )
    ]
