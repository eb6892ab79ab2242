"""The result of `cloudtune plan`, with all figures that the screen and the JSON show."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from cloudtune.clock import utc_date
from cloudtune.experiment import Experiment
from cloudtune.forecast.alternatives import (
    ON_SPOT,
    Alternative,
    Point,
    alternatives,
    for_one_screen,
    forecast_without_replanning,
    points,
)
from cloudtune.forecast.make import Planned, worst_bill
from cloudtune.forecast.reach import fits, needs
from cloudtune.forecast.staged_plans import LIKELY
from cloudtune.infra.aws.spot_prior import SOURCE, spot_prior
from cloudtune.infra.node import this_machine
from cloudtune.model.catalog import THIS_MACHINE
from cloudtune.model.plans import Limits, Rentable, RunPlan
from cloudtune.model.scaling import Provenance, ScalingProfile, Seen
from cloudtune.model.serialization import encode
from cloudtune.model.text import fleet_text, proof
from cloudtune.planners.reserve import MARGIN
from cloudtune.policy.registry import replans
from cloudtune.profiles.provenance import Basis, origin_text, seen_text
from cloudtune.profiles.store import age
from cloudtune.runs import home
from cloudtune.runs.job import make_basis, max_trials, named_sampler

Others: TypeAlias = Literal["all", "screen", "none"]


@dataclass(frozen=True)
class PriceNote:
    """The source, date and age of the prices."""

    source: str
    as_of: str
    age_days: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfileNote:
    """What is known about the script's speed on one instance type.

    `age_days` is None if the date is unknown. `error` is the relative standard deviation of a
    profile derived from another type's; 0 if it was measured on this type. An epoch takes
    `epoch_seconds` on `width` GPUs: one, or the fewest that were measured. `text` briefly says
    where it comes from, and `provenance` does so for programs. `seen` are the earlier runs in its
    figures, and `seen_text` describes each.
    """

    instance_type: str
    source: str
    measured_at: str
    age_days: int | None = None
    error: float = 0.0
    text: str = ""
    provenance: Provenance = field(default_factory=Provenance)
    seen: tuple[Seen, ...] = ()
    seen_text: tuple[str, ...] = ()
    width: float = 1.0
    epoch_seconds: float = 0.0


@dataclass(frozen=True)
class Proposal:
    """The plan of a run, how certain it is, and the alternatives.

    - `trials`: how many are started, at most; None if only the limits end the run.
    - `chosen`: why it is this strategy, if none was named; `derived`: where the deadline comes
      from, if none was set.
    - `short_of`: what one full training takes, if the limits don't allow it; `unsaved`: that the
      best model won't be kept, if that's known.
    - `elapsed`: the seconds of the deadline that are gone before the first request.
    - `notes`: about the instances and the profiles; `remarks`: about the plan.
    - `confidence`: the probability with which the limits should be kept; None if the plan keeps
      them on average.
    - `objective`: what its stages minimise; None without stages.
    - `front`: ascends in seconds; `as_planned`: the plan with a forecast like its alternatives'.
    - `considered`: the number of offers to choose from.
    - `basis`: the origin of all its seconds and dollars.
    - `worst_dollars`: the bill if everything goes wrong, as in `worst_why`.
    """

    experiment: Experiment
    trials: int | None
    objective: str | None
    confidence: float | None
    limits: Limits
    plan: RunPlan
    alternatives: tuple[Alternative, ...]
    front: tuple[Point, ...]
    prices: PriceNote
    profiles: tuple[ProfileNote, ...]
    considered: int
    worst_dollars: float
    worst_why: str
    basis: Basis
    assumptions: tuple[str, ...] = ()
    as_planned: RunPlan | None = None
    unsure: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    chosen_from: tuple[str, ...] = ()
    chosen: str = ""
    derived: str = ""
    remarks: tuple[str, ...] = ()
    short_of: str = ""
    unsaved: str = ""
    elapsed: float = 0.0

    def broken(self, plan: RunPlan) -> tuple[str, ...]:
        """Return which limits ("deadline", "budget") a plan doesn't keep often enough.

        Both if each is kept often enough, but not the two at once.
        """
        sure = self.confidence or LIKELY
        forecast = plan.forecast
        chances = {"deadline": forecast.in_time, "budget": forecast.in_money}
        limited = {name: chance for name, chance in chances.items() if chance is not None}
        rare = tuple(name for name, chance in limited.items() if chance < sure)
        if not rare and forecast.within is not None and forecast.within < sure:
            return tuple(limited)
        return rare


def propose(planned: Planned, *, others: Others = "all") -> Proposal:
    """Return the proposal for a planned run.

    `others` says which alternatives it has: "all" takes many seconds for large jobs on spot,
    "screen" has only those that `for_one_screen` names.
    """
    experiment = planned.problem.experiment
    plan = planned.plan
    asked = planned.asked
    catalog = planned.problem.catalog
    staged = plan.staged
    today = utc_date()
    worst, why = worst_bill(plan, planned.limits, planned.rentables)
    notes = (profile_note(rentable.profile, today) for rentable in planned.rentables)
    return Proposal(
        experiment=experiment,
        trials=max_trials(experiment) if staged is None else staged.stages[0].stage.trials,
        objective=None if asked is None else asked.aim,
        confidence=planned.options.confidence,
        limits=planned.limits,
        plan=plan,
        alternatives=_alternatives(planned, others),
        front=_front(planned, others),
        prices=PriceNote(catalog.source, catalog.as_of, catalog.age_days(today), catalog.warnings),
        profiles=tuple(dict.fromkeys(notes)),
        considered=len(planned.problem.rentables),
        worst_dollars=worst,
        worst_why=why,
        basis=make_basis(experiment, planned.rentables, today),
        assumptions=tuple(_assumptions(planned)),
        as_planned=forecast_without_replanning(planned) if others == "all" else None,
        unsure=tuple(_unsure(planned)),
        notes=(*planned.problem.notes, *cores_note(plan, planned.rentables)),
        chosen_from=planned.problem.chosen_from,
        chosen="" if experiment.chosen is None else experiment.chosen.why,
        derived=planned.derived,
        remarks=planned.remarks,
        short_of=_explain_shortage(planned),
        unsaved=planned.problem.unsaved,
        elapsed=planned.elapsed,
    )


def _alternatives(planned: Planned, others: Others) -> tuple[Alternative, ...]:
    if others == "none":
        return ()
    if others == "all":
        return tuple(alternatives(planned))
    shown = for_one_screen(planned.plan)
    if planned.left_spot:  # a remark says what spot would cost
        shown = tuple(name for name in shown if name != ON_SPOT)
    return tuple(alternatives(planned, shown))


def _front(planned: Planned, others: Others) -> tuple[Point, ...]:
    """Return the front; for one screen only the plan's neighbours, if they can be compared."""
    if others == "all":
        return tuple(points(planned))
    comparable = others == "screen" and planned.plan.forecast.source == "stages"
    return tuple(points(planned, near=True)) if comparable else ()


