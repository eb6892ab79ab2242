"""The parts of a proposal as labelled lines and tables of text, for the terminal and for HTML."""

from collections.abc import Callable, Iterator, Sequence

from cloudtune.display.terminal import Fact, Sheet, beside, label_lines
from cloudtune.forecast.proposal import PriceNote, ProfileNote, Proposal
from cloudtune.forecast.staged_plans import LIKELY
from cloudtune.model.plans import BY_PLAN, Forecast, Plan, RunPlan, Spread, StagePlan
from cloudtune.model.scaling import ASSUMED, PUBLISHED
from cloudtune.model.text import (
    EPOCHS,
    Scale,
    age_text,
    cost_format,
    count_noun,
    group_text,
    limits_text,
    offer_text,
    percent,
    price_text,
    proof,
    width_text,
)
from cloudtune.model.units import format_clock, format_seconds
from cloudtune.policy.registry import origin
from cloudtune.runs import home
from cloudtune.runs.job import named_sampler
from cloudtune.runs.report import Report

_ROUNDING = 1e-6
# Prices older than this many days get a warning.
STALE_DAYS = 30


_ASKED = {
    "cost": "the least cost within the limits",
    "time": "the least time within the limits",
    "trials": "the most exploration within the limits",
}
SUPERLATIVES = {"cost": "cheapest", "time": "fastest"}


def header(proposal: Proposal) -> list[Fact]:
    """Return the request, and the basis of the answer."""
    plan = proposal.plan
    experiment = proposal.experiment
    concurrent = experiment.strategy.max_concurrent
    target = experiment.strategy.target
    return [
        Fact("job", _job(proposal)),
        *deciders(plan, experiment.scale),
        *([] if concurrent is None else [Fact("", f"at most {concurrent} trials at once")]),
        *([] if target is None else [Fact("", target_text(proposal))]),
        *([] if proposal.objective is None else [Fact("asked", _objective_text(proposal))]),
        Fact("limits", _limits(proposal)),
        *price_facts(proposal.prices),
        *speed_facts(proposal.profiles),
    ]


def deciders(plan: RunPlan, scale: Scale = EPOCHS) -> list[Fact]:
    """Return what decides which trials train, how wide they are, and on how many instances."""
    return [
        Fact("strategy", f"{plan.by}: {_how(plan, scale)}"),
        *([Fact("", origin(plan.strategy))] if origin(plan.strategy) else []),
        Fact("", _widths_and_fleet(plan)),
    ]


def _widths_and_fleet(plan: RunPlan) -> str:
    below = "as planned below"  # every screen with this line shows the stages next
    gpus = below if plan.allocator == BY_PLAN else f"by the {plan.allocator} allocator"
    instances = below if plan.fleet_rule == BY_PLAN else f"by the {plan.fleet_rule} fleet rule"
    if gpus == instances:
        return f"GPUs each and instances {below}"
    return f"GPUs each {gpus}, instances {instances}"


def _job(proposal: Proposal) -> str:
    experiment = proposal.experiment
    span = experiment.span
    scale = experiment.scale
    if proposal.trials is None:
        count = "as many trials as the limits allow"
    else:
        count = "" if proposal.plan.staged else "up to "
        count += count_noun(proposal.trials, "trial")
    epochs = f"{scale.unit}s {scale.text(span.min)} to {scale.text(span.max)}"
    return f"{count} ({named_sampler(experiment)[0]} sampler), {epochs}, eta {experiment.eta}"


def target_text(proposal: Proposal) -> str:
    """Return the value of the metric that ends the run; only for a run with a target."""
    experiment = proposal.experiment
    return f"ends as soon as {experiment.metric.name} is {experiment.strategy.target:g}"


def _how(plan: RunPlan, scale: Scale) -> str:
    if plan.staged is None:
        return "decides as results come in, so there are no stages beforehand"
    last = plan.staged.stages[-1].stage.end_epoch
    first = "" if plan.followed else "as first planned "
    return f"{first}{count_noun(len(plan.staged.stages), 'stage')}, up to {scale.at(last)}"


def _objective_text(proposal: Proposal) -> str:
    asked = _ASKED.get(proposal.objective or "", "the best")
    staged = proposal.plan.staged
    if proposal.plan.free and proposal.objective == "cost":
        asked = "the shortest time, as nothing costs anything"
    planner = f"; {staged.planner} planner" if staged else ""
    return f"{asked}{planner}, {count_noun(proposal.considered, 'offer')} considered"


