"""Which integer solver there is, and what its answer really says.

HiGHS, in this process, from the package highspy; where that is missing CBC, as a child process,
the binary that PuLP brings along. Solvers on PATH are ignored, and there is no default time limit:
the same problem has to get the same answer on every machine. The number of nodes of the search may
be bounded, and its seconds for comparisons.

Either solver has to be exact: no gap, and tolerances far below a cent or a second where
coefficients are around a thousand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pulp
from pulp.apis import coin_api

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

SolveStatus: TypeAlias = Literal["optimal", "feasible", "infeasible", "unknown"]

_TOLERANCE = 1e-9
_FEASIBLE_ROW = 1e-6


@dataclass(frozen=True)
class Solved:
    """What a solver achieved; the variables hold the values where there is a solution.

    `bound` is a proven lower bound of a minimum, None where there is none. "feasible" is
    a solution of a search that was cut short, "unknown" such a search without a solution.
    """

    status: SolveStatus
    bound: float | None
    solver: str


def solve(problem: Any, nodes: int | None = None, seconds: float | None = None) -> Solved:
    """Minimise a `pulp.LpProblem` with the first solver there is.

    The search visits at most `nodes` nodes and takes at most `seconds`, where they are given.

    Raises:
        UsageError: neither HiGHS nor CBC is installed.
    """
    if pulp.HiGHS(msg=False).available():
        return _highs(problem, nodes, seconds)
    cbc = _cbc(nodes, seconds)
    if cbc.available():
        return _with_cbc(problem, cbc)
    raise UsageError(
        "no integer solver is installed: install HiGHS with `pip install highspy`, "
        "or choose another planner than ilp"
    )


def total(terms: Iterable[tuple[Any, float]]) -> Any:
    """Return a sum of (variable, coefficient) as a linear expression."""
    expression = pulp.LpAffineExpression()
    for variable, coefficient in terms:
        expression.addterm(variable, coefficient)
    return expression


def _highs(problem: Any, nodes: int | None, seconds: float | None) -> Solved:
    """Solve in this process.

    PuLP builds the model; the answer is read here, for PuLP 3.3 knows no node limit
    ("kSolutionLimit") and calls some searches without a solution optimal.
    """
    options = {"mip_max_nodes": nodes} if nodes is not None else {}
    solver = pulp.HiGHS(
        msg=False,
        timeLimit=seconds,
        threads=1,
        gapRel=0.0,
        gapAbs=0.0,
        random_seed=0,
        mip_feasibility_tolerance=_TOLERANCE,
        primal_feasibility_tolerance=_TOLERANCE,
        dual_feasibility_tolerance=_TOLERANCE,
        **options,
    )
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    solver.callSolver(problem)
    model = problem.solverModel
    status = _highs_status(model)
    if status in ("optimal", "feasible"):
        values = list(model.getSolution().col_value)
        for variable in problem.variables():
            variable.varValue = values[variable.index]
    bound = float(model.getInfo().mip_dual_bound) if status != "infeasible" else None
    return Solved(status, _finite(bound), "HiGHS")


def _highs_status(model: Any) -> SolveStatus:
    name = model.getModelStatus().name
    if name in ("kOptimal", "kModelEmpty"):
        return "optimal"
    if name in ("kInfeasible", "kUnboundedOrInfeasible"):
        return "infeasible"
    return "feasible" if math.isfinite(model.getInfo().objective_function_value) else "unknown"


def _cbc(nodes: int | None, seconds: float | None = None) -> Any:
    # COIN_CMD with a path of its own: PULP_CBC_CMD, the same with this path, is deprecated.
    tolerances = [f"primalTolerance {_TOLERANCE}", f"integerTolerance {_TOLERANCE}"]
    return pulp.COIN_CMD(
        path=str(coin_api.pulp_cbc_path),
        msg=False,
        gapRel=0.0,
        gapAbs=0.0,
        maxNodes=nodes,
        timeLimit=seconds,
        options=[*tolerances, f"increment {_TOLERANCE}", "randomSeed 1", "randomCbcSeed 1"],
    )


def _with_cbc(problem: Any, cbc: Any) -> Solved:
    problem.solve(cbc)
    status = _cbc_status(problem)
    if status == "optimal":
        return Solved(status, float(pulp.value(problem.objective) or 0.0), "CBC")
    return Solved(status, None if status == "infeasible" else _relaxed(problem), "CBC")


def _cbc_status(problem: Any) -> SolveStatus:
    statuses = {
        pulp.LpSolutionOptimal: "optimal",
        pulp.LpSolutionIntegerFeasible: "feasible",
        pulp.LpSolutionInfeasible: "infeasible",
    }
    status: Any = statuses.get(problem.sol_status, "unknown")
    # A node limit may leave zeros that meet nothing, under the name of a solution.
    return "unknown" if status == "feasible" and not problem.valid(_FEASIBLE_ROW) else status


def _relaxed(problem: Any) -> float | None:
    """Return the bound without whole numbers: PuLP doesn't read the one that CBC prints."""
    values = [(variable, variable.varValue) for variable in problem.variables()]
    cbc = _cbc(None)
    cbc.mip = False
    problem.solve(cbc)
    solved = problem.sol_status == pulp.LpSolutionOptimal
    bound = float(pulp.value(problem.objective)) if solved else None
    for variable, value in values:
        variable.varValue = value
    return _finite(bound)


def _finite(bound: float | None) -> float | None:
    return bound if bound is not None and math.isfinite(bound) else None
