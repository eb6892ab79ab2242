"""Tables of alternatives: other plans, the front, fewer trials, other planners."""

from collections.abc import Callable
from typing import Any

from cloudtune.display.terminal import Sheet, beside
from cloudtune.forecast.alternatives import Against
from cloudtune.forecast.proposal import Proposal
from cloudtune.model.plans import Estimate, Plan, RunPlan
from cloudtune.model.text import cost_format, count_noun, fleet_text, offer_text, percent
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.runs.report import Report


def alternatives(proposal: Proposal) -> Sheet:
    """Return the alternatives, and what each costs or saves compared with the chosen plan."""
    chosen = proposal.as_planned or proposal.plan
    rows = [_alternative(proposal, "this plan", chosen, "")]
    rows += [
        _alternative(
            proposal,
            other.name,
            other.plan,
            difference(other.plan.estimate, chosen.estimate, cost_format(chosen.offers)),
        )
        for other in proposal.alternatives
    ]
    sheet = Sheet(
        title=beside("Alternatives", proposal.basis.text) + " (each without replanning)",
        columns=("plan", "machines", "time", "cost", "p95 cost", "against this plan", "kept in"),
        rows=tuple(rows),
        left=frozenset({"plan", "machines", "against this plan", "kept in"}),
        wraps=frozenset({"plan", "machines"}),
    )
    return sheet.without("cost", "p95 cost") if chosen.free else sheet


def _alternative(proposal: Proposal, name: str, plan: RunPlan, instead: str) -> tuple[str, ...]:
    return (
        name,
        "" if plan.followed is None else fleet_text(plan.followed),
        *_price(plan),
        cost_format(plan.offers)(plan.forecast.dollars.p95),
        instead,
        _limits_cell(proposal, plan),
    )


def _limits_cell(proposal: Proposal, plan: RunPlan) -> str:
    """Return how likely a plan keeps the limits, or which it breaks: "over deadline"."""
    broken = proposal.broken(plan)
    within = plan.forecast.within
    if within is None:
        return "-"
    return f"over {' and '.join(broken)}" if broken else percent(within)


def front(proposal: Proposal) -> Sheet:
    """Return the points of the front, from the fastest to the cheapest, by their numbers."""
    chosen = (proposal.as_planned or proposal.plan).estimate
    cost = cost_format(proposal.plan.offers)
    rows = tuple(
        (
            f"{point.number}",
            fleet_text(point.staged),
            *_price(point.plan),
            difference(point.plan.estimate, chosen, cost),
            _limits_cell(proposal, point.plan),
        )
        for point in proposal.front
    )
    return Sheet(
        title=beside("The front", proposal.basis.text)
        + ": the cheapest for its time (--point N takes one, --save FILE keeps it)",
        columns=("point", "machines", "time", "cost", "against this plan", "kept in"),
        rows=rows,
        left=frozenset({"machines", "against this plan", "kept in"}),
        wraps=frozenset({"machines"}),
    )


def difference(
    other: Estimate, chosen: Estimate, cost: Callable[[float], str] = format_dollars
) -> str:
    """Return the difference of another plan in cost and time: "+$1.20, 12m sooner"."""
    dollars = other.dollars - chosen.dollars
    seconds = other.seconds - chosen.seconds
    parts = []
    if abs(dollars) >= 0.0005:
        parts.append(f"{'+' if dollars > 0 else ''}{cost(dollars)}")
    if abs(seconds) >= 0.5:
        parts.append(f"{format_seconds(abs(seconds))} {'later' if seconds > 0 else 'sooner'}")
    return ", ".join(parts) or "the same"


def _price(plan: Plan | RunPlan) -> tuple[str, str]:
    estimate = plan.estimate
    return (format_seconds(estimate.seconds), cost_format(plan.offers)(estimate.dollars))


# Bills that differ by less than this share count as equal.
_SAME = 0.005


