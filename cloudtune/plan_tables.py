"""The parts of a proposal as labelled lines and tables of text, for the terminal and for HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.phrases import (
    age_text,
    counted,
    fleet_text,
    group_text,
    offer_text,
    percent,
    price_text,
    width_text,
)
from cloudtune.units import format_clock, format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cloudtune.plan import Estimate, Group, Limits, Outlook, Plan, Spread, StagePlan
    from cloudtune.proposal import Comparison, PriceNote, ProfileNote, Proposal

STALE_DAYS = 30
"""Prices older than that are told with a warning."""

_ASKED = {
    "cost": "the least cost within the limits",
    "time": "the least time within the limits",
    "trials": "the most exploration within the limits",
}
_LIKELY = 0.5
"""A plan that keeps its limits more rarely than this comes with a warning."""
_SUPERLATIVES = {"cost": "cheapest", "time": "fastest"}


class Fact(NamedTuple):
    """A labelled line; an empty label goes on with the one above."""

    label: str
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    The columns named in `left` are aligned to the left, the others right; those in `wraps` may take
    several lines where room is short. `total` says that the last row sums the others up.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str] = frozenset()
    wraps: frozenset[str] = frozenset()
    total: bool = False


def header(proposal: Proposal) -> list[Fact]:
    """Return what was asked, and what the answer rests on."""
    stages = proposal.plan.stages
    asked = _ASKED.get(proposal.objective, proposal.objective)
    return [
        Fact(
            "job",
            f"{counted(proposal.trials, 'trial')}, {proposal.strategy} (eta {proposal.eta}): "
            f"{counted(len(stages), 'stage')}, up to epoch {stages[-1].stage.end_epoch}",
        ),
        Fact(
            "asked",
            f"{asked}; {proposal.planner} planner, {counted(proposal.considered, 'offer')} "
            "considered",
        ),
        Fact("limits", _limits(proposal)),
        *price_facts(proposal.prices),
        *speed_facts(proposal.profiles),
    ]


def price_facts(prices: PriceNote) -> list[Fact]:
    """Return where the prices come from."""
    stale = prices.age_days > STALE_DAYS
    age = age_text(prices.age_days) + (": they may have changed" if stale else "")
    return [
        Fact("prices", f"{prices.source}, {prices.as_of} ({age})", stale),
        *(Fact("", warning, warning=True) for warning in prices.warnings),
    ]


def _limits(proposal: Proposal) -> str:
    limits = limits_text(proposal.limits)
    if proposal.confidence is None or limits == "none":
        return limits
    return f"{limits}; to be kept with a probability of {percent(proposal.confidence)}"


def limits_text(limits: Limits) -> str:
    """Return "deadline 2h, budget $40.00", or "none"."""
    parts = [
        *([f"deadline {format_seconds(limits.deadline)}"] if limits.deadline is not None else []),
        *([f"budget {format_dollars(limits.budget)}"] if limits.budget is not None else []),
    ]
    return ", ".join(parts) or "none"


def speed_facts(notes: Sequence[ProfileNote]) -> Iterator[Fact]:
    """Yield where what is known of the script's speed comes from."""
    for number, note in enumerate(notes):
        age = "" if note.age_days is None else f" ({age_text(note.age_days)})"
        text = f"{note.instance_type}: {note.source}, {note.measured_at}{age}"
        if note.error > 0:
            text += f"; derived, not measured: speed uncertain by {percent(note.error)}"
        yield Fact("" if number else "speed", text, note.error > 0)


def stages(plan: Plan) -> Sheet:
    """Return the stages, a row for each group of one; time and cost are the stage's."""
    rows = [
        (*row, *(_taken(stage) if first else ("", "", "", "")))
        for number, stage in enumerate(plan.stages, start=1)
        for first, row in _groups(number, stage)
    ]
    total = (
        *("total", "", "", "", "", ""),
        format_seconds(plan.estimate.seconds),
        format_dollars(plan.estimate.dollars),
        "",
    )
    columns = (
        *("stage", "trials", "epochs", "GPUs each", "instances"),
        *("start", "time", "cost", "busy"),
    )
    return Sheet(
        title="Stages",
        columns=columns,
        rows=(*rows, total),
        left=frozenset({"stage", "instances"}),
        wraps=frozenset({"instances"}),
        total=True,
    )


