"""The page of a plan: its stages, its forecast, and the time and dollars of all plans."""

from collections.abc import Iterator, Sequence

from cloudtune.display import alternatives_tables, plan_tables
from cloudtune.display.pages import figures
from cloudtune.display.pages.document import PageSection, document, facts, table
from cloudtune.display.pages.figures import Figure, TimeUnit, Trace
from cloudtune.forecast.alternatives import Point
from cloudtune.forecast.proposal import Proposal
from cloudtune.model.plans import Limits, Plan, RunPlan
from cloudtune.model.text import (
    cost_format,
    count_noun,
    fleet_text,
    gpus_text,
    group_text,
    offer_text,
    percent,
)
from cloudtune.model.units import format_seconds

_SYMBOLS = (
    *("square", "diamond", "triangle-up", "triangle-down", "cross", "x", "hexagon", "pentagon"),
)


def plan_page(proposal: Proposal) -> str:
    """Return the page of a plan.

    Raises:
        UsageError: plotly isn't installed.
    """
    head = facts(plan_tables.header(proposal))
    return document(f"Plan of {proposal.experiment.name}", head, list(_sections(proposal)))


def _sections(proposal: Proposal) -> Iterator[PageSection]:
    basis = proposal.basis.text
    staged = proposal.plan.staged
    below = table(alternatives_tables.front(proposal)) if proposal.front else ""
    yield PageSection(f"Cost against time, {basis}", front(proposal), below)
    if staged is not None:
        below = table(plan_tables.stages_sheet(proposal))
        yield PageSection("Stages", stages(staged, proposal.limits), below)
    below = table(plan_tables.forecast(proposal)) + facts(plan_tables.certainty(proposal))
    yield PageSection("Forecast", forecast(proposal), below)
    if proposal.alternatives:
        yield PageSection("Alternatives", None, table(alternatives_tables.alternatives(proposal)))
    yield PageSection("What a run creates", None, facts(plan_tables.creation(proposal)))


def front(proposal: Proposal) -> Figure:
    """Return all plans of the front, the alternatives, and this plan with its forecast's range."""
    chosen = proposal.plan
    limits = proposal.limits
    points = [
        *(point.plan.estimate for point in proposal.front),
        *(other.plan.estimate for other in proposal.alternatives),
        chosen.estimate,
    ]
    end = max([*(p.seconds for p in points), chosen.forecast.seconds.p95])
    most = max([*(p.dollars for p in points), chosen.forecast.dollars.p95])
    clock = TimeUnit.until(end)
    traces = [
        *([_front(proposal.front, clock)] if proposal.front else []),
        *(
            _point(other.name, other.plan, clock, number)
            for number, other in enumerate(proposal.alternatives)
        ),
        _this(chosen, clock),
    ]
    figure = figures.layout(
        480,
        xaxis=figures.time_axis(clock, end, limits.deadline),
        yaxis=figures.cost_axis(proposal.plan.offers, most, limits.budget),
        **figures.limit_lines(limits, clock, ends=(end, most), cost=cost_format(chosen.offers)),
    )
    caption = f"{_text(chosen)}."
    if proposal.front:  # a search has none
        caption = f"{_text(chosen)}; {count_noun(len(proposal.front), 'plan')} on the front."
    return Figure(traces, figure, f"This plan: {caption}")


def _text(plan: RunPlan) -> str:
    estimate = plan.estimate
    return f"{format_seconds(estimate.seconds)}, {cost_format(plan.offers)(estimate.dollars)}"


def _front(points: Sequence[Point], clock: TimeUnit) -> Trace:
    return figures.marks(
        "the front: cheapest for its time",
        clock.all(point.plan.estimate.seconds for point in points),
        [point.plan.estimate.dollars for point in points],
        "point %{customdata[0]}: %{customdata[1]}<br>%{customdata[2]}",
        mode="lines+markers",
        customdata=[
            [point.number, _text(point.plan), figures.plain(fleet_text(point.staged))]
            for point in points
        ],
        line={"shape": "hv", "color": figures.COLOURS[0], "width": 1.5},
        marker={"size": 7},
    )


