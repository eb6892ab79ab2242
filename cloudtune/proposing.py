"""Everything that `cloudtune plan` tells: the plan, its alternatives, the front, the worst case."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune import home, planning
from cloudtune.errors import CloudtuneError, InfeasibleError
from cloudtune.plan import Alternative, Limits
from cloudtune.planners.estimate import outlook
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.static import StaticPlanner
from cloudtune.profiles.store import age
from cloudtune.proposal import Comparison, PriceNote, ProfileNote, Proposal
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.plan import Objective, Plan, Planner, PlanRequest, Rentable
    from cloudtune.planning import Planned
    from cloudtune.scaling import ScalingProfile

_POINTS = 10
_SAMPLES = 200
"""Draws for each alternative; the plan itself gets more."""


def propose(planned: Planned, limits: Limits, *, compare: bool = False) -> Proposal:
    """Return what there is to tell of a plan; `limits` are the user's own."""
    experiment, plan, wish = planned.problem.experiment, planned.plan, planned.wish
    catalog = planned.problem.catalog
    today = time.strftime("%Y-%m-%d")
    worst, why = _worst(plan, limits, planned.rentables)
    notes = (profile_note(each.profile, today) for each in planned.rentables)
    return Proposal(
        name=experiment.name,
        trials=planned.request.work[0].trials,
        strategy=experiment.strategy.name,
        eta=experiment.eta,
        objective=wish.objective,
        confidence=wish.confidence,
        limits=limits,
        usable=planned.request.limits,
        planner=plan.planner,
        plan=plan,
        outlook=planned.outlook,
        alternatives=tuple(_alternatives(planned)),
        front=tuple(planning.EXACT.front(_free(planned.request), _POINTS)),
        prices=PriceNote(catalog.source, catalog.as_of, catalog.age_days(today), catalog.warnings),
        profiles=tuple(dict.fromkeys(notes)),
        considered=len(planned.request.rentables),
        worst_dollars=worst,
        worst_why=why,
        storage=home.storage(experiment.storage),
        assumptions=tuple(_assumptions(planned)),
        comparison=tuple(_compared(planned)) if compare else (),
    )


def _free(request: PlanRequest) -> PlanRequest:
    return replace(request, limits=Limits())


def profile_note(profile: ScalingProfile, today: str) -> ProfileNote:
    """Return what is told of a profile; `today` is a date, as in 2026-11-21."""
    return ProfileNote(
        profile.instance_type,
        profile.source,
        profile.measured_at,
        age(profile.measured_at, today),
        profile.error,
    )


def _alternatives(planned: Planned) -> Iterator[Alternative]:
    """Yield what else could be done, as far as there is such a plan."""
    inside = replace(planned.request, limits=planned.asked)
    free, exact = _free(inside), planning.EXACT
    seed = planned.problem.experiment.seed

    def sure(planner: Planner) -> Planner:
        return planning.sure_planner(planner, planned.wish, seed)

    tries: list[tuple[str, Planner, PlanRequest]] = [
        ("best static cluster", sure(StaticPlanner()), inside),
        ("naive elastic", sure(NaivePlanner()), inside),
        ("cheapest", exact, replace(free, objective="cost")),
        ("fastest", exact, replace(free, objective="time")),
    ]
    other = _other_market(planned)
    if other is not None:
        name, elsewhere = other
        tries.append((name, sure(exact), replace(elsewhere, limits=planned.asked)))
    for name, planner, asked in tries:
        plan = _plan_or_nearest(planner, asked)
        if plan is not None:
            judged = replace(asked, limits=planned.request.limits)
            same = [each.groups for each in plan.stages] == [
                each.groups for each in planned.plan.stages
            ]
            sampled = (
                planned.outlook if same else outlook(judged, plan, samples=_SAMPLES, seed=seed)
            )
            yield Alternative(name, plan, sampled)


def _plan_or_nearest(planner: Planner, request: PlanRequest) -> Plan | None:
    """Return a plan within the limits, else one that comes near to them."""
    try:
        return planner.plan(request)
    except InfeasibleError as error:
        return planning.nearest(error, request) or error.fastest