def _groups(number: int, stage: StagePlan) -> Iterator[tuple[bool, tuple[str, ...]]]:
    epochs = f"{stage.stage.start_epoch + 1}-{stage.stage.end_epoch}"
    for place, group in enumerate(stage.groups):
        first = place == 0
        yield (
            first,
            (
                str(number) if first else "",
                _trials(group),
                epochs if first else "",
                width_text(group.width),
                group_text(group),
            ),
        )


def _trials(group: Group) -> str:
    return f"{group.trials}" + (f" in {group.waves} waves" if group.waves > 1 else "")


def _taken(stage: StagePlan) -> tuple[str, ...]:
    return (
        format_clock(stage.begin),
        format_seconds(stage.seconds),
        format_dollars(stage.dollars),
        f"{100 * stage.busy:.0f} %",
    )


def totals(proposal: Proposal) -> Sheet:
    """Return mean, median and 95th percentile of time and cost, against the limits."""
    limits, outlook = proposal.limits, proposal.outlook
    rows = (
        _spread("time", outlook.seconds, format_seconds, limits.deadline, outlook.in_time),
        _spread("cost", outlook.dollars, format_dollars, limits.budget, outlook.in_money),
    )
    columns = ("", "mean", "p50", "p95", "limit", "slack at p95", "kept in")
    title = f"Forecast of {outlook.samples:,} simulated runs (seed {outlook.seed})"
    return Sheet(title, columns, rows, frozenset({""}))


def _spread(
    name: str,
    spread: Spread,
    show: Callable[[float], str],
    limit: float | None,
    chance: float | None,
) -> tuple[str, ...]:
    return (
        name,
        *(show(value) for value in (spread.mean, spread.p50, spread.p95)),
        "none" if limit is None else show(limit),
        "-" if limit is None else show(limit - spread.p95),
        "-" if chance is None or limit is None else percent(chance),
    )


def certainty(proposal: Proposal) -> list[Fact]:
    """Return how sure the limits are kept, how near the plan is to the best, what it wastes."""
    plan, within = proposal.plan, proposal.outlook.within
    facts = [Fact("quality", gap_text(plan, proposal.objective))]
    if within is not None:
        both = None not in {proposal.limits.deadline, proposal.limits.budget}
        kept = f"{'both limits are' if both else 'the limit is'} kept in {percent(within)} of them"
        asked = proposal.confidence
        text = kept if asked is None else f"{kept} (asked: {percent(asked)})"
        rare = within < (_LIKELY if asked is None else asked)
        if rare and asked is None:
            text += "; --confidence plans for being surer"
        facts.insert(0, Fact("chance", text, rare))
    overhead = format_seconds(sum(stage.overhead for stage in plan.stages))
    facts.append(Fact("start-up", f"{overhead} of the time goes by before trials train"))
    return facts


def gap_text(plan: Plan, objective: str) -> str:
    """Return how near a plan is to the best one: proven, bounded, or nobody knows."""
    word = _SUPERLATIVES.get(objective, "best")
    if plan.gap is None:
        return f"heuristic: not proven to be the {word}"
    if plan.gap <= 0:
        return f"proven {word} (gap 0)"
    cut = "search cut short: " if plan.status == "feasible" else ""
    return f"{cut}at most {percent(plan.gap)} above the best possible"


def alternatives(proposal: Proposal) -> Sheet:
    """Return what else could be done, and what each costs or saves against the choice."""
    chosen = proposal.plan
    rows = [_alternative(proposal, "this plan", chosen, proposal.outlook, "")]
    rows += [
        _alternative(
            proposal,
            other.name,
            other.plan,
            other.outlook,
            difference(other.plan.estimate, chosen.estimate),
        )
        for other in proposal.alternatives
    ]
    return Sheet(
        title="Alternatives",
        columns=("plan", "machines", "time", "cost", "p95 cost", "against this plan", "limits"),
        rows=tuple(rows),
        left=frozenset({"plan", "machines", "against this plan", "limits"}),
        wraps=frozenset({"plan", "machines"}),
    )