def _point(name: str, plan: RunPlan, clock: TimeUnit, number: int) -> Trace:
    estimate = plan.estimate
    fleet = (f"{kind.instances} x {offer_text(kind.offer)}" for kind in plan.fleet)
    machines = ", ".join(fleet) if plan.followed is None else fleet_text(plan.followed)
    return figures.marks(
        name,
        [clock.of(estimate.seconds)],
        [estimate.dollars],
        "%{customdata[0]}: %{customdata[1]}<br>%{customdata[2]}",
        mode="markers",
        marker={
            "symbol": f"{_SYMBOLS[number % len(_SYMBOLS)]}-open",
            "size": 11,
            "color": figures.COLOURS[(number + 2) % len(figures.COLOURS)],
            "line": {"width": 2},
        },
        customdata=[[figures.plain(name), _text(plan), figures.plain(machines)]],
    )


def _this(plan: RunPlan, clock: TimeUnit) -> Trace:
    """Return the chosen plan, with bars from the 5th to the 95th percentile of its forecast."""
    at = plan.estimate
    time = plan.forecast.seconds
    cost = plan.forecast.dollars
    seconds = (max(0.0, time.p95 - at.seconds), max(0.0, at.seconds - time.p5))
    dollars = (max(0.0, cost.p95 - at.dollars), max(0.0, at.dollars - cost.p5))
    return {
        **_point("this plan", plan, clock, 0),
        "marker": {"symbol": "star", "size": 16, "color": figures.COLOURS[1]},
        "error_x": _error(figures.COLOURS[1], [clock.of(seconds[0])], [clock.of(seconds[1])]),
        "error_y": _error(figures.COLOURS[1], [dollars[0]], [dollars[1]]),
    }


def _error(colour: str, up: list[float], down: list[float]) -> dict[str, object]:
    lengths = {"symmetric": False, "array": up, "arrayminus": down}
    return {"type": "data", **lengths, "color": colour, "thickness": 3}


