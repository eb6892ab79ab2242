"""What else could be done about an experiment, as plans beside the one that was chosen."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloudtune.errors import CloudtuneError
from cloudtune.jobs import planning, stages
from cloudtune.jobs.job import choice_of
from cloudtune.plan import BY_PLAN, Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.static import StaticPlanner
from cloudtune.policy.registry import Choice
from cloudtune.strategies.samplers.sampler import MODEL_BASED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.experiment import Experiment
    from cloudtune.jobs.planning import Planned
    from cloudtune.jobs.stages import Asked
    from cloudtune.plan import Objective, Plan, RunPlan
    from cloudtune.planners.base import Planner, PlanRequest

_POINTS = 10
_DRAWS = 200
"""Draws for each alternative; the plan itself gets more."""
_RUNS = 5
"""As many simulated runs at most for each choice that is compared."""
_FLEETS = ("naive", "constant")
_ALLOCATORS = ("same", "static-fluid", "dynamic-fluid")
_PLANNED = Choice("sha", BY_PLAN, BY_PLAN)


@dataclass(frozen=True)
class Alternative:
    """Another plan that could be made instead."""

    name: str
    plan: RunPlan


@dataclass(frozen=True)
class Comparison:
    """What a planner, or another choice, came to; no plan, but a message, where it failed.

    `seconds` is what planning took.
    """

    name: str
    plan: RunPlan | None
    seconds: float
    message: str = ""


def front(planned: Planned) -> tuple[Plan, ...]:
    """Return the best stages for their time, from the fastest to the cheapest."""
    if planned.asked is None or planned.plan.followed is None:
        return ()
    return tuple(stages.EXACT.front(_free(planned.asked.request), _POINTS))


def _free(request: PlanRequest) -> PlanRequest:
    return replace(request, limits=Limits())


def _as_run(planned: Planned, request: PlanRequest, plan: Plan) -> RunPlan:
    """Return other stages as a plan of the same run, forecast against the same limits."""
    return planning.run_plan(
        replace(planned.problem, rentables=request.rentables),
        planned.limits,
        planned.elapsed,
        request=request,
        staged=plan,
        draws=_DRAWS,
    )


def alternatives(planned: Planned) -> Iterator[Alternative]:
    """Yield what else could be done instead of following stages, as far as there is such a plan."""
    chosen, asked = planned.plan.followed, planned.asked
    if chosen is None or asked is None:
        return
    inside = replace(asked.request, limits=asked.limits)
    free, exact = _free(inside), stages.EXACT
    seed = planned.problem.experiment.seed

    def sure(planner: Planner) -> Planner:
        return stages.sure_planner(planner, planned.options, seed)

    tries: list[tuple[str, Planner, PlanRequest]] = [
        ("best static cluster", sure(StaticPlanner()), inside),
        ("naive elastic", sure(NaivePlanner()), inside),
        ("cheapest", exact, replace(free, objective="cost")),
        ("fastest", exact, replace(free, objective="time")),
    ]
    other = _other_market(planned, asked, chosen)
    if other is not None:
        name, elsewhere = other
        tries.append((name, sure(exact), replace(elsewhere, limits=asked.limits)))
    for name, planner, request in tries:
        plan = _plan_or_nearest(planner, request)
        if plan is None:
            continue
        same = [each.groups for each in plan.stages] == [each.groups for each in chosen.stages]
        judged = replace(request, limits=asked.request.limits)
        yield Alternative(name, planned.plan if same else _as_run(planned, judged, plan))


def _plan_or_nearest(planner: Planner, request: PlanRequest) -> Plan | None:
    """Return a plan within the limits, else one that comes near to them."""
    try:
        return planner.plan(request)
    except InfeasibleError as error:
        return stages.nearest(error, request) or error.fastest


def _other_market(planned: Planned, asked: Asked, chosen: Plan) -> tuple[str, PlanRequest] | None:
    """Return the same request on spot, or without it where the plan uses it."""
    problem = planned.problem
    on_spot = any(offer.market == "spot" for offer in chosen.offers)
    profiles = [each.profile for each in problem.rentables]
    name, market = ("on-demand", "on-demand") if on_spot else ("on spot", "spot")
    try:
        found = planning.problem_of(problem.experiment, profiles, (market,))  # type: ignore[arg-type]
    except CloudtuneError:
        return None  # nobody knows a price there
    if not found.rentables:
        return None
    return name, replace(asked.request, rentables=found.rentables)


# ---- comparing -----------------------------------------------------------------------------------


def compared(planned: Planned) -> Iterator[Comparison]:
    """Yield what every planner comes to, or every natural choice, on the same question."""
    asked = planned.asked
    if planned.plan.followed is None or asked is None:
        yield from _other_choices(planned)
        return
    objective: Objective = "time" if asked.aim == "time" else "cost"
    request = replace(asked.request, objective=objective, limits=asked.limits)
    seed = planned.problem.experiment.seed
    for name in stages.PLANNERS:
        began = time.perf_counter()
        plan, message = None, ""
        try:
            planner = stages.sure_planner(stages.planner_named(name), planned.options, seed)
            plan = _as_run(planned, asked.request, planner.plan(request))
        except CloudtuneError as error:
            message = str(error)
        yield Comparison(name, plan, time.perf_counter() - began, message)


def _other_choices(planned: Planned) -> Iterator[Comparison]:
    """Yield what the same limits come to with other fleets, with other widths, and planned."""
    chosen = choice_of(planned.problem.experiment)
    yield Comparison(_name(chosen), planned.plan, 0.0)
    others = [
        *(replace(chosen, fleet=fleet) for fleet in _FLEETS),
        *(replace(chosen, allocator=allocator) for allocator in _ALLOCATORS),
        _PLANNED,
    ]
    for choice in dict.fromkeys(others):
        if choice == chosen:
            continue
        began = time.perf_counter()
        plan, message = None, ""
        try:
            plan = _with(planned, choice)
        except CloudtuneError as error:
            message = str(error)
        yield Comparison(_name(choice), plan, time.perf_counter() - began, message)


def _name(choice: Choice) -> str:
    return f"{choice.strategy}, {choice.allocator}, {choice.fleet}"


def _with(planned: Planned, choice: Choice) -> RunPlan:
    """Return the plan of the same experiment by another choice."""
    problem = replace(planned.problem, experiment=_changed(planned.problem.experiment, choice))
    options = stages.PlanOptions(confidence=planned.options.confidence)
    return planning.make_plan(problem, planned.limits, options, planned.elapsed, runs=_RUNS).plan


def _changed(experiment: Experiment, choice: Choice) -> Experiment:
    names = {"name": choice.strategy, "allocator": choice.allocator, "fleet": choice.fleet}
    if choice.planned and experiment.strategy.sampler in MODEL_BASED:
        names["sampler"] = "random"
    strategy = experiment.strategy.model_copy(update=names)
    return experiment.model_copy(update={"strategy": strategy})
