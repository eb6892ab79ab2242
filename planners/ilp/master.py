"""The integer program of `planner`: paths, rows for limits, and the debts so far."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pulp

from cloudtune.planners.ilp.graph import Arc, Graph, Path
from cloudtune.planners.ilp.solver import Solved, solve, total

# What can be minimised or limited; the rank breaks ties between plans.
Measure: TypeAlias = Literal["cost", "time", "rank"]

# Rows and objectives are scaled to about this size, far above the solver's tolerances.
_SCALE = 1e3
# The solver keeps its constraints only within this tolerance.
_DUE = 1e-8
_SAME = 1e-8
# The multiples of this number modulo 1 are far apart, however many there are.
_GOLDEN = (math.sqrt(5) - 1) / 2


def loose(value: float) -> float:
    """Return slightly more than a value, whose last bits depend on the order of a sum."""
    return value + _SAME * max(abs(value), _SAME)


class Master:
    """The integer program: paths, rows for limits, and the debts so far."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._problem: Any = pulp.LpProblem("plan", pulp.LpMinimize)
        self._nodes = [self._add_nodes(stage) for stage in range(len(graph.ways))]
        self._flows = [self._add_flows(stage) for stage in range(len(graph.arcs))]
        first_launch = -1 if graph.request.fleet else 0
        self._debts = {
            (launch, end): self._problem.add_variable(f"d{launch + 1}_{end}", 0)
            for end in range(len(graph.arcs))
            for launch in range(first_launch, end)
        }
        self._scales = {"cost": self._scale("cost"), "time": self._scale("time"), "rank": 1.0}
        self._goals = {what: self._goal(what) for what in ("cost", "time", "rank")}
        self._connect()
        self._bills_the_least = False

    def _add_nodes(self, stage: int) -> list[Any]:
        """Return a variable for each way of a stage: whether the path takes it."""
        return [
            self._problem.add_variable(f"n{stage}_{way}", 0, 1, pulp.LpInteger)
            for way in range(len(self._graph.ways[stage]))
        ]

    def _add_flows(self, stage: int) -> list[list[Any]]:
        """Return a variable for each arc of a stage, by its tail."""
        flows = []
        for tail, heads in enumerate(self._graph.arcs[stage]):
            names = [f"a{stage}_{tail}_{head}" for head in range(len(heads))]
            flows.append([self._problem.add_variable(name, 0, 1) for name in names])
        return flows

    def minimise(self, measure: Measure, nodes: int | None) -> Solved:
        """Solve, and return the outcome, the bound in the measure's own unit."""
        self._problem.setObjective(self._goals[measure])
        solved = solve(self._problem, nodes)
        bound = None if solved.bound is None else solved.bound / self._scales[measure]
        return replace(solved, bound=bound)

    def path(self) -> Path:
        return tuple(
            max(range(len(layer)), key=lambda node: layer[node].varValue) for layer in self._nodes
        )

    def limit(self, measure: Measure, most: float) -> None:
        """Bound a measure from above, with slack for the rounding of sums."""
        self._problem.addConstraint(self._goals[measure] <= loose(most) * self._scales[measure])

    def forbid(self, path: Path) -> None:
        nodes = [(layer[node], 1.0) for layer, node in zip(self._nodes, path, strict=True)]
        self._problem.addConstraint(total(nodes) <= len(path) - 1)

    def rank(self, path: Path) -> float:
        return sum(self._rank(stage, node) for stage, node in enumerate(path))

    def cut(self, path: Path) -> bool:
        """Add cuts for what a path owes and isn't charged yet; return whether there are any."""
        missing = False
        for (launch, end), debt in self._debts.items():
            tail = self._graph.node(path, max(launch, 0))
            owed = self._graph.minimum_charges(path, launch, end, tail)
            due = owed[self._graph.node(path, end + 1)]
            if due * self._scales["cost"] > (debt.varValue or 0.0) + _DUE:
                self._charge(path, launch, end, owed)
                missing = True
        if missing and not self._bills_the_least:
            self._bill_the_least()
        return missing

    def _charge(self, path: Path, launch: int, end: int, owed: Sequence[float]) -> None:
        """Make paths with this history owe this amount, whatever comes after `end`.

        The history is a launch by the same arc, or by one from another node that leads to no less,
        and the same nodes from there to the end.
        """
        graph = self._graph
        most = max(owed) * self._scales["cost"]
        history: list[tuple[Any, float]] = []
        for stage in range(max(launch, 0), end):
            tails: Sequence[int] = [graph.node(path, stage)]
            if stage == launch > 0:
                others = range(len(graph.held[launch]))
                tails = [a for a in others if self._no_less(path, launch, end, a, owed)]
            history += [(self._flows[stage][a][path[stage]], most) for a in tails]
        last = self._flows[end][graph.node(path, end)]
        dues = [(flow, due * self._scales["cost"]) for flow, due in zip(last, owed, strict=True)]
        free = most * (end - max(launch, 0))
        self._problem.addConstraint(
            total([(self._debts[launch, end], 1.0), *((v, -c) for v, c in dues + history)]) >= -free
        )

    def _no_less(self, path: Path, launch: int, end: int, tail: int, owed: Sequence[float]) -> bool:
        other = self._graph.minimum_charges(path, launch, end, tail)
        return all(theirs >= ours for theirs, ours in zip(other, owed, strict=True))

    def _connect(self) -> None:
        for layer in self._nodes:
            self._problem.addConstraint(total((node, 1.0) for node in layer) == 1)
        for stage, layer in enumerate(self._nodes):
            for number, node in enumerate(layer):
                arriving = [(flows[number], 1.0) for flows in self._flows[stage]]
                leaving = [(flow, 1.0) for flow in self._flows[stage + 1][number]]
                self._problem.addConstraint(total([*arriving, (node, -1.0)]) == 0)
                self._problem.addConstraint(total([*leaving, (node, -1.0)]) == 0)

    def _bill_the_least(self) -> None:
        """Make all debts together cover the least that instances are billed.

        The cuts imply this in the end, but if no instance outlives its minimum charge, this row
        says it at once. The row is long, so it is added only when a debt appears.
        """
        self._bills_the_least = True
        scale = self._scales["cost"]
        gaps = [(flow, (arc.floor - arc.lived) * -scale) for arc, flow in self._arcs()]
        debts = [(debt, 1.0) for debt in self._debts.values()]
        least = self._graph.fleet_floor * scale
        self._problem.addConstraint(total([*debts, *gaps]) >= least - _DUE)

    def _arcs(self) -> Iterator[tuple[Arc, Any]]:
        for arcs, flows in zip(self._graph.arcs, self._flows, strict=True):
            for some, others in zip(arcs, flows, strict=True):
                yield from zip(some, others, strict=True)

    def _scale(self, measure: Measure) -> float:
        least = 0.0
        for stage in self._graph.arcs:
            arcs = itertools.chain.from_iterable(stage)
            least += min(_arc_measure(arc, measure) for arc in arcs)
        return _SCALE / least if least > 0 else 1.0

    def _goal(self, measure: Measure) -> Any:
        if measure == "rank":
            return total(
                (node, self._rank(stage, number))
                for stage, layer in enumerate(self._nodes)
                for number, node in enumerate(layer)
            )
        scale = self._scales[measure]
        flows = [(flow, _arc_measure(arc, measure) * scale) for arc, flow in self._arcs()]
        debts = [(debt, 1.0) for debt in self._debts.values()] if measure == "cost" else []
        return total([*flows, *debts])

    def _rank(self, stage: int, node: int) -> float:
        """Return a node's rank: its place, plus a fraction that makes sums of ranks differ."""
        number = sum(map(len, self._nodes[:stage])) + node + 1
        return node + number * _GOLDEN % 1.0


def _arc_measure(arc: Arc, measure: Measure) -> float:
    return arc.dollars if measure == "cost" else arc.seconds
