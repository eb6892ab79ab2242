"""A plan on one screen: what you get, the stages, the alternatives, and their basis.

At most 40 lines of 100 columns. `--verbose` and the HTML page show the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cloudtune.display import plan_tables
from cloudtune.display.alternatives_tables import difference
from cloudtune.display.plan_tables import STALE_DAYS
from cloudtune.display.terminal import Fact, Sheet, label_lines
from cloudtune.forecast.alternatives import NOTABLE, STATIC, Alternative, Point, for_one_screen
from cloudtune.forecast.proposal import Proposal
from cloudtune.forecast.staged_plans import LIKELY
from cloudtune.model.plans import Estimate, Limits, Plan, RunPlan, Spread
from cloudtune.model.scaling import PUBLISHED
from cloudtune.model.text import (
    EPOCHS,
    Scale,
    age_text,
    cost_format,
    count_noun,
    gpus_text,
    machine_text,
    percent,
    price_text,
    width_text,
)
from cloudtune.model.units import format_clock, format_seconds
from cloudtune.planners.reserve import MARGIN
from cloudtune.policy.registry import SEARCHES, origin

# The maximum number of rows of the table of stages; further stages share the last row.
_STAGES = 8
_NOTES = 3
# The maximum number of notes, and of speeds of different types.
_SPEEDS = 2
# The share of runs that may exceed the shown bound; with fewer than 20 runs, none does.
_RARE = 0.05


def title(proposal: Proposal) -> str:
    """Return the subject of the plan: how many trials, how far, and by which strategy."""
    plan = proposal.plan
    experiment = proposal.experiment
    scale = experiment.scale
    last = experiment.span.max
    if plan.strategy in SEARCHES:
        what = f"a search for the best model, at most {scale.counted(last)} a trial"
    elif plan.staged is None:
        what = f"up to {scale.counted(last)} a trial"
    else:
        trials = count_noun(proposal.trials or 0, "trial")
        what = f"{trials}, {scale.text(experiment.span.min)} to {scale.counted(last)} each, "
        what += f"1 in {experiment.eta} goes on"
    return f"Plan of {experiment.name}: {what} ({plan.by})"


def reason(proposal: Proposal) -> list[Fact]:
    """Return the reasons for strategy and deadline, if the limits decided them."""
    facts = []
    if proposal.chosen:
        facts.append(Fact("why", proposal.chosen))
    facts += label_lines("of", proposal.chosen_from)
    if proposal.derived:
        deadline = format_seconds(proposal.limits.deadline or 0.0)
        text = f"{deadline}: {proposal.derived}; set another with --deadline"
        facts.append(Fact("deadline", text))
    if paper := origin(proposal.plan.strategy):
        facts.append(Fact("strategy", paper))
    return facts


def expected_sheet(proposal: Proposal) -> Sheet:
    """Return time and cost: expected, in 19 of 20 runs, the limit, and how often it is kept."""
    plan = proposal.plan
    limits = proposal.limits
    forecast = plan.forecast
    estimate = plan.estimate
    in_time = _against(limits.deadline, forecast.in_time, format_seconds)
    # The deadline's clock: what is gone of it counts.
    seconds = proposal.elapsed + estimate.seconds
    latest = replace(forecast.seconds, p95=proposal.elapsed + forecast.seconds.p95)
    rows = [("time", *_bounds(seconds, latest, format_seconds), *in_time)]
    if not plan.free:
        cost = cost_format(plan.offers)
        in_money = _against(limits.budget, forecast.in_money, cost)
        rows.append(("cost", *_bounds(estimate.dollars, forecast.dollars, cost), *in_money))
    if plan.followed is None:
        scale = proposal.experiment.scale
        last = scale.counted(proposal.experiment.span.max)
        cap = "" if proposal.trials is None else f"{proposal.trials:,}"
        rows.append(("configurations", *_figures(forecast.trials), cap, ""))
        rows.append((f"{scale.unit}s of the best", *_figures(forecast.epochs, scale), last, ""))
    runs = "19 of 20 runs" if forecast.samples > 1 / _RARE else count_noun(forecast.samples, "run")
    columns = ("", "expected", runs, "limit", "kept in")
    return Sheet("", columns, tuple(rows), frozenset(columns))


def _bounds(value: float, spread: Spread, show: Callable[[float], str]) -> tuple[str, str]:
    """Return a figure as expected, and below what it is in 19 of 20 runs."""
    return show(value), f"below {show(spread.p95)}"


def _against(
    limit: float | None, chance: float | None, show: Callable[[float], str]
) -> tuple[str, str]:
    """Return a limit, and how often it is kept."""
    return "none" if limit is None else show(limit), "" if chance is None else percent(chance)


def _figures(spread: Spread, scale: Scale = EPOCHS) -> tuple[str, str]:
    """Return the median, and the lower bound for 19 of 20 runs."""
    return f"about {scale.text(spread.p50)}", f"at least {scale.text(spread.p5)}"


def facts(proposal: Proposal) -> list[Fact]:
    """Return how likely the limits are kept, the machines, and how good the plan is."""
    plan = proposal.plan
    forecast = plan.forecast
    lines: list[Fact] = []
    if forecast.within is not None:
        runs = count_noun(forecast.samples, "simulated run")
        limits = (
            "limits"
            if None in {proposal.limits.deadline, proposal.limits.budget}
            else "both limits"
        )
        rare = forecast.within < (proposal.confidence or LIKELY)
        asked = f" (asked: {percent(proposal.confidence)})" if proposal.confidence else ""
        kept = f"kept in {percent(forecast.within)} of {runs}{asked}"
        if plan.followed is not None and forecast.within < 1:
            kept += "; the others drop trials to keep them"
        lines.append(Fact(limits, kept, rare))
    gone = proposal.elapsed - (proposal.experiment.charges.head_start or 0.0)
    if gone >= 1 and proposal.limits.deadline is not None:
        lines.append(Fact("time", f"{format_seconds(gone)} of it are gone, and counted"))
    if forecast.results < 1:
        fruitless = f"in {percent(1 - forecast.results)} of them no trial finishes an epoch"
        lines.append(Fact("", fruitless, warning=True))
    lines.append(Fact("machines", machines(plan)))
    billing = dict.fromkeys(offer.billing for offer in plan.launches)
    unusual = [fact for fact in billing if not fact.startswith("by the second")]
    if unusual and not plan.free and not plan.in_gpu_hours:
        lines.append(Fact("billed", "; ".join(unusual)))
    charges = proposal.experiment.charges
    if charges.head is not None:
        head = f"the head, an instance for ${charges.head:,.4g} an hour, controls the run"
        if charges.head_start and proposal.limits.deadline is not None:
            head += f"; about {format_seconds(charges.head_start)} of the deadline start it"
        lines.append(Fact("head", head))
    if proposal.experiment.strategy.target is not None:
        lines.append(Fact("target", plan_tables.target_text(proposal)))
    if plan.followed is not None and not plan.free:
        proven = plan_tables.quality(plan, proposal.objective or "")
        offers = count_noun(proposal.considered, "offer")
        lines.append(Fact("quality", f"{proven} of {offers}, by the speeds and prices below"))
    lines += label_lines("mind", proposal.remarks)
    lines += _missing(proposal)
    return lines


def _missing(proposal: Proposal) -> Iterator[Fact]:
    """Yield what the run won't have at its end."""
    if proposal.short_of:
        yield Fact("short", f"no trial can reach the end: {proposal.short_of}", warning=True)
    if proposal.unsaved:
        yield Fact("model", proposal.unsaved, warning=True)