def stages(plan: Plan, limits: Limits) -> Figure:
    """Return the instances of each stage over time, stacked by offer, and the bill."""
    end = plan.stages[-1].begin + plan.stages[-1].seconds
    clock = TimeUnit.until(end)
    traces = [_offer(plan, number, clock) for number in range(len(plan.offers))]
    times, spent = figures.spent_by_stage(plan)
    money, prefix = figures.money(plan.offers)
    bill = figures.marks(
        f"{money} by then",
        clock.all(times),
        spent,
        f"{prefix}%{{y:.4g}} at the end of the stage",
        mode="lines+markers",
        yaxis="y2",
        line={"color": figures.COLOURS[1]},
    )
    figure = figures.layout(
        400,
        barmode="overlay",
        xaxis=figures.time_axis(clock, end, limits.deadline),
        yaxis=figures.axis(
            "instances",
            range=[0, plan.peak_instances * 1.1],
            dtick=max(1, plan.peak_instances // 8),
        ),
        yaxis2=figures.cost_axis(
            *(plan.offers, spent[-1], limits.budget),
            overlaying="y",
            side="right",
            showgrid=False,
            tickmode="auto",
        ),
        **figures.limit_lines(
            limits, clock, dollars="y2", ends=(end, spent[-1]), cost=cost_format(plan.offers)
        ),
    )
    instances = count_noun(plan.peak_instances, "instance")
    says = f"{count_noun(len(plan.stages), 'stage')}, at most {instances}."
    return Figure([*traces, bill], figure, says)


def _offer(plan: Plan, number: int, clock: TimeUnit) -> Trace:
    """Return the bars of an offer, stacked on those of the previous offers."""
    offer = plan.offers[number]
    x = []
    base = []
    y = []
    height = []
    texts = []
    hover_texts = []
    for place, stage in enumerate(plan.stages, start=1):
        group = stage.group(offer)
        if group is None:
            continue
        low = sum(stage.fleet[other] for other in plan.offers[:number])
        x.append(clock.of(stage.seconds))
        base.append(clock.of(stage.begin))
        y.append(low + group.instances / 2)
        height.append(group.instances)
        trials = f"{count_noun(group.trials, 'trial')} at {gpus_text(group.width)}"
        texts.append(f"{place}: {trials}")
        epochs = f"epochs {stage.stage.start_epoch + 1} to {stage.stage.end_epoch}"
        hover_texts.append(
            f"stage {place}: {trials}, {epochs}<br>on {figures.plain(group_text(group))}<br>"
            f"{format_seconds(stage.seconds)}, {cost_format([offer])(stage.dollars)}, "
            f"busy {percent(stage.busy)}"
        )
    return {
        "type": "bar",
        "orientation": "h",
        "name": figures.plain(offer_text(offer)),
        "x": x,
        "base": base,
        "y": y,
        "width": height,
        "text": texts,
        **figures.WRITTEN,
        "customdata": hover_texts,
        "marker": {
            "color": figures.COLOURS[(0, 2, 3, 4, 6, 7)[number % 6]],
            "opacity": 0.75,
            "line": {"width": 1, "color": "#20262f"},
        },
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def forecast(proposal: Proposal) -> Figure:
    """Return the ranges of time and dollars of this plan and its alternatives."""
    this = proposal.plan if proposal.as_planned is None else proposal.as_planned
    plans = [("this plan", this), *((o.name, o.plan) for o in proposal.alternatives)]
    plans.reverse()  # the first on top
    limits = proposal.limits
    end = max(plan.forecast.seconds.p95 for _, plan in plans)
    most = max(plan.forecast.dollars.p95 for _, plan in plans)
    clock = TimeUnit.until(end)
    names = [figures.plain(name) for name, _ in plans]
    times = [plan.forecast.seconds for _, plan in plans]
    costs = [plan.forecast.dollars for _, plan in plans]
    time_line = figures.limit_lines(limits, clock, dollars="", ends=(end, most))
    cost = cost_format(this.offers)
    dollar_line = figures.limit_lines(
        limits, clock, time="", dollars="x2", ends=(end, most), cost=cost
    )
    figure = figures.layout(
        150 + 36 * len(plans),
        grid={"rows": 1, "columns": 2, "subplots": [["xy", "x2y"]], "xgap": 0.08},
        xaxis=figures.time_axis(clock, end, limits.deadline),
        xaxis2=figures.cost_axis(proposal.plan.offers, most, limits.budget),
        yaxis=figures.axis("", type="category"),
        shapes=[*time_line["shapes"], *dollar_line["shapes"]],
    )
    traces = [
        _ranges(names, [(clock.of(s.p5), clock.of(s.p50), clock.of(s.p95)) for s in times], "x"),
        _ranges(names, [(s.p5, s.p50, s.p95) for s in costs], "x2"),
    ]
    own = this.forecast
    seconds = f"{format_seconds(own.seconds.p5)} to {format_seconds(own.seconds.p95)}"
    dollars = f"{cost(own.dollars.p5)} to {cost(own.dollars.p95)}"
    says = f"This plan takes {seconds} and {dollars} (5th to 95th percentile; the mark: median)."
    return Figure(traces, figure, says)


def _ranges(
    names: Sequence[str], spreads: Sequence[tuple[float, float, float]], place: str
) -> Trace:
    up = [high - middle for _, middle, high in spreads]
    down = [middle - low for low, middle, _ in spreads]
    return figures.marks(
        "",
        [middle for _, middle, _ in spreads],
        names,
        "%{y}: %{x:.4g}",
        mode="markers",
        xaxis=place,
        error_x=_error(figures.PLAN, up, down),
        marker={
            "color": [figures.COLOURS[0]] * (len(names) - 1) + [figures.COLOURS[1]],
            "size": 10,
        },
        showlegend=False,
    )
