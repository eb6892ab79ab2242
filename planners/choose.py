"""From a front and limits to one plan, or to a clear account of why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.errors import InfeasibleError
from cloudtune.planners.front import to_plan
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.plan import Limits, Plan, PlanRequest
    from cloudtune.planners.front import Label


def cheapest_within(
    planner: str, request: PlanRequest, labels: Sequence[Label], *, gap: float | None
) -> Plan:
    """Return the cheapest of the labels that the job's limits admit, as a plan.

    Raises:
        InfeasibleError: they admit none; the message names the fastest and the cheapest.
    """
    plans = [to_plan(planner, request, label, gap=gap) for label in labels]
    admitted = [plan for plan in plans if request.limits.admit(plan.estimate)]
    if admitted:
        return min(admitted, key=lambda plan: (plan.estimate.dollars, plan.estimate.seconds))
    fastest = min(plans, key=lambda p: (p.estimate.seconds, p.estimate.dollars), default=None)
    cheapest = min(plans, key=lambda p: (p.estimate.dollars, p.estimate.seconds), default=None)
    raise InfeasibleError(_why(request.limits, fastest, cheapest), fastest, cheapest)


def _why(limits: Limits, fastest: Plan | None, cheapest: Plan | None) -> str:
    if fastest is None or cheapest is None:
        return "no measured width fits on the instances allowed; raise cloud.max_instances"
    wanted = [
        *([f"within {format_seconds(limits.deadline)}"] if limits.deadline is not None else []),
        *([f"for {format_dollars(limits.budget)}"] if limits.budget is not None else []),
    ]
    return (
        f"no plan finishes {' '.join(wanted)}. "
        f"The fastest takes {_price(fastest)}; the cheapest takes {_price(cheapest)}. "
        "Raise --deadline or --budget, try fewer trials, or let the run stop at its limits "
        "with `cloudtune run --force`."
    )


def _price(plan: Plan) -> str:
    return (
        f"{format_seconds(plan.estimate.seconds)} and {format_dollars(plan.estimate.dollars)}"
        f" ({plan.most_instances} x {plan.offer.instance_type.name})"
    )