def _explain_shortage(planned: Planned) -> str:
    """Return what one full training takes, if the limits don't allow even one."""
    problem = planned.problem
    if planned.plan.staged is not None or fits(problem, planned.allowance):
        return ""
    return needs(problem, problem.experiment.span.max)


def profile_note(profile: ScalingProfile, today: str) -> ProfileNote:
    """Return the note on a profile; `today` is a date, as in 2026-11-21."""
    width = next((measured for measured in profile.widths if measured >= 1), profile.widths[-1])
    return ProfileNote(
        profile.instance_type,
        profile.source,
        profile.measured_at,
        age(profile.measured_at, today),
        profile.speed_error,
        origin_text(profile, today),
        profile.provenance,
        profile.seen,
        tuple(
            seen_text(timing, profile.derived_from or profile.instance_type, today)
            for timing in profile.seen
        ),
        width,
        profile.epoch_seconds(width),
    )


def _unsure(planned: Planned) -> Iterator[str]:
    """Yield what the forecast assumes without measurements, and what it leaves out."""
    several = len(planned.rentables) > 1
    for rentable in {
        rentable.profile.instance_type: rentable for rentable in planned.rentables
    }.values():
        before = f"{rentable.profile.instance_type}: " if several else ""
        yield from (f"{before}{text}" for text in rentable.profile.assumed)
    on_spot = any(rentable.behaviours for rentable in planned.rentables)
    refused = "on-demand without capacity" if on_spot else "offers without capacity"
    left_out = ["trials that differ in speed among themselves", refused]
    if planned.plan.followed is not None and not replans(planned.plan.strategy):
        left_out.append("replanning")
    yield f"not in it: {', '.join(left_out)}"


