"""The best plan there is: offers, fleets and widths chosen anew for each stage. Exact."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.front import knees, whole_front
from cloudtune.planners.dp.options import complete
from cloudtune.planners.dp.search import search_of
from cloudtune.planners.selection import refuse, with_gap
from cloudtune.plans import Limits

if TYPE_CHECKING:
    from cloudtune.planners.base import PlanRequest
    from cloudtune.planners.dp.search import Found, Search
    from cloudtune.plans import Objective, Plan


_ROUNDINGS = 4
_FINEST = 1.0
"""Seconds of billing granularity up to which rounding a bill up is beside the point."""


class ExactPlanner:
    """Pareto dynamic programming over stages: `Plan.gap` is 0.

    The problem is that of RubberBand (EuroSys 2021), widened to several offers; the method is ours:
    docs/decisions/0004-exact-planner.md. A bill's rounding up to the offers' granularity is priced,
    but not searched over: the best is meant up to a second's price of each instance, and where
    bills are rounded by more than a second, or where more fleet sizes would have to be tried than
    there is time for, the plan isn't called optimal, and its gap is the distance to
    the general bound. Among more than a dozen offers no plan is looked for that moves to an offer
    which another one beats in every way, only to save the unbilled seconds of a launch.
    """

    name = "exact"

    def plan(self, request: PlanRequest) -> Plan:
        """Return the best plan within the limits.

        Raises:
            InfeasibleError: there is none; carries the fastest and the cheapest plan there is.
        """
        plan = self.within(request)
        if plan is not None:
            return plan
        search = search_of(request)
        fastest, cheapest = (
            None if end is None else self._priced(request, end) for end in ends(search)
        )
        raise refuse(request, fastest, cheapest)

    def within(self, request: PlanRequest) -> Plan | None:
        """Return the best plan within the limits; None where there is none, and no account of why.

        That account takes two more searches, without limits.
        """
        search, limits = search_of(request), request.limits
        for _ in range(_ROUNDINGS):
            found = search.best(limits, request.objective)
            if found is None:
                return None
            plan = self._priced(request, found)
            if request.limits.admit(plan.estimate) or limits.budget is None:
                return plan
            # Rounded up to whole seconds the bill is too high: search for one with that to spare.
            excess = plan.estimate.dollars - found.dollars
            limits = replace(limits, budget=limits.budget - excess)
        return None

    def front(self, request: PlanRequest, points: int) -> list[Plan]:
        """Return plans from the fastest to the cheapest, each the cheapest for its time.

        At most `points` plans: the two ends, and those that add most area to the front; limits are
        ignored. Empty where no plan can do the work.
        """
        found = whole_front(replace(request, limits=Limits()))
        chosen = knees([(each.seconds, each.dollars) for each in found], points)
        return _falling([self._priced(request, found[place]) for place in chosen])

    def _priced(self, request: PlanRequest, found: Found) -> Plan:
        plan = price(request, found.choices, self.name, gap=0.0, status="optimal")
        fine = all(offer.granularity_seconds <= _FINEST for offer in plan.offers)
        if fine and complete(request):
            return plan
        return replace(with_gap(request, plan), status="feasible")


def ends(search: Search) -> tuple[Found | None, Found | None]:
    """Return the fastest and the cheapest way through a search."""
    objectives: tuple[Objective, Objective] = ("time", "cost")
    fastest, cheapest = (search.best(Limits(), objective) for objective in objectives)
    return fastest, cheapest


def _falling(plans: list[Plan]) -> list[Plan]:
    """Return the plans that are cheaper than all faster ones."""
    kept: list[Plan] = []
    for plan in plans:
        if not kept or plan.estimate.dollars < kept[-1].estimate.dollars:
            kept.append(plan)
    return kept
