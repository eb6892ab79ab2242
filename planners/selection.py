"""From a planner's result to a plan, or to a clear error that says why there is none."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudtune.model.plans import Allowance, Objective, Plan, RunPlan
from cloudtune.model.text import cost_format, limit_texts
from cloudtune.model.units import format_seconds
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.dp.bounds import fluid, gap_to, minimum
from cloudtune.planners.dp.search import make_search


def choose_best(request: PlanRequest, plans: Sequence[Plan]) -> Plan:
    """Return the best plan within the limits, by the request's objective.

    Raises:
        InfeasibleError: there is none; it has the fastest and the cheapest of the plans.
    """
    admitted = [plan for plan in plans if request.allowance.admit(plan.estimate)]
    if admitted:
        return min(admitted, key=lambda plan: measures(plan, request.objective))
    raise refuse(request, *_ends(plans))


def _ends(plans: Sequence[Plan]) -> tuple[Plan | None, Plan | None]:
    """Return the fastest and the cheapest plan."""
    fastest = min(plans, key=lambda plan: measures(plan, "time"), default=None)
    cheapest = min(plans, key=lambda plan: measures(plan, "cost"), default=None)
    return fastest, cheapest


def measures(plan: Plan | RunPlan, objective: Objective) -> tuple[float, float]:
    """Return the measure that is minimised, and the one that breaks ties."""
    both = (plan.estimate.dollars, plan.estimate.seconds)
    return both if objective == "cost" else both[::-1]


def improve_static(
    request: PlanRequest, statics: Sequence[Plan], improve: Callable[[Plan], Plan]
) -> Plan:
    """Return the improved best static plan.

    Raises:
        InfeasibleError: it is beyond the limits; it has the fastest and the cheapest plan that the
            static plans lead to.
    """
    within = [plan for plan in statics if start_limits(request).allowance.admit(plan.estimate)]
    if within:
        start = min(within, key=lambda plan: measures(plan, request.objective))
        improved = improve(start)
        if request.allowance.admit(improved.estimate):
            return improved
    raise refuse(request, *_ends([improve(plan) for plan in statics]))


def start_limits(request: PlanRequest) -> PlanRequest:
    """Return the request without the limit on what is minimised.

    A heuristic that lowers it step by step may begin beyond that limit and end within it.
    """
    deadline = request.allowance.seconds
    budget = request.allowance.dollars
    kept = Allowance(deadline, None) if request.objective == "cost" else Allowance(None, budget)
    return replace(request, allowance=kept)


def refuse(request: PlanRequest, fastest: Plan | None, cheapest: Plan | None) -> InfeasibleError:
    """Return the error for limits that no plan meets; it names the nearest plans."""
    return InfeasibleError(_why(request, fastest, cheapest), fastest, cheapest)


def _why(request: PlanRequest, fastest: Plan | None, cheapest: Plan | None) -> str:
    allowance = request.allowance
    if fastest is None or cheapest is None:
        return (
            "no measured width fits on the instances allowed; raise cloud.max_instances, or the "
            "vCPU quota that it is bounded by"
        )
    late = fastest.estimate.seconds > (allowance.seconds or math.inf)
    dear = cheapest.estimate.dollars > (allowance.dollars or math.inf)
    if late and not dear:
        ends = f"The fastest takes {describe(fastest)}"
    elif dear and not late:
        ends = f"The cheapest takes {describe(cheapest)}"
    else:
        ends = f"The fastest takes {describe(fastest)}; the cheapest takes {describe(cheapest)}"
    given = {"--deadline": allowance.seconds, "--budget": allowance.dollars}
    options = [name for name, limit in given.items() if limit is not None]
    return (
        f"no plan finishes {describe_limits(request)}. {ends}. "
        f"Raise {' or '.join(options)}, try fewer trials, or let the run stop at its limits "
        "with `cloudtune run --force`."
    )


def describe_limits(request: PlanRequest) -> str:
    """Return "within 2h for $40.00"."""
    allowance = request.allowance
    cost = cost_format(rentable.offer for rentable in request.rentables)
    return " ".join(limit_texts(allowance.seconds, allowance.dollars, "within ", "for ", cost))


def describe(plan: Plan) -> str:
    """Return a plan in a few words: time, price and the largest fleet of each offer."""
    most: dict[str, int] = {}
    for offer, sizes in plan.sizes.items():
        name = offer.instance_type.name + (" spot" if offer.spot else "")
        most[name] = max(most.get(name, 0), *sizes)
    fleet = ", ".join(f"{count} x {name}" for name, count in most.items())
    estimate = plan.estimate
    price = f" and {cost_format(plan.offers)(estimate.dollars)}" if estimate.dollars else ""
    return f"{format_seconds(estimate.seconds)}{price} ({fleet})"


def with_gap(request: PlanRequest, plan: Plan) -> Plan:
    """Return the plan with its gap to a lower bound, as a share of the bound.

    It uses the better of two bounds: the general one, and that of the exact search, which includes
    the first boot after every change of offers.
    """
    bounds = [minimum(stairs, request) for stairs in (fluid(request), make_search(request).least)]
    bound = max((value for value in bounds if math.isfinite(value)), default=0.0)
    return replace(plan, gap=gap_to(bound, request, plan.estimate))