def price_facts(prices: PriceNote) -> list[Fact]:
    """Return the source of the prices."""
    stale = prices.age_days > STALE_DAYS
    age = age_text(prices.age_days) + (": they may have changed" if stale else "")
    return [
        Fact("prices", f"{prices.source}, {prices.as_of} ({age})", stale),
        *(Fact("", warning, warning=True) for warning in prices.warnings),
    ]


def _limits(proposal: Proposal) -> str:
    limits = limits_text(
        proposal.limits.deadline, proposal.limits.budget, cost_format(proposal.plan.offers)
    )
    if proposal.confidence is None or limits == "none":
        return limits
    return f"{limits}; to be kept with a probability of {percent(proposal.confidence)}"


def speed_facts(notes: Sequence[ProfileNote]) -> Iterator[Fact]:
    """Yield the sources of the script's speed."""
    for number, note in enumerate(notes):
        age = "" if note.age_days is None else f" ({age_text(note.age_days)})"
        origin = f"{note.text}: " if note.text else ""
        text = f"{note.instance_type}: {origin}{note.source}"
        if note.measured_at:
            text += f", {note.measured_at}{age}"
        derived = note.provenance.on not in {"", note.instance_type}
        if note.error > 0:
            what = "derived, not measured: " * derived
            text += f"; {what}speed uncertain by {percent(note.error)}"
        others = derived or note.provenance.origin in {ASSUMED, PUBLISHED}
        yield Fact("" if number else "speed", text, note.error > 0 and others)
        yield from (Fact("", line) for line in note.seen_text)


def stages_sheet(proposal: Proposal) -> Sheet:
    """Return the stages of a proposal that has some."""
    plan = proposal.plan
    assert plan.staged is not None
    scale = proposal.experiment.scale
    return stages(plan.staged, proposal.basis.text, free=plan.free, scale=scale)


def stages(plan: Plan, basis: str = "", *, free: bool = False, scale: Scale = EPOCHS) -> Sheet:
    """Return the stages, a row for each group; time and cost are the stage's."""
    rows = [row for n, stage in enumerate(plan.stages, start=1) for row in _rows(n, stage, scale)]
    total = (
        *("total", "", "", "", "", ""),
        format_seconds(plan.estimate.seconds),
        cost_format(plan.offers)(plan.estimate.dollars),
        "",
    )
    columns = (
        *("stage", "trials", f"{scale.unit}s", "GPUs each", "instances"),
        *("start", "time", "cost", "busy"),
    )
    sheet = Sheet(
        title=beside("Stages", basis),
        columns=columns,
        rows=(*rows, total),
        left=frozenset({"stage", "instances"}),
        wraps=frozenset({"instances"}),
        total=True,
    )
    return sheet.without("cost") if free else sheet


def _rows(number: int, stage: StagePlan, scale: Scale) -> Iterator[tuple[str, ...]]:
    """Yield a row for each group; the first has the stage's values."""
    first = str(number)
    epochs = scale.span(stage.stage.start_epoch + 1, stage.stage.end_epoch)
    taken = (
        format_clock(stage.begin),
        format_seconds(stage.seconds),
        cost_format(group.offer for group in stage.groups)(stage.dollars),
        f"{100 * stage.busy:.0f} %",
    )
    for group in stage.groups:
        waves = f" in {group.waves} waves" if group.waves > 1 else ""
        width = width_text(group.width)
        yield first, f"{group.trials}{waves}", epochs, width, group_text(group), *taken
        first = epochs = ""
        taken = ("", "", "", "")


_COUNT = "{:,.4g}".format


def _figures(plan: RunPlan, scale: Scale) -> Iterator[tuple[str, str, Callable[[float], str]]]:
    """Yield the label, the name and the format of each figure of a plan's forecast."""
    yield "time", "seconds", format_seconds
    if not plan.free:
        yield "cost", "dollars", cost_format(plan.offers)
    yield "trials started", "trials", _COUNT
    yield f"{scale.unit}s of the best", "epochs", scale.text
    yield "GPU-hours paid", "gpu_hours", _COUNT
    yield "instances at most", "instances", _COUNT


