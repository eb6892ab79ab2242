"""The plan of a strategy with stages, for what is played without an experiment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.errors import UsageError
from cloudtune.model.plans import Charges, Limits, Remaining
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.explore import explore
from cloudtune.policy.registry import STRATEGIES
from cloudtune.policy.schedule.stages import PLANNERS, compute_reserve, in_time_or_fastest

if TYPE_CHECKING:
    from cloudtune.model.plans import Plan, Stage
    from cloudtune.policy.base import Brakes
    from cloudtune.policy.context import BuildContext


def plan_stages(
    name: str,
    context: BuildContext,
    brakes: Brakes,
    *,
    trials: int,
    charges: Charges | None = None,
) -> Plan:
    """Return the plan of a strategy for up to `trials` trials, within the context's limits.

    Raises:
        UsageError: there is no trial.
        InfeasibleError: no offer can train a trial, or no plan keeps the limits that it is for.
    """
    if trials < 1:
        raise UsageError(f"{name}: there is no trial to run; give it one or more")
    planning, limits = STRATEGIES[name].planning, context.limits
    assert planning is not None
    planner, reserve = PLANNERS[planning.planner], compute_reserve(brakes)

    def request(work: tuple[Stage, ...], limits: Limits) -> PlanRequest:
        remaining = Remaining(limits.deadline, limits.budget).after(reserve.seconds)
        return PlanRequest(
            work=work,
            rentables=tuple(map(reserve.returned_late, context.rentables)),
            allowance=reserve.allowance(remaining),
            max_instances=context.max_instances,
            charges=charges or Charges(),
        )

    if planning.explores:

        def ask(count: int, epochs: int) -> PlanRequest:
            first = min(context.min_epochs, epochs)
            shorter = replace(context, min_epochs=first, max_epochs=epochs)
            return request(planning.stages(shorter, count), limits)

        return explore(planner, ask, max_trials=trials, max_epochs=context.max_epochs).plan
    work = planning.stages(context, trials)
    if planning.in_time:
        return in_time_or_fastest(planner, request(work, Limits(limits.deadline, None)))
    return planner.plan(request(work, limits))