def _assumptions(planned: Planned) -> Iterator[str]:
    plan = planned.plan
    asked = planned.asked
    sure = planned.options.confidence
    charges = plan.charges
    if plan.forecast.source != "stages":
        yield (
            "the forecast's metrics are made up: which trials go on, and so how much is trained, "
            "will differ; seconds and dollars are the profile's and the catalog's"
        )
    yield from (*planned.remarks, *planned.problem.notes)
    if asked is not None and sure is None:
        likely = " and room for what most runs take" if replans(plan.strategy) else ""
        yield f"planned on mean durations, with {MARGIN:.0%} of each limit in reserve{likely}"
    elif asked is not None:
        yield f"planned so that the limits hold with {sure:g} probability"
    if asked is not None and asked.allowance.dollars is None and planned.limits.budget is not None:
        yield "planned for the deadline; the budget ends the run where that comes first"
    added = any(offer.added_usd_per_hour for offer in plan.offers)
    if not (plan.free or charges.usd_per_launch or charges.usd_per_second or added):
        yield "instances only: this machine, storage and transfer are not in the price (charges)"
    yield from _spot_text(planned)
    yield from cores_note(planned.plan, planned.rentables)
    if not make_basis(planned.problem.experiment, planned.rentables).own:
        yield "speed is derived, not measured: measure it with `cloudtune profile` before a big run"
    if asked is not None and asked.request.mix == 1 and len(asked.request.rentables) > 1:
        yield "one offer at a time in each stage (mixed stages are only planned for small jobs)"
    for quota, vcpus in plan.vcpu_quotas.items():
        if quota == THIS_MACHINE:
            yield "no more emulated GPUs than this machine can train at their pace"
        else:
            yield f"quota {quota}: {vcpus} vCPUs at once"


def _spot_text(planned: Planned) -> Iterator[str]:
    """Yield how the spot pools of a plan are assumed to behave, and the source."""
    used = {rentable.offer: rentable for rentable in planned.rentables if rentable.behaviours}
    if not used:
        return
    for ways in dict.fromkeys(rentable.behaviours for rentable in used.values()):
        share = _range([way.availability for way in ways], ".0%")
        losses = _range([way.losses_per_hour for way in ways], ".2g")
        source = "as cloud.spot or the trace says"
        if ways == spot_prior():
            source = f"assumed, as {SOURCE} were (cloud.spot says otherwise)"
        yield (
            f"spot: available {share} of the time, lost {losses} times an hour; {source}; work "
            "since the last epoch is lost"
        )
    if planned.plan.followed is not None:
        yield "spot: the stages assume a pool with instances, the forecast one that comes and goes"


def _range(values: Sequence[float], form: str) -> str:
    low = min(values)
    high = max(values)
    return f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"


def cores_note(plan: RunPlan, rentables: Sequence[Rentable]) -> Iterator[str]:
    """Yield a line if emulated GPUs need more than this machine's cores."""
    cores = this_machine.cores()
    shares = {rentable.offer: _core_share(rentable.profile) for rentable in rentables}
    wanted = sum(m.instances * m.offer.gpus * shares.get(m.offer, 0.0) for m in plan.fleet)
    if wanted > cores:
        yield (
            f"emulated: all these GPUs at work need {wanted:.1f} cores, and this machine has "
            f"{cores}: epochs will take longer than planned"
        )


