"""The cheapest elastic plan: fleet and width chosen anew for each stage. Exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.planners.choose import cheapest_within
from cloudtune.planners.front import front

if TYPE_CHECKING:
    from cloudtune.plan import Plan, PlanRequest


class ElasticPlanner:
    """Exact on one offer: `Plan.gap` is 0. Never dearer than the best static cluster."""

    name = "elastic"

    def plan(self, request: PlanRequest) -> Plan:
        """Return the cheapest elastic plan within the limits.

        Raises:
            InfeasibleError: there is none; carries the fastest and the cheapest plan there is.
        """
        return cheapest_within(self.name, request, front(request), gap=0.0)
