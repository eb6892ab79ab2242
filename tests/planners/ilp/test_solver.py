import subprocess
from random import Random
from typing import Any

import pulp
import pytest

from cloudtune.planners.ilp.solver import solve, total


def knapsack(things: int = 40, at_least: int = 0) -> Any:
    """Return a problem that takes a search: things of value, five limits for what they weigh."""
    draw = Random(1)
    problem: Any = pulp.LpProblem("knapsack", pulp.LpMinimize)
    taken = [problem.add_variable(f"x{n}", 0, 1, pulp.LpInteger) for n in range(things)]
    problem.setObjective(total((x, -draw.uniform(10, 100)) for x in taken))
    for _ in range(5):
        problem.addConstraint(total((x, draw.uniform(10, 100)) for x in taken) <= 500)
    problem.addConstraint(total((x, 1.0) for x in taken) >= at_least)
    return problem


def value(problem: Any) -> float:
    return float(pulp.value(problem.objective))


def test_what_is_cut_short_is_never_called_optimal() -> None:
    problem = knapsack()
    solved = solve(problem, nodes=1)
    assert solved.status == "feasible"
    assert solved.bound is not None
    assert solved.bound < value(problem) <= -600


def test_highs_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert solve(knapsack()).status == "optimal"