_SOURCES = {
    "stages": "Forecast of {samples:,} simulated runs (seed {seed})",
    "runs": "Forecast: the same policy in {samples:,} simulated runs, with made-up metrics",
    "policy": "Forecast: the same policy in {samples:,} simulated runs, with made-up metrics",
    "pools": "Forecast: the same policy in {samples:,} simulated runs, on spot that comes and goes",
}


def forecast(proposal: Proposal) -> Sheet:
    """Return the figures of the simulated runs, against the limits."""
    outcome = proposal.plan.forecast
    limits = proposal.limits
    kept = {
        "seconds": (limits.deadline, outcome.in_time),
        "dollars": (limits.budget, outcome.in_money),
    }
    rows = tuple(
        (
            label,
            *_quantiles(outcome, name, show),
            *_against_limit(getattr(outcome, name), show, *kept.get(name, (None, None))),
        )
        for label, name, show in _figures(proposal.plan, proposal.experiment.scale)
    )
    columns = ("", "p5", "p50", "p95", "limit", "slack at p95", "kept in")
    title = _SOURCES[outcome.source].format(samples=outcome.samples, seed=outcome.seed)
    return Sheet(beside(title, proposal.basis.text), columns, rows, frozenset({""}))


def _quantiles(forecast: Forecast, name: str, show: Callable[[float], str]) -> tuple[str, ...]:
    spread: Spread = getattr(forecast, name)
    return show(spread.p5), show(spread.p50), show(spread.p95)


def _against_limit(
    spread: Spread, show: Callable[[float], str], limit: float | None, chance: float | None
) -> tuple[str, str, str]:
    if limit is None or chance is None:
        return ("", "", "")
    return (show(limit), show(limit - spread.p95), percent(chance))


def against(report: Report, title: str, word: str) -> Sheet:
    """Return a run's figures beside its forecast; `word` is the name of their column."""
    plan = report.job.plan
    rows = tuple(
        (label, *_quantiles(plan.forecast, name, show), show(getattr(report.figures, name)))
        for label, name, show in _figures(plan, report.job.experiment.scale)
    )
    columns = ("", "forecast p5", "p50", "p95", word)
    return Sheet(f"{title}: forecast / {word}", columns, rows, frozenset({""}))


def rungs(report: Report) -> Sheet:
    """Return for each rung how many trials reached it, the best metric, GPU-hours and times."""
    scale = report.job.experiment.scale
    body = tuple(
        (
            scale.text(row.epoch),
            f"{row.trials}",
            "-" if row.best is None else f"{row.best:.4f}",
            f"{row.gpu_hours:.4f}",
            "-" if row.first_at is None else format_clock(row.first_at),
            "-" if row.last_at is None else format_clock(row.last_at),
        )
        for row in report.rungs
    )
    best = f"best {report.metric}"
    columns = (scale.unit, "trials there", best, "GPU-hours trained", "first", "last")
    return Sheet("How far the trials came", columns, body)


def certainty(proposal: Proposal) -> list[Fact]:
    """Return how likely the limits are kept, how near the plan is to the best, what it wastes."""
    plan = proposal.plan
    facts = [*_chance(proposal), Fact("quality", _quality(proposal))]
    facts += label_lines("unsure", proposal.unsure)
    if plan.followed is not None:
        overhead = format_seconds(sum(stage.overhead for stage in plan.followed.stages))
        facts.append(Fact("start-up", f"{overhead} of the time passes before trials train"))
    return facts


def _chance(proposal: Proposal) -> Iterator[Fact]:
    """Yield how likely the limits are kept, and, if that isn't certain, that there are results."""
    forecast = proposal.plan.forecast
    asked = proposal.confidence
    parts = []
    chances = []
    if forecast.within is not None:
        both = None not in {proposal.limits.deadline, proposal.limits.budget}
        limits = "both limits are" if both else "the limit is"
        parts.append(f"{limits} kept in {percent(forecast.within)} of them")
        chances.append(forecast.within)
    if forecast.source == "policy":
        parts.append(f"a trial finishes an epoch in {percent(forecast.results)}")
        chances.append(forecast.results)
    if not parts:
        return
    text = ", ".join(parts)
    rare = min(chances) < (asked or LIKELY)
    if asked is not None:
        text += f" (asked: {percent(asked)})"
    elif rare and forecast.source != "policy":
        text += "; --confidence asks for a higher probability"
    yield Fact("chance", text, rare)