def _other_market(planned: Planned) -> tuple[str, PlanRequest] | None:
    """Return the same request on spot, or without it where the plan uses it."""
    problem = planned.problem
    on_spot = any(offer.market == "spot" for offer in planned.plan.offers)
    profiles = [each.profile for each in problem.rentables]
    name, market = ("on-demand", "on-demand") if on_spot else ("on spot", "spot")
    try:
        found = planning.problem_of(problem.experiment, profiles, (market,))  # type: ignore[arg-type]
    except CloudtuneError:
        return None  # nobody knows a price there
    if not found.rentables:
        return None
    return name, replace(planned.request, rentables=found.rentables)


def _worst(plan: Plan, limits: Limits, rentables: Sequence[Rentable]) -> tuple[float, str]:
    """Return the largest bill that a run of the plan can end with, and when it does."""
    rate = max(
        sum(group.instances * group.offer.usd_per_hour for group in stage.groups)
        for stage in plan.stages
    )
    launched = sum(plan.launches.values()) * plan.charges.usd_per_launch
    joining = max(planning.join_seconds(each.profile) for each in rentables)
    return worst_bill(planning.longest(plan), limits, rate / 3600.0, launched, joining)


def worst_bill(
    longest: float, limits: Limits, rate: float, launched: float, joining: float
) -> tuple[float, str]:
    """Return the largest bill of a run at `rate` dollars a second, and when it is that.

    Leases end what is rented when the limits would be passed, whatever becomes of the controller;
    an instance that still boots has `joining` seconds, until the deadline at most.
    """
    lives = min(longest, limits.deadline or longest)
    unbounded = rate * lives + launched
    if limits.budget is None:
        when = f"the run goes on for {format_seconds(lives)}"
        return unbounded, f"no budget is set: that is if {when} with all of it rented"
    booting = rate * joining
    return limits.budget + booting, (
        f"the run itself stops below {format_dollars(limits.budget)}, and if this machine dies, "
        f"leases end the instances by then; what is still booting may last "
        f"{format_seconds(joining)} longer ({format_dollars(booting)}). `cloudtune gc` ends all at "
        "once"
    )


def _assumptions(planned: Planned) -> Iterator[str]:
    request, charges = planned.request, planned.request.charges
    yield from planned.problem.notes
    if planned.wish.confidence is None:
        share = f"{planning.MARGIN:.0%}"
        yield f"planned on mean durations, with {share} of each limit in reserve"
    else:
        yield f"planned so that the limits hold with {planned.wish.confidence:g} probability"
    if not (charges.usd_per_launch or charges.usd_per_second):
        yield "instances only: this machine, storage and transfer are not in the price (charges)"
    if any(offer.interruptions_per_hour for offer in planned.plan.offers):
        yield "spot: interruptions by EC2's bands, work since the last epoch is lost"
    if any(each.profile.error for each in planned.rentables):
        yield "speed is derived, not measured: measure it with `cloudtune profile` before a big run"
    if request.mix == 1 and len(request.rentables) > 1:
        yield "one offer at a time in each stage (mixed stages are planned for small jobs alone)"
    for quota, vcpus in request.vcpu_quotas.items():
        yield f"quota {quota}: {vcpus} vCPUs at once"


def _compared(planned: Planned) -> Iterator[Comparison]:
    """Yield what each planner comes to, on the same question."""
    objective: Objective = "time" if planned.wish.objective == "time" else "cost"
    request = replace(planned.request, objective=objective, limits=planned.asked)
    seed = planned.problem.experiment.seed
    for name in planning.PLANNERS:
        began = time.perf_counter()
        plan, message = None, ""
        try:
            planner = planning.sure_planner(planning.planner_named(name), planned.wish, seed)
            plan = planner.plan(request)
        except CloudtuneError as error:
            message = str(error)
        yield Comparison(name, plan, time.perf_counter() - began, message)