def machines(plan: RunPlan) -> str:
    """Return the maximum number of machines by type, with their prices."""
    if plan.followed is None:
        counts = {kind.offer: kind.instances for kind in plan.fleet}
    else:
        counts = {offer: max(sizes) for offer, sizes in plan.followed.sizes.items()}
    parts = []
    for offer, count in counts.items():
        market = "" if offer.market == "on-demand" else offer.market
        name = machine_text(offer.instance_type.name, market, offer.zone)
        parts.append(f"{count} x {name} ({price_text(offer)})")
    return "at most " + " and ".join(parts) if parts else f"at most {plan.max_instances}"


def fleet(plan: Plan) -> str:
    """Return the largest fleet, briefly: "2 g4dn.xlarge + 1 g4dn.12xlarge spot"."""
    parts = []
    for offer, sizes in plan.sizes.items():
        market = "" if offer.market == "on-demand" else offer.market
        parts.append(f"{max(sizes)} {machine_text(offer.instance_type.name, market, '')}")
    return " + ".join(parts)


def stages(proposal: Proposal, plan: Plan) -> Sheet:
    """Return the stages, one row each, in at most eight rows."""
    scale = proposal.experiment.scale
    cost = cost_format(plan.offers)
    rows: list[tuple[str, ...]] = []
    for number, stage in enumerate(plan.stages, start=1):
        groups = stage.groups
        widths = dict.fromkeys(width_text(group.width) for group in groups)
        on = " + ".join(f"{group.instances} {group.offer.instance_type.name}" for group in groups)
        rows.append(
            (
                f"{number}",
                f"{stage.stage.trials}",
                scale.span(stage.stage.start_epoch + 1, stage.stage.end_epoch),
                ", ".join(widths),
                on,
                format_clock(stage.begin),
                format_seconds(stage.seconds),
                cost(stage.dollars),
                f"{100 * stage.busy:.0f} %",
            )
        )
    if len(rows) > _STAGES:
        left = len(rows) - _STAGES + 1
        rows[_STAGES - 1 :] = [("…", f"{left} more", *[""] * 7)]
    columns = (
        *("stage", "trials", f"{scale.unit}s", "GPUs each", "machines"),
        *("begins", "takes", "costs", "busy"),
    )
    wide = frozenset({"machines"})
    sheet = Sheet("", columns, tuple(rows), frozenset({"stage", "machines"}), wide)
    return sheet.without("costs") if proposal.plan.free else sheet


