"""How much the limits pay for: the most trials, and then the most epochs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cloudtune.model.plans import Plan
from cloudtune.planners.base import InfeasibleError, Planner, PlanRequest
from cloudtune.planners.dp.bounds import SLACK
from cloudtune.planners.dp.search import make_search
from cloudtune.planners.exact import ExactPlanner

Ask: TypeAlias = Callable[[int, int], PlanRequest]


@dataclass(frozen=True)
class Explored:
    """What the limits pay for: `trials` trials, the best for `epochs` epochs, by `plan`."""

    trials: int
    epochs: int
    plan: Plan


def explore(planner: Planner, ask: Ask, *, max_trials: int, max_epochs: int) -> Explored:
    """Return the largest number of trials, up to `max_trials`, that fits into both limits.

    `ask(trials, epochs)` gives the request for these trials, the best of them trained for these
    epochs; more of either must not mean less work in any stage. If not even one trial can be
    trained for `max_epochs`, the answer is one trial, trained as far as the limits pay for.

    Exact if the planner is: whatever can be done with more trials can be done with fewer on the
    same instances, no slower and at no more cost, so bisection finds the border.

    Raises:
        InfeasibleError: not even one epoch of one trial fits; it has the fastest and the cheapest.
    """
    trials, plan = _most(planner, lambda count: ask(count, max_epochs), max_trials)
    if plan is not None:
        return Explored(trials, max_epochs, plan)
    epochs, plan = _most(planner, lambda count: ask(1, count), max_epochs - 1)
    if plan is not None:
        return Explored(1, epochs, plan)
    return Explored(1, 1, planner.plan(ask(1, 1)))


def _most(
    planner: Planner, ask: Callable[[int], PlanRequest], most: int
) -> tuple[int, Plan | None]:
    """Return the largest size up to `most` that has a plan, and the plan; 0 and None if none.

    Planning a size takes long. The bound on all plans is quick and seldom far from the border, so
    the search begins there, moves up or down in growing steps, and ends with bisection.
    """
    size = max(1, _bound(ask, most))
    step = 1
    largest = 0
    plan = None
    above = most + 1
    while above - largest > 1:
        candidate = plan_within(planner, ask(size))
        if candidate is None:
            above = size
        else:
            largest = size
            plan = candidate
        if largest and above <= most:  # the border is between two planned sizes
            size = (largest + above) // 2
        else:
            size = min(largest + step, most) if largest else max(above - step, 1)
            step *= 2
    return largest, plan


def plan_within(planner: Planner, request: PlanRequest) -> Plan | None:
    """Return a planner's plan; None, without a reason, if it finds none."""
    if isinstance(planner, ExactPlanner):
        return planner.within(request)
    try:
        return planner.plan(request)
    except InfeasibleError:
        return None


def _bound(ask: Callable[[int], PlanRequest], most: int) -> int:
    """Return the largest size up to `most` for which the bound on all plans leaves room."""
    low = 0
    above = most + 1
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if _may_fit(ask(middle)) else (low, middle)
    return low


def _may_fit(request: PlanRequest) -> bool:
    search = make_search(request)
    allowance = request.allowance
    if not search.possible:
        return False
    deadline = math.inf if allowance.seconds is None else allowance.seconds
    budget = math.inf if allowance.dollars is None else allowance.dollars
    least = float(search.least.dollars_within(deadline * (1 + SLACK)))
    return math.isfinite(least) and least <= budget * (1 + SLACK)