def _quality(proposal: Proposal) -> str:
    plan = proposal.plan
    if plan.followed is None:
        return f"{proof(plan)}: the limits hold, as the run ends before it would pass one"
    if plan.free:
        return "every plan here costs nothing"
    proven = quality(plan, proposal.objective or "")
    among = f"of {count_noun(proposal.considered, 'offer')}, by these figures"
    return f"{proven} {among}: {proposal.basis.text}"


def quality(plan: RunPlan, objective: str) -> str:
    """Return how near the stages of a plan are to the best ones; on spot nothing is proven."""
    assert plan.followed is not None
    if plan.forecast.source == "pools":
        word = SUPERLATIVES.get(objective, "best")
        return f"the {word} while spot lasts (with outages not proven)"
    return gap_text(plan.followed, objective)


def gap_text(plan: Plan, objective: str) -> str:
    """Return how near a plan is to the best one: proven, bounded, or unknown."""
    word = SUPERLATIVES.get(objective, "best")
    if plan.gap is None:
        return f"heuristic: not proven to be the {word}"
    if plan.gap <= 0:
        return f"proven {word} (gap 0)"
    cut = "search cut short: " if plan.status == "feasible" else ""
    return f"{cut}at most {percent(plan.gap)} above the best possible"


def creation(proposal: Proposal) -> list[Fact]:
    """Return what a run would create, for how long, and the most that it could cost."""
    plan = proposal.plan
    most = "" if plan.followed else "up to "
    machines = [
        f"{most}{count} x {offer_text(offer)} at {price_text(offer)}"
        for offer, count in plan.launches.items()
    ]
    worst = f"{cost_format(plan.offers)(proposal.worst_dollars)}: {proposal.worst_why}"
    head = "one process on this machine"
    price = proposal.experiment.charges.head
    if price is not None:
        head = f"the head, an instance for ${price:,.4g} an hour; this machine may sleep"
    billing = () if plan.free else dict.fromkeys(offer.billing for offer in plan.launches)
    by = f"by the {plan.fleet_rule} fleet rule; never more than {plan.max_instances} in all"
    return [
        *label_lines("launches" if plan.followed else "rents", machines),
        Fact("", f"at most {count_noun(plan.peak_instances, 'instance')} at once {by}"),
        *label_lines("billed", billing),
        *_caps(proposal),
        Fact("head", head),
        Fact("checkpoints", home.storage(proposal.experiment.storage)),
        *_charges(proposal),
        *([] if plan.free else [Fact("worst case", worst)]),
        *label_lines("assumes", proposal.assumptions),
    ]


def _caps(proposal: Proposal) -> Iterator[Fact]:
    """Yield the latest end of the run, and its highest cost."""
    plan = proposal.plan
    deadline = proposal.limits.deadline
    budget = proposal.limits.budget
    if deadline is None:
        yield Fact("over", "when nothing is left to train, or the budget is spent")
    else:
        yield Fact("over", f"after {format_seconds(deadline)} at the latest")
    if plan.free:
        yield Fact("costs", "nothing: this machine has no price, and no charges are named")
        return
    cost = cost_format(plan.offers)
    if budget is None:
        yield Fact("costs", "as much as it takes until then: no budget is set", warning=True)
    else:
        yield Fact("costs", f"at most {cost(budget)}: the budget")
    if deadline is not None:
        whole = cost(deadline * plan.usd_per_second)
        yield Fact("", f"its largest fleet until the deadline would be {whole}")


def _charges(proposal: Proposal) -> Iterator[Fact]:
    charges = proposal.plan.charges
    head = proposal.experiment.charges.head or 0.0
    hourly = charges.usd_per_second * 3600 - head
    added = max((offer.added_usd_per_hour for offer in proposal.plan.offers), default=0.0)
    parts = [
        *([f"${added:,.3g} per instance-hour"] if added else []),
        *([f"${charges.usd_per_launch:,.3g} per launch"] if charges.usd_per_launch else []),
        *([f"${hourly:,.3g} per hour"] if hourly > _ROUNDING else []),
    ]
    named = f"{' and '.join(parts)} for disks, data and storage" if parts else ""
    if included := [part for part in (named, "the head" if head else "") if part]:
        yield Fact("cost includes", f"instances, and {', and '.join(included)}")
