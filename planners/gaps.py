"""How far a plan may be from the best there is: the gap that every heuristic's plan carries."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.planners.bounds import fluid, gap_to, least_of
from cloudtune.planners.search import search_of

if TYPE_CHECKING:
    from cloudtune.plan import Plan, PlanRequest


def with_gap(request: PlanRequest, plan: Plan) -> Plan:
    """Return the plan with its distance to what no plan can beat, as a share of that.

    By the better of two bounds: the general one, and that of the exact search, which knows of the
    first boot after every change of offers.
    """
    bounds = [least_of(stairs, request) for stairs in (fluid(request), search_of(request).least)]
    bound = max((each for each in bounds if math.isfinite(each)), default=0.0)
    return replace(plan, gap=gap_to(bound, request, plan.estimate))