def instead(proposal: Proposal) -> Sheet | None:
    """Return two or three plans to choose instead; None if there are none."""
    is_search = proposal.plan.followed is None
    rows = list((_searches if is_search else _stages_instead)(proposal))
    if not rows:
        return None
    if proposal.plan.followed is None:
        columns = (
            "Instead",
            "configurations",
            f"{proposal.experiment.scale.unit}s of the best",
            "time",
            "cost",
        )
    else:
        columns = ("Instead", "machines at most", "time", "cost", "against this plan")
    left = frozenset({"Instead", "machines at most", "against this plan"})
    sheet = Sheet("", columns, tuple(rows), left, frozenset({"machines at most", "Instead"}))
    return sheet.without("cost") if proposal.plan.free else sheet


def _searches(proposal: Proposal) -> Iterator[tuple[str, ...]]:
    """Yield what half and twice the budget would change, and the other market."""
    limits = proposal.limits
    cost = cost_format(proposal.plan.offers)
    for other in proposal.alternatives:
        forecast = other.plan.forecast
        yield (
            _alternative_name(other, limits, cost),
            f"{forecast.trials.p50:,.0f}",
            proposal.experiment.scale.text(forecast.epochs.p50),
            format_seconds(forecast.seconds.p50),
            cost(forecast.dollars.p50),
        )


def _alternative_name(other: Alternative, limits: Limits, cost: Callable[[float], str]) -> str:
    """Return an alternative with its own limit: "half the budget, $0.50"."""
    kind, _, what = other.name.partition(" the ")
    if what not in {"budget", "deadline"}:
        return f"{other.name} ({_limits_cell(other)})"
    value = getattr(limits, what) * (0.5 if kind == "half" else 2.0)
    shown = cost(value) if what == "budget" else format_seconds(value)
    return f"{other.name}, {shown}"


def _limits_cell(other: Alternative) -> str:
    within = other.plan.forecast.within
    return "limits kept" if within is None else f"limits kept in {percent(within)}"


def _stages_instead(proposal: Proposal) -> Iterator[tuple[str, ...]]:
    """Yield the next faster and the next cheaper plan, a fixed cluster, and the other market."""
    chosen = proposal.plan.estimate
    steady = proposal.plan.forecast.source == "stages"
    cost = cost_format(proposal.plan.offers)
    for name, point in _neighbours(proposal) if steady else ():
        over = proposal.broken(point.plan)
        hint = f"over the {over[0]}" if over else f"--point {point.number}"
        yield _line(f"{name} ({hint})", fleet(point.staged), point.plan.estimate, chosen, cost)
    by_name = {other.name: other for other in proposal.alternatives}
    for name in for_one_screen(proposal.plan):
        other = by_name.get(name)
        if other is None or other.plan.followed is None:
            continue
        label = "one fixed cluster" if name == STATIC else name
        broken = proposal.broken(other.plan)
        forecast = other.plan.forecast
        if broken and forecast.source != "stages":
            # Its runs drop trials to end in time: their cost isn't that of the same work.
            label += f" (all of the work fits in {percent(forecast.within or 0.0)} of the runs)"
            yield label, fleet(other.plan.followed), "", "", ""
            continue
        if broken:
            label += f" (over the {broken[0]})"
        elif name != STATIC:
            label += f" ({_limits_cell(other)})"
        yield _line(label, fleet(other.plan.followed), other.plan.estimate, chosen, cost)


