"""The best elastic plan by integer linear programming: the check on the dynamic programming.

A plan is a path through the graph of planners/ilp/graph.py: a binary variable for each way to run a
stage, a flow over the arcs between them, and the limits as rows, without big-M deadlines. What no
arc can see, the surcharge of instances returned young, is added by cuts: solve, price the plan as
planners/cost_model.py does, add what it owes as cuts that hold for every plan with the same
history, and solve again until nothing is missing. The bound of every round is proven, so a search
that is cut short still says how far off it may be.

The problem is RubberBand's (EuroSys 2021); the cuts are those of the integer L-shaped method
(Laporte and Louveaux, 1993), lifted over launches and returns.
"""

from dataclasses import dataclass, replace

from cloudtune.errors import UsageError
from cloudtune.model.plans import Allowance, Objective, Plan
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.ilp.graph import Graph, Path
from cloudtune.planners.ilp.master import Master, Measure, loose
from cloudtune.planners.selection import measures, refuse


class IlpPlanner:
    """Exact for small problems: `gap` is 0 and `status` "optimal" unless the search was cut short.

    `rounds` and `nodes` bound the search. `max_arcs` bounds the size of the problem: ways to run a
    stage squared, times stages. 3 offers of 8 instances and 4 widths over 10 stages have about
    80,000, and take 15 s.
    """

    def __init__(
        self,
        *,
        rounds: int = 300,
        nodes: int | None = None,
        max_arcs: int = 200_000,
    ) -> None:
        self.name = "ilp"
        self.rounds = rounds
        self.nodes = nodes
        self.max_arcs = max_arcs

    def plan(self, request: PlanRequest) -> Plan:
        """Return the best plan within the limits; ties go to the faster, or the cheaper.

        Raises:
            InfeasibleError: there is none; it has the fastest and the cheapest plan.
            UsageError: the problem is too big, or the search was cut short without any plan.
        """
        graph = Graph(request)
        if not all(graph.ways):
            raise refuse(request, None, None)
        if graph.size > self.max_arcs:
            raise UsageError(_too_big(graph, self.max_arcs))
        plan = self._best(graph, request.allowance, request.objective)
        if plan is None:
            ends = (self._best(graph, Allowance(), objective) for objective in ("time", "cost"))
            raise refuse(request, *ends)
        return plan

    def _best(self, graph: Graph, allowance: Allowance, objective: Objective) -> Plan | None:
        return _Search(graph, allowance, objective, self).run()


def _too_big(graph: Graph, most: int) -> str:
    ways = max(map(len, graph.ways))
    return (
        f"the job is too big for the ilp planner: {graph.size:,} arcs (up to {ways:,} ways to run "
        f"each of {len(graph.ways)} stages), and it takes {most:,} at most; use --planner exact, "
        "or allow fewer offers or instances"
    )


@dataclass(frozen=True)
class _Candidate:
    """A plan, its path, and its measures: dollars, seconds and rank."""

    plan: Plan
    path: Path
    rank: float

    def measure(self, what: Measure) -> float:
        if what == "rank":
            return self.rank
        return measures(self.plan, what)[0]


class _Search:
    """One search: minimise the objective, then the other measure, then a fixed rank.

    The rank makes the answer unique under any limits, because offers may be alike.
    """

    def __init__(
        self, graph: Graph, allowance: Allowance, objective: Objective, bounds: IlpPlanner
    ) -> None:
        self._graph = graph
        self._allowance = allowance
        self._bounds = bounds
        self._order: tuple[Measure, ...] = (
            ("cost", "time", "rank") if objective == "cost" else ("time", "cost", "rank")
        )
        self._master = Master(graph)
        self._most: dict[Measure, float] = {}
        self._best: _Candidate | None = None
        self._cut_short = False

    def run(self) -> Plan | None:
        """Return the best plan, or None if no plan meets the limits.

        Raises:
            UsageError: the search was cut short without a plan.
        """
        if self._allowance.seconds is not None:
            self._master.limit("time", self._allowance.seconds)
        if self._allowance.dollars is not None:
            self._master.limit("cost", self._allowance.dollars)
        first, *ties = self._order
        bound = self._minimise(first)
        if self._best is None:
            if self._cut_short:
                raise UsageError(
                    f"the ilp planner was cut short (rounds: {self._bounds.rounds}, nodes: "
                    f"{self._bounds.nodes}) before it found a plan within the "
                    "limits; use --planner exact"
                )
            return None
        gap = _gap(self._best.measure(first), bound)
        if gap != 0.0:
            return replace(self._best.plan, gap=gap, status="feasible")
        for measure, then in zip(self._order, ties, strict=False):
            self._bound_by_best(measure)
            self._minimise(then)
        return replace(self._best.plan, gap=0.0, status="optimal")

    def _bound_by_best(self, measure: Measure) -> None:
        assert self._best is not None
        self._most[measure] = loose(self._best.measure(measure))
        self._master.limit(measure, self._best.measure(measure))

    def _minimise(self, measure: Measure) -> float | None:
        """Minimise a measure; return the best proven bound."""
        bound: float | None = None
        for _ in range(self._bounds.rounds):
            solved = self._master.minimise(measure, self._bounds.nodes)
            if solved.status == "infeasible":
                return None if self._best is None else self._best.measure(measure)
            if solved.bound is not None:
                bound = solved.bound if bound is None else max(solved.bound, bound)
            if solved.status == "unknown":
                break
            learnt = self._try_path(self._master.path(), measure)
            if self._best is None:
                continue
            value = self._best.measure(measure)
            if _gap(value, bound) == 0.0:
                return bound
            if not learnt:
                if solved.status == "optimal":
                    return value
                break
        self._cut_short = True
        return bound

    def _try_path(self, path: Path, measure: Measure) -> bool:
        """Price a path and keep it if it is the best; return whether it led to new cuts."""
        plan = price(self._graph.request, self._graph.choices(path), "ilp")
        candidate = _Candidate(plan, path, self._master.rank(path))
        learnt = self._master.cut(path)
        if self._admits(candidate):
            if self._best is None or candidate.measure(measure) < self._best.measure(measure):
                self._best = candidate
        elif not learnt:
            self._master.forbid(path)
            learnt = True
        return learnt

    def _admits(self, candidate: _Candidate) -> bool:
        return self._allowance.admit(candidate.plan.estimate) and all(
            candidate.measure(measure) <= most for measure, most in self._most.items()
        )


def _gap(value: float, bound: float | None) -> float | None:
    """Return how far a value is above the bound, as a share; 0 within rounding."""
    if bound is None:
        return None
    if value <= loose(bound):
        return 0.0
    return (value - bound) / bound if bound > 0 else None
