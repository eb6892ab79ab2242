"""What must hold of planners, checked on one job: each check yields what is wrong, in words."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.planner_jobs import billed_by
from cloudtune.model.plans import Allowance
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.ilp.planner import IlpPlanner
from cloudtune.planners.static import StaticPlanner
from tests.planners.brute_force import every_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cloudtune.model.plans import Group, Objective, Plan
    from cloudtune.planners.base import Planner, PlanRequest
    from tests.planners.brute_force import Priced

# The relative difference of sums in another order, which the search allows for as well.
EQUAL = 1e-9
_FEWEST = 8  # plans of a job that is worth a look
_ORDER = ("exact", "greedy from every static", "greedy", "static")


def plan_of(planner: Planner, request: PlanRequest) -> Plan | None:
    """Return the plan of a planner, None where it finds none within the limits."""
    try:
        return planner.plan(request)
    except InfeasibleError:
        return None


def smooth(request: PlanRequest, plan: Plan) -> float:
    """Return a plan's dollars with bills that aren't rounded: what the exact planner minimises."""
    choices = [unrounded(stage.groups) for stage in plan.stages]
    return price(billed_by(request, 0.0), choices, plan.planner).estimate.dollars


def unrounded(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return groups on offers billed by the instant."""
    return tuple(
        replace(group, offer=replace(group.offer, granularity_seconds=0.0)) for group in groups
    )


def measure(request: PlanRequest, plan: Plan) -> float:
    """Return what the request minimises, with bills not rounded."""
    return plan.estimate.seconds if request.objective == "time" else smooth(request, plan)


def order(request: PlanRequest, plans: Mapping[str, Plan | None]) -> Iterator[str]:
    """Yield where a planner that knows more is worse, or has no plan where another has one."""
    for knowing, other in itertools.pairwise(_ORDER):
        better, worse = plans[knowing], plans[other]
        if worse is not None and better is None:
            yield f"{knowing} has no plan, {other} has one"
        if worse is None or better is None:
            continue
        mine, theirs = measure(request, better), measure(request, worse)
        if mine > theirs * (1 + EQUAL):
            yield f"{knowing} {mine!r} > {other} {theirs!r} ({request.objective})"


def promises(request: PlanRequest, name: str, plan: Plan) -> Iterator[str]:
    """Yield where a plan breaks a limit or isn't what its own figures say."""
    limits = request.allowance
    if limits.seconds is not None and plan.estimate.seconds > limits.seconds * (1 + EQUAL):
        yield f"{name} takes {plan.estimate.seconds!r} s, and {limits.seconds!r} are allowed"
    if limits.dollars is not None and smooth(request, plan) > limits.dollars * (1 + EQUAL):
        yield f"{name} costs ${plan.estimate.dollars!r}, and ${limits.dollars!r} are allowed"
    if plan.peak_instances > request.max_instances:
        yield f"{name} holds {plan.peak_instances} instances, {request.max_instances} are allowed"
    for number, stage in enumerate(plan.stages):
        if sum(group.trials for group in stage.groups) != stage.stage.trials:
            yield f"{name} runs other than {stage.stage.trials} trials in stage {number}"
    again = price(request, plan.choices, name).estimate
    if again != plan.estimate:
        yield f"{name} says {plan.estimate}, its choices are priced at {again}"


def gaps(request: PlanRequest, plans: Mapping[str, Plan | None]) -> Iterator[str]:
    """Yield where a plan is further from the best than its own gap says."""
    exact = plans["exact"]
    for name, plan in plans.items():
        if exact is None or plan is None or plan.gap is None:
            continue
        off = measure(request, plan) / measure(request, exact) - 1
        if off > plan.gap + EQUAL:
            yield f"{name} is {off!r} from exact, and says that its gap is {plan.gap!r}"


# ---- more of a limit ----------------------------------------------------------------------------


@dataclass
class Grid:
    """What came of loosening limits: how many plans were asked for, and faults."""

    asked: int = 0
    faults: list[str] = field(default_factory=list)


