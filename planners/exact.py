"""The exact planner: the best offers, fleets and widths for each stage."""

from dataclasses import replace

from cloudtune.model.plans import Allowance, Plan
from cloudtune.planners.base import Planner, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.bounds import gap_to
from cloudtune.planners.dp.front import falling, knees, whole_front
from cloudtune.planners.dp.options import complete
from cloudtune.planners.dp.search import make_search
from cloudtune.planners.dp.ways import Solution
from cloudtune.planners.selection import refuse, with_gap

# The relative difference of sums in another order.
_EQUAL = 1e-9


class ExactPlanner:
    """Pareto dynamic programming over stages: `Plan.gap` is 0.

    The problem is that of RubberBand (EuroSys 2021), extended to several offers; the method is
    ours: docs/decisions/0004-exact-planner.md. Bills rounded up to the offers' granularity are
    searched too, among a bounded number of partial plans. If these, or the fleet sizes that there
    is time to try, are incomplete, the plan isn't called optimal, and its gap is the distance to a
    bound: the best plan with exact bills. Among more than a dozen offers the search leaves out
    plans that move to an offer which another one beats in every way, only to save the unbilled
    seconds of a launch.

    `quick`: bills by the second are searched as if they were exact, if that plan keeps the limits.
    A second is far below noise, and searching over rounded bills would take as long again.
    """

    name = "exact"

    def __init__(self, *, quick: bool = False) -> None:
        self._quick = quick

    def plan(self, request: PlanRequest) -> Plan:
        """Return the best plan within the limits.

        Raises:
            InfeasibleError: there is none; it has the fastest and the cheapest plan.
        """
        plan = self.within(request)
        if plan is not None:
            return plan
        ends = make_search(request).ends()
        plans = [None if end is None else self._plan_exact_bills(request, end) for end in ends]
        raise refuse(request, *plans)

    def within(self, request: PlanRequest) -> Plan | None:
        """Return the best plan within the limits, or None without a reason.

        A reason would take two more searches, without limits.
        """
        solution = make_search(request).best(request.allowance, request.objective)
        if solution is None:
            return None
        coarsest = max(rentable.offer.granularity_seconds for rentable in request.rentables)
        if coarsest <= 1.0 and self._quick:
            plan = self._plan_exact_bills(request, solution)
            if request.allowance.admit(plan.estimate):
                return plan
        if coarsest > 0:
            return self._plan_rounded_bills(request, solution)
        return self._plan_exact_bills(request, solution)

    def front(self, request: PlanRequest, points: int) -> list[Plan]:
        """Return plans from the fastest to the cheapest, each the cheapest for its time.

        At most `points` plans: the two ends, and those that add most area to the front. Limits are
        ignored. Empty if no plan can do the work.
        """
        solutions = whole_front(replace(request, allowance=Allowance()))
        chosen = knees([(solution.seconds, solution.dollars) for solution in solutions], points)
        plans = [self._plan_exact_bills(request, solutions[place]) for place in chosen]
        return falling(plans, lambda plan: plan.estimate.dollars)

    def _plan_exact_bills(self, request: PlanRequest, instant: Solution) -> Plan:
        """Return the best plan by exact bills: a bound for rounded ones."""
        plan = price(request, instant.choices, self.name, gap=0.0, status="optimal")
        if not complete(request):
            return replace(with_gap(request, plan), status="feasible")
        bound = instant.dollars if request.objective == "cost" else instant.seconds
        gap = gap_to(bound, request, plan.estimate)
        return plan if gap < _EQUAL else replace(plan, gap=gap, status="feasible")

    def _plan_rounded_bills(self, request: PlanRequest, instant: Solution) -> Plan | None:
        """Return the best plan by rounded bills."""
        plan = self._plan_exact_bills(request, instant)
        if plan.gap == 0.0 and request.allowance.admit(plan.estimate):
            return plan
        incumbent: Solution | None = None
        if request.allowance.admit(plan.estimate):
            incumbent = replace(instant, dollars=plan.estimate.dollars)
        search = make_search(request, rounded=True)
        solution = search.best(request.allowance, request.objective, incumbent)
        if solution is None:
            return None
        if solution is not incumbent:
            plan = self._plan_exact_bills(request, replace(instant, choices=solution.choices))
        if search.proven and complete(request, rounded=True):
            return replace(plan, gap=0.0, status="optimal")
        return plan


QUICK = ExactPlanner(quick=True)


def quick_form(planner: Planner) -> Planner:
    """Return the quick form of a planner, or the planner itself if it has none."""
    return QUICK if isinstance(planner, ExactPlanner) else planner
