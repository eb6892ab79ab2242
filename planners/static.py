"""The cheapest static plan: one fleet from the start to the end. The baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.planners.choose import cheapest_within
from cloudtune.planners.front import front

if TYPE_CHECKING:
    from cloudtune.plan import Plan, PlanRequest


class StaticPlanner:
    """Exact among fixed fleets, with the best width for each stage."""

    name = "static"

    def plan(self, request: PlanRequest) -> Plan:
        """Return the cheapest plan that keeps one fleet size throughout.

        Raises:
            InfeasibleError: no fixed fleet meets the limits; carries the fastest and cheapest.
        """
        labels = [
            label
            for size in range(1, request.max_instances + 1)
            for label in front(request, allowed=lambda choice, size=size: choice[0] == size)  # type: ignore[misc]
        ]
        return cheapest_within(self.name, request, labels, gap=None)
