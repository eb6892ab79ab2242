"""Naive elasticity: the best static plan, with idle instances returned."""

import math
from dataclasses import replace

from cloudtune.model.placement import slots
from cloudtune.model.plans import Group, Plan
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.selection import improve_static, start_limits, with_gap
from cloudtune.planners.static import StaticPlanner


class NaivePlanner:
    """What people do by hand: plan a cluster, and let idle nodes go."""

    name = "naive"

    def plan(self, request: PlanRequest) -> Plan:
        """Return the best static plan without its idle instances, or unchanged if that is late.

        Raises:
            InfeasibleError: it is beyond the limits; it has the fastest and the cheapest plan that
                static plans lead to.
        """
        statics = list(StaticPlanner().every(request))
        lean = improve_static(
            request, statics, lambda static: self._lean(start_limits(request), static)
        )
        return with_gap(request, lean)

    def _lean(self, request: PlanRequest, static: Plan) -> Plan:
        """Return a static plan with its idle instances returned, if that keeps the limits."""
        choices = tuple(tuple(map(_fewest, stage.groups)) for stage in static.stages)
        lean = price(request, choices, self.name)
        if request.allowance.admit(lean.estimate):
            return lean
        return price(request, static.choices, self.name)


def _fewest(group: Group) -> Group:
    """Return the group on the fewest instances that run its trials in the same waves."""
    at_once = math.ceil(group.trials / group.waves)
    sizes = range(1, group.instances + 1)
    fewest = next(n for n in sizes if slots(group.width, group.offer.gpus, n) >= at_once)
    return replace(group, instances=fewest)