def _core_share(profile: ScalingProfile) -> float:
    """Return the share of a core that an emulated GPU needs to keep its pace; 0 if unknown."""
    alone = profile.provenance.core_seconds
    width = profile.widths[0]
    return 0.0 if alone is None else alone / (profile.epoch_seconds(width) * width)


def to_json(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as strict JSON: numbers that aren't finite become null.

    `saves` is what the chosen plan saves compared with another; negative if the other is better.
    The plans of the front come with their figures only.
    """
    plan = proposal.plan
    experiment = proposal.experiment
    data = {
        "experiment": experiment.name,
        "provider": experiment.cloud.provider,
        "strategy": plan.strategy,
        "allocator": plan.allocator,
        "fleet_rule": plan.fleet_rule,
        "rules": plan.rules,
        "chosen": proposal.chosen,
        "chosen_from": proposal.chosen_from,
        "derived_deadline": proposal.derived,
        "elapsed": proposal.elapsed,
        "short_of": proposal.short_of,
        "unsaved": proposal.unsaved,
        "trials": proposal.trials,
        "epochs": (experiment.span.min, experiment.span.max),
        "progress": encode(experiment.scale),
        "eta": experiment.eta,
        "sampler": named_sampler(experiment)[0],
        "max_concurrent": experiment.strategy.max_concurrent,
        "target": experiment.strategy.target,
        "metric": experiment.metric.name,
        "objective": proposal.objective,
        "confidence": proposal.confidence,
        "limits": encode(proposal.limits),
        "planner": None if plan.staged is None else plan.staged.planner,
        "proof": proof(plan),
        "plan": plan_json(plan),
        "launches": _launches(plan),
        "peak_instances": plan.peak_instances,
        "breaks": proposal.broken(plan),
        "alternatives": [_alternative(proposal, other) for other in proposal.alternatives],
        "unsure": proposal.unsure,
        "as_planned": None if proposal.as_planned is None else encode(proposal.as_planned.forecast),
        "front": [_point(proposal, point) for point in proposal.front],
        "provenance": encode(proposal.basis),
        "prices": encode(proposal.prices),
        "profiles": encode(proposal.profiles),
        "considered": proposal.considered,
        "worst": {"dollars": proposal.worst_dollars, "why": proposal.worst_why},
        "storage": home.storage(experiment.storage),
        "head_usd_per_hour": experiment.charges.head,
        "assumptions": proposal.assumptions,
    }
    strict: dict[str, Any] = json.loads(json.dumps(data), parse_constant=lambda _: None)
    return strict


def plan_json(plan: RunPlan) -> dict[str, Any]:
    """Return a plan as JSON, with its estimate."""
    return {**encode(plan), "estimate": encode(plan.estimate)}


def _point(proposal: Proposal, point: Point) -> dict[str, Any]:
    return {
        "point": point.number,
        **encode(point.plan.estimate),
        "machines": fleet_text(point.staged),
        "peak_instances": point.plan.peak_instances,
        "breaks": proposal.broken(point.plan),
    }


def _launches(plan: RunPlan) -> list[dict[str, Any]]:
    return [
        {
            "instance_type": offer.instance_type.name,
            "market": offer.market,
            "region": offer.region,
            "zone": offer.zone,
            "usd_per_hour": offer.usd_per_hour,
            "added_usd_per_hour": offer.added_usd_per_hour,
            "billing": offer.billing,
            "instances": count,
        }
        for offer, count in plan.launches.items()
    ]


def _alternative(proposal: Proposal, other: Alternative) -> dict[str, Any]:
    chosen = proposal.plan.estimate
    estimate = other.plan.estimate
    return {
        "name": other.name,
        "plan": plan_json(other.plan),
        "proof": proof(other.plan),
        "saves": {
            "seconds": estimate.seconds - chosen.seconds,
            "dollars": estimate.dollars - chosen.dollars,
        },
        "breaks": proposal.broken(other.plan),
    }
