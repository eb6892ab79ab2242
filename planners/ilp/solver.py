"""The integer solver, and the interpretation of its answers.

It is HiGHS, in this process, from the package highspy. There is no default time limit: a problem
must get the same answer on every machine. The nodes of the search may be bounded.

The solver must be exact: no gap, and tolerances far below a cent or a second with coefficients
around a thousand.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pulp

SolveStatus: TypeAlias = Literal["optimal", "feasible", "infeasible", "unknown"]

# HiGHS's defaults, 1e-6 and 1e-7, let a plan seem cheaper than it is.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Solved:
    """What a solver achieved; if there is a solution, the variables have its values.

    `bound` is a proven lower bound of a minimum, or None. "feasible" is a solution of a search that
    was cut short, "unknown" such a search without a solution.
    """

    status: SolveStatus
    bound: float | None


def total(terms: Iterable[tuple[Any, float]]) -> Any:
    """Return a sum of (variable, coefficient) as a linear expression."""
    expression = pulp.LpAffineExpression()
    for variable, coefficient in terms:
        expression.addterm(variable, coefficient)
    return expression


def solve(problem: Any, nodes: int | None = None) -> Solved:
    """Minimise a `pulp.LpProblem`.

    The search visits at most `nodes` nodes, if given. PuLP builds the model; the answer is read
    here, because PuLP 3.3 knows no node limit ("kSolutionLimit") and calls some searches without a
    solution optimal.
    """
    options = {"mip_max_nodes": nodes} if nodes is not None else {}
    solver = pulp.HiGHS(
        msg=False,
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
    status = _status(model)
    if status in ("optimal", "feasible"):
        values = list(model.getSolution().col_value)
        for variable in problem.variables():
            variable.varValue = values[variable.index]
    bound = float(model.getInfo().mip_dual_bound)
    has_bound = status != "infeasible" and math.isfinite(bound)
    return Solved(status, bound if has_bound else None)


def _status(model: Any) -> SolveStatus:
    name = model.getModelStatus().name
    if name in ("kOptimal", "kModelEmpty"):
        return "optimal"
    if name in ("kInfeasible", "kUnboundedOrInfeasible"):
        return "infeasible"
    return "feasible" if math.isfinite(model.getInfo().objective_function_value) else "unknown"
