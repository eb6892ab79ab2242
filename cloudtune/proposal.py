"""What `cloudtune plan` has found, and everything that is told of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.codec import encode

if TYPE_CHECKING:
    from cloudtune.elastic_plan import ElasticPlan
    from cloudtune.plan import Alternative, Limits, Outlook, Plan


@dataclass(frozen=True)
class PriceNote:
    """Where the prices come from, of which date, how many days ago that was."""

    source: str
    as_of: str
    age_days: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfileNote:
    """What is known of the script's speed on one instance type.

    `age_days` is None where nobody knows when it was measured. `error` is the relative standard
    deviation of a profile derived from another type's; 0 where it was measured on this type.
    """

    instance_type: str
    source: str
    measured_at: str
    age_days: int | None = None
    error: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """What one planner came to, in how many seconds; no plan, but a message, where it failed."""

    planner: str
    plan: Plan | None
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Proposal:
    """The plan of an experiment, how sure it is, and what else could be done.

    `confidence` is the probability with which the limits are to be kept; None where the plan was
    made to keep them on average. `front` ascends in seconds. `considered` counts the offers that
    the planner could choose from. `storage` is where checkpoints go. `worst_dollars` is the bill
    if everything goes wrong, as `worst_why` says. `usable` is what the plan may take of the limits.
    """

    name: str
    trials: int
    strategy: str
    eta: int
    objective: str
    confidence: float | None
    limits: Limits
    planner: str
    plan: Plan
    outlook: Outlook
    alternatives: tuple[Alternative, ...]
    front: tuple[Plan, ...]
    prices: PriceNote
    profiles: tuple[ProfileNote, ...]
    considered: int
    worst_dollars: float
    worst_why: str
    storage: str
    assumptions: tuple[str, ...] = ()
    comparison: tuple[Comparison, ...] = ()
    usable: Limits | None = None

    @property
    def kept(self) -> Limits:
        """What a plan itself may take of the limits: the run needs some before and after it."""
        return self.limits if self.usable is None else self.usable

    def broken(self, plan: Plan, outlook: Outlook | None) -> tuple[str, ...]:
        """Return which limits ("deadline", "budget") a plan doesn't keep, by what was asked.

        With a confidence and an outlook: those kept too rarely, or both where only the two at once
        are. Else those that the plan's estimate exceeds.
        """
        if self.confidence is None or outlook is None:
            return _exceeded(self.kept, plan)
        sure = self.confidence
        chances = {"deadline": outlook.in_time, "budget": outlook.in_money}
        limited = {name: chance for name, chance in chances.items() if chance is not None}
        rare = tuple(name for name, chance in limited.items() if chance < sure)
        if not rare and outlook.within is not None and outlook.within < sure:
            return tuple(limited)
        return rare


def _exceeded(limits: Limits, plan: Plan) -> tuple[str, ...]:
    pairs = {
        "deadline": (plan.estimate.seconds, limits.deadline),
        "budget": (plan.estimate.dollars, limits.budget),
    }
    return tuple(
        name for name, (taken, limit) in pairs.items() if limit is not None and taken > limit
    )


@dataclass(frozen=True)
class ElasticProposal:
    """What a run that decides as results come in may rent and cost, and its forecast.

    `trials` is how many are started at most. `worst_dollars` and `worst_why` as in `Proposal`.
    """

    name: str
    trials: int
    epochs: tuple[int, int]
    eta: int
    sampler: str
    max_concurrent: int | None
    target: float | None
    metric: str
    limits: Limits
    plan: ElasticPlan
    prices: PriceNote
    profiles: tuple[ProfileNote, ...]
    worst_dollars: float
    worst_why: str
    storage: str
    assumptions: tuple[str, ...] = ()


def elastic_to_json(proposal: ElasticProposal) -> dict[str, Any]:
    """Return such a proposal as strict JSON: a number that isn't finite becomes null."""
    data = {**encode(proposal), "experiment": proposal.name, "strategy": proposal.plan.strategy}
    del data["name"]
    return _strict(data)


def to_json(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as strict JSON: a number that isn't finite becomes null.

    `saves` is what the chosen plan saves against another one; negative where the other is better.
    Of the plans on the front only the figures are told.
    """
    plan = proposal.plan
    data = {
        "experiment": proposal.name,
        "trials": proposal.trials,
        "strategy": proposal.strategy,
        "eta": proposal.eta,
        "objective": proposal.objective,
        "confidence": proposal.confidence,
        "limits": encode(proposal.limits),
        "planner": proposal.planner,
        "plan": encode(plan),
        "outlook": encode(proposal.outlook),
        "launches": _launches(plan),
        "most_instances": plan.most_instances,
        "breaks": proposal.broken(plan, proposal.outlook),
        "alternatives": [_alternative(proposal, other) for other in proposal.alternatives],
        "front": [
            {**encode(p.estimate), "most_instances": p.most_instances} for p in proposal.front
        ],
        "prices": encode(proposal.prices),
        "profiles": encode(proposal.profiles),
        "considered": proposal.considered,
        "worst": {"dollars": proposal.worst_dollars, "why": proposal.worst_why},
        "storage": proposal.storage,
        "assumptions": proposal.assumptions,
        "comparison": encode(proposal.comparison),
    }
    return _strict(data)


def _launches(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "instance_type": offer.instance_type.name,
            "market": offer.market,
            "region": offer.region,
            "zone": offer.zone,
            "usd_per_hour": offer.usd_per_hour,
            "instances": count,
        }
        for offer, count in plan.launches.items()
    ]


def _alternative(proposal: Proposal, other: Alternative) -> dict[str, Any]:
    chosen, estimate = proposal.plan.estimate, other.plan.estimate
    return {
        **encode(other),
        "saves": {
            "seconds": estimate.seconds - chosen.seconds,
            "dollars": estimate.dollars - chosen.dollars,
        },
        "breaks": proposal.broken(other.plan, other.outlook),
    }


def _strict(data: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(data), parse_constant=lambda _: None)
    return made