def looser(request: PlanRequest, points: int) -> Grid:
    """Look for a looser deadline that costs more, and a bigger budget that takes longer."""
    grid = Grid()
    for planner in (ExactPlanner(), StaticPlanner()):
        free = replace(request, allowance=Allowance())
        fastest = plan_of(planner, replace(free, objective="time"))
        cheapest = plan_of(planner, replace(free, objective="cost"))
        if fastest is None or cheapest is None:
            continue
        seconds = _grid(fastest.estimate.seconds, cheapest.estimate.seconds, points)
        dollars = _grid(smooth(request, cheapest), smooth(request, fastest), points)
        _falling(grid, planner, replace(request, objective="cost"), map(Allowance, seconds))
        budgets = (Allowance(dollars=limit) for limit in dollars)
        _falling(grid, planner, replace(request, objective="time"), budgets)
    return grid


def _grid(low: float, high: float, points: int) -> list[float]:
    """Return limits from a little below what is possible to more than is ever needed."""
    rising = np.geomspace(low * (1 + EQUAL), max(high, low) * 1.1, points)
    return [0.99 * low, *rising.tolist()]


def _falling(
    grid: Grid, planner: Planner, request: PlanRequest, rising: Iterable[Allowance]
) -> None:
    least = math.inf
    for limits in rising:
        asked = replace(request, allowance=limits)
        plan = plan_of(planner, asked)
        grid.asked += 1
        if plan is None:
            if least < math.inf:
                grid.faults.append(f"{planner.name} has no plan at {limits}, and had one at less")
            continue
        grid.faults += [f"{fault} ({limits})" for fault in promises(asked, planner.name, plan)]
        mine = measure(asked, plan)
        if mine > least * (1 + EQUAL):
            grid.faults.append(f"{planner.name} rises from {least!r} to {mine!r} at {limits}")
        least = min(least, mine)


# ---- small cases --------------------------------------------------------------------------------


class Small(NamedTuple):
    """One small job: the plans there are, the largest relative difference, and what is wrong."""

    plans: int
    off: float
    faults: tuple[str, ...]


class Aim(NamedTuple):
    """What to look for among all plans: the least of one measure, within the limits."""

    objective: Objective
    limits: Allowance


def small_case(request: PlanRequest, most: int, share: float) -> Small | None:
    """Compare exact and ILP with every plan there is; None where there are too many or too few.

    `share` says how far up the limits are between the least and the most that any plan takes.
    """
    every = _up_to(request, most)
    if not _FEWEST <= len(every) <= most:
        return None
    off, faults = 0.0, list[str]()
    for aim in _aims(every, share):
        asked = replace(request, objective=aim.objective, allowance=aim.limits)
        for planner in (ExactPlanner(), IlpPlanner()):
            apart, fault = _apart(asked, plan_of(planner, asked), _best(every, aim))
            off = max(off, apart)
            faults += [f"{planner.name} {fault} ({aim})"] if fault else []
    return Small(len(every), off, tuple(faults))


def _aims(every: Sequence[Priced], share: float) -> list[Aim]:
    """Return three questions; each limit is a hair above what some plan takes."""
    place = int(share * (len(every) - 1))
    hair = 1 + 1e-7
    seconds = sorted(plan.seconds * hair for plan in every)
    dollars = sorted(plan.dollars * hair for plan in every)
    return [
        Aim("cost", Allowance(seconds[place])),
        Aim("time", Allowance(None, dollars[place])),
        Aim("cost", Allowance(seconds[place], dollars[-1 - place // 2])),
    ]


def _up_to(request: PlanRequest, most: int) -> list[Priced]:
    plans = every_plan(request, request.mix)
    return [plan for plan, _ in zip(plans, range(most + 1), strict=False)]


def _best(every: Sequence[Priced], aim: Aim) -> float | None:
    deadline = math.inf if aim.limits.seconds is None else aim.limits.seconds
    budget = math.inf if aim.limits.dollars is None else aim.limits.dollars
    within = [plan for plan in every if plan.seconds <= deadline and plan.dollars <= budget]
    measures = (plan.dollars if aim.objective == "cost" else plan.seconds for plan in within)
    return min(measures, default=None)


def _apart(request: PlanRequest, plan: Plan | None, best: float | None) -> tuple[float, str]:
    if plan is None or best is None:
        same = plan is None and best is None
        return 0.0, "" if same else f"found {plan and plan.estimate}, brute force {best}"
    mine = plan.estimate.dollars if request.objective == "cost" else plan.estimate.seconds
    off = abs(mine / best - 1)
    return off, f"found {mine!r}, brute force {best!r}" if off > EQUAL else ""