def _alternative(
    proposal: Proposal, name: str, plan: Plan, outlook: Outlook | None, instead: str
) -> tuple[str, ...]:
    broken = proposal.broken(plan, outlook)
    unlimited = limits_text(proposal.limits) == "none"
    return (
        name,
        fleet_text(plan),
        *_price(plan.estimate),
        "-" if outlook is None else format_dollars(outlook.dollars.p95),
        instead,
        "-" if unlimited else f"over {' and '.join(broken)}" if broken else "kept",
    )


def difference(other: Estimate, chosen: Estimate) -> str:
    """Return what another plan costs more and how much sooner it ends: "+$1.20, 12m sooner"."""
    dollars, seconds = other.dollars - chosen.dollars, other.seconds - chosen.seconds
    parts = []
    if abs(dollars) >= 0.0005:
        parts.append(f"{'+' if dollars > 0 else ''}{format_dollars(dollars)}")
    if abs(seconds) >= 0.5:
        parts.append(f"{format_seconds(abs(seconds))} {'later' if seconds > 0 else 'sooner'}")
    return ", ".join(parts) or "the same"


def creation(proposal: Proposal) -> list[Fact]:
    """Return what a run of the plan would create, and the worst that it could cost."""
    plan = proposal.plan
    launches = [
        f"{count} x {offer_text(offer)} at {price_text(offer)}"
        for offer, count in plan.launches.items()
    ]
    return [
        *(Fact("" if n else "launches", text) for n, text in enumerate(launches)),
        Fact("", f"at most {counted(plan.most_instances, 'instance')} at once"),
        Fact("head", "one process on this machine"),
        Fact("checkpoints", proposal.storage),
        *_charges(plan),
        Fact("worst case", f"{format_dollars(proposal.worst_dollars)}: {proposal.worst_why}"),
        *(Fact("" if n else "assumes", text) for n, text in enumerate(proposal.assumptions)),
    ]


def _charges(plan: Plan) -> Iterator[Fact]:
    charges = plan.charges
    parts = [
        *([f"${charges.usd_per_launch:,.3g} per launch"] if charges.usd_per_launch else []),
        *([f"${charges.usd_per_second * 3600:,.3g} per hour"] if charges.usd_per_second else []),
    ]
    if parts:
        yield Fact("cost includes", f"instances, and {' and '.join(parts)} for data and storage")


def comparison(rows: Sequence[Comparison], objective: str) -> Sheet:
    """Return every planner's plan beside the best of them, by the objective."""
    values = [_value(row.plan, objective) for row in rows if row.plan is not None]
    best = min(values, default=0.0)
    word = _SUPERLATIVES.get(objective, "cheapest")
    columns = ("planner", "time", "cost", f"x {word}", "gap", "status", "planned in")
    body = tuple(
        (row.planner, *_compared(row, best, objective), f"{1000 * row.seconds:,.0f} ms")
        for row in rows
    )
    left, wraps = frozenset({"planner", "status"}), frozenset({"status"})
    return Sheet("Planners", columns, body, left, wraps)


def _value(plan: Plan, objective: str) -> float:
    return plan.estimate.seconds if objective == "time" else plan.estimate.dollars


def _compared(row: Comparison, best: float, objective: str) -> tuple[str, ...]:
    if row.plan is None:
        return ("-", "-", "-", "-", row.message or "no plan")
    value, gap = _value(row.plan, objective), row.plan.gap
    ratio = value / best if best > 0 else 1.0
    return (
        *_price(row.plan.estimate),
        f"{ratio:.2f}",
        "?" if gap is None else percent(max(0.0, gap)),
        ", ".join(part for part in (row.plan.status, row.message) if part),
    )


def nearest(plans: Mapping[str, Plan | None]) -> Sheet:
    """Return the plans that come nearest to limits that none keeps; without those there aren't."""
    rows = tuple(
        (name, fleet_text(plan), *_price(plan.estimate)) for name, plan in plans.items() if plan
    )
    columns = ("plan", "machines", "time", "cost")
    left, wraps = frozenset({"plan", "machines"}), frozenset({"machines"})
    return Sheet("The nearest there is", columns, rows, left, wraps)


def _price(estimate: Estimate) -> tuple[str, str]:
    return (format_seconds(estimate.seconds), format_dollars(estimate.dollars))