def bills(report: Report, against: Against, basis: str) -> Sheet:
    """Return what a run paid beside the simulated costs of its plan and of others."""
    followed = report.job.plan.followed
    title = f"What run {report.job.run} paid, and what others would have"
    cost = cost_format(report.job.plan.offers)
    taken = (format_seconds(report.seconds), cost(report.dollars))
    rows = [
        ("this run, paid", _machines(report.job.plan), *_training_cells(report), *taken, "", ""),
        _bill("its plan, simulated", against.planned, against, report),
        *(
            _bill(f"{other.name}, simulated", other.plan, against, report)
            for other in against.others
        ),
    ]
    trained = ("trials", f"{report.job.experiment.scale.unit}s of the best")
    sheet = Sheet(
        title=beside(title, basis),
        columns=("", "machines", *trained, "time", "cost", "19 of 20 runs", "against the bill"),
        rows=tuple(rows),
        left=frozenset({"", "machines", "against the bill"}),
        wraps=frozenset({"", "machines", trained[1]}),
    )
    # With stages all of them train the same.
    return sheet if followed is None else sheet.without(*trained)


def _training_cells(report: Report) -> tuple[str, str]:
    """Return how many configurations a run tried, and how far it trained its best."""
    best = report.policy.best
    scale = report.job.experiment.scale
    last = 0 if best is None else report.policy.trials[best.trial].epoch
    return f"{len(report.policy.trials)}", scale.text(last)


def _bill(name: str, plan: RunPlan, against: Against, report: Report) -> tuple[str, ...]:
    kept = against.allowance.admit(plan.estimate)
    forecast = plan.forecast
    return (
        name,
        _machines(plan),
        f"{forecast.trials.p50:,.0f}",
        report.job.experiment.scale.text(forecast.epochs.p50),
        *_price(plan),
        f"below {cost_format(plan.offers)(forecast.dollars.p95)}",
        _than(plan.estimate.dollars, report.dollars) + ", over a limit" * (not kept),
    )


def _machines(plan: RunPlan) -> str:
    """Return the machines of a plan's stages, or the largest fleet of a plan without stages."""
    if plan.followed is not None:
        return fleet_text(plan.followed)
    return ", ".join(
        f"up to {machines.instances} x {offer_text(machines.offer).removesuffix(' on-demand')}"
        for machines in plan.fleet
    )


def _than(dollars: float, paid: float) -> str:
    """Return how a bill compares with the paid one: "56 % dearer"."""
    if paid <= 0:
        return ""
    share = dollars / paid - 1.0
    if abs(share) < _SAME:
        return "the same"
    return f"{abs(share):.0%} {'dearer' if share > 0 else 'cheaper'}"


def random_text(report: Report, against: Against) -> str:
    """Return what random search buys for the same dollars, within the same deadline."""
    paid = cost_format(report.job.plan.offers)(report.dollars)
    tried = len(report.policy.trials)
    if against.fully is None:
        return f"For {paid} random search without early stopping trains nothing by the deadline."
    trials = count_noun(against.fully.trials, "configuration")
    best = report.policy.best
    last = ""
    if best is not None:
        last = f", its best until epoch {report.policy.trials[best.trial].epoch}"
    return (
        f"For {paid} random search without early stopping trains {trials} for "
        f"{count_noun(against.fully.epochs, 'epoch')} each, by the same deadline; this run tried "
        f"{tried}{last}."
    )


def against_json(against: Against) -> dict[str, Any]:
    """Return the comparison as JSON: simulated seconds and dollars, and random search."""
    return {
        "plan": _plan_json(against.planned, against),
        "others": {other.name: _plan_json(other.plan, against) for other in against.others},
        "random_search": against.fully
        and {
            "trials": against.fully.trials,
            "epochs": against.fully.epochs,
            "seconds": against.fully.plan.estimate.seconds,
            "dollars": against.fully.plan.estimate.dollars,
        },
    }


def _plan_json(plan: RunPlan, against: Against) -> dict[str, Any]:
    return {
        "simulated": True,
        "trials": plan.forecast.trials.p50,
        "epochs": plan.forecast.epochs.p50,
        "machines": "" if plan.followed is None else fleet_text(plan.followed),
        "seconds": plan.estimate.seconds,
        "dollars": plan.estimate.dollars,
        "dollars_p95": plan.forecast.dollars.p95,
        "keeps_limits": against.allowance.admit(plan.estimate),
    }