def _line(
    label: str, fleet: str, estimate: Estimate, chosen: Estimate, cost: Callable[[float], str]
) -> tuple[str, ...]:
    return (
        label,
        fleet,
        format_seconds(estimate.seconds),
        cost(estimate.dollars),
        difference(estimate, chosen, cost),
    )


def _neighbours(proposal: Proposal) -> Iterator[tuple[str, Point]]:
    """Yield the nearest points of the front that are clearly faster, and clearly cheaper."""
    chosen = proposal.plan.estimate
    for point in reversed(proposal.front):
        if point.plan.estimate.seconds < (1 - NOTABLE) * chosen.seconds:
            yield "faster", point
            break
    for point in proposal.front:
        if point.plan.estimate.dollars < (1 - NOTABLE) * chosen.dollars:
            yield "cheaper", point
            break


def rests_on(proposal: Proposal) -> list[Fact]:
    """Return the sources of speeds and prices, what is left out, and the worst-case bill."""
    prices = proposal.prices
    plan = proposal.plan
    stale = prices.age_days > STALE_DAYS
    source = prices.source.partition(" (")[0]
    old = f" ({age_text(prices.age_days)}: `cloudtune catalog --refresh`)" * stale
    lines = [Fact("speed", _speed(proposal))]
    if not plan.free and not plan.in_gpu_hours:
        lines.append(Fact("prices", f"{source}, {prices.as_of}{old}", stale))
        lines += [Fact("", warning, warning=True) for warning in prices.warnings]
    if plan.followed is not None:
        sure = proposal.confidence
        held = (
            f"{MARGIN:.0%} of each limit is kept in reserve"
            if sure is None
            else "none but the spread"
        )
        lines.append(Fact("margin", held))
    if not plan.free:
        lines.append(Fact("worst case", _worst(proposal)))
    notes = proposal.notes
    if len(notes) > _NOTES:
        notes = (*notes[: _NOTES - 1], f"{len(notes) - _NOTES + 1} more notes: --verbose")
    lines += label_lines("note", notes)
    return lines


def _speed(proposal: Proposal) -> str:
    """Return the seconds of an epoch by type, their uncertainty, and where they were observed."""
    scale = proposal.experiment.scale
    types: dict[str, list[str]] = {}
    for note in proposal.profiles:
        seconds = format_seconds(note.epoch_seconds)
        gpus = gpus_text(note.width)
        takes = f"{seconds} for {scale.counted(1)} on {gpus}"
        types.setdefault(takes, []).append(note.instance_type)
    texts = [f"{takes} of {' or '.join(names)}" for takes, names in types.items()]
    if len(texts) > _SPEEDS:
        texts[_SPEEDS - 1 :] = [f"{len(texts) - _SPEEDS + 1} more"]
    error = max((note.error for note in proposal.profiles), default=0.0)
    # Assumed figures are off by a factor, which their basis says.
    about = f" ± {percent(error)}" if 0 < error < 1 else ""
    return f"{'; '.join(texts)}{about} ({proposal.basis.text})"


def _worst(proposal: Proposal) -> str:
    cost = cost_format(proposal.plan.offers)
    dollars = cost(proposal.worst_dollars)
    if proposal.limits.budget is None:
        return f"{dollars}: {proposal.worst_why}"
    launches = count_noun(sum(proposal.plan.launches.values()), "instance")
    budget = cost(proposal.limits.budget)
    dies = f"if this machine dies and leases have to end its {launches}"
    return f"the run stops below {budget}; {dollars} {dies}"


def next_step(proposal: Proposal, command: Sequence[str]) -> list[Fact]:
    """Return the commands to type next; `command` are the words after `cloudtune plan`."""
    run = " ".join(command)
    if PUBLISHED in proposal.basis.kinds and "--profile" in command:  # a run refuses it
        place = command.index("--profile")
        run = " ".join((*command[:place], *command[place + 2 :])) + "  # at your script's own speed"
    return [
        Fact("run it", f"cloudtune run {run}"),
        Fact("details", f"cloudtune plan {' '.join(command)} --verbose"),
    ]
