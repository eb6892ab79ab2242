"""Whether `--confidence` finds a sure plan where there is one, and keeps what it promises.

    python -m benchmarks.sureness [--questions 160] [--runs 100] [--processes 2]

Each question is a random job of successive halving, on demand, on spot or both, with a deadline or
both limits, drawn so that some plan of its front should keep them about as surely as is asked.
The truth is the policy in virtual time, at speeds and on pools that may be: a refusal is false if
that plan's own runs keep the limits often enough, with all of the work done; a promise is false if
the runs of the plan that was given keep them too rarely, by more than two standard errors.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks.one_price import MARKETS, TYPES, Elsewhere, made_experiment, made_profile
from benchmarks.runner import in_processes, parser
from cloudtune.forecast import make
from cloudtune.forecast.problem import build_problem
from cloudtune.forecast.staged_plans import (
    EXACT,
    SETUP_SECONDS,
    PlanOptions,
    Question,
    build_request,
)
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.estimate.outlook import fitting
from cloudtune.planners.estimate.rollout import sample

if TYPE_CHECKING:
    from cloudtune.forecast.staged_plans import Problem
    from cloudtune.model.plans import Plan

# Seconds that a run needs before its stages and after them, about.
_RESERVE = SETUP_SECONDS + 30.0


@dataclass(frozen=True)
class Answer:
    """How often the known plan and the given one keep the limits; None where none was given."""

    asked: float
    known: float
    given: float | None
    seconds: float


def _kept(problem: Problem, limits: Limits, plan: Plan, runs: int) -> float:
    question = Question(problem, limits, PlanOptions())
    played = Elsewhere(question, plan, samples=runs, follows=True)
    return played.forecast().within or 0.0


def _limits(problem: Problem, draw: random.Random, confidence: float) -> tuple[Limits, Plan]:
    """Return limits that a plan of the front should keep with about that probability."""
    request = build_request(problem, Limits())
    plan = draw.choice(EXACT.front(request, 12))
    draws = sample(request, plan, samples=1000, seed=0)
    both = draw.random() < 0.5
    share = (1 + confidence) / 2 if both else confidence
    left = fitting(Limits(1.0, 1.0)).deadline or 1.0
    slack = draw.uniform(1.0, 1.1) / left
    deadline = float(np.quantile(draws.seconds, share)) * slack + _RESERVE
    budget = float(np.quantile(draws.dollars, share)) * slack
    return Limits(deadline, budget if both else None), plan


def answer(number: int, runs: int) -> Answer:
    """Return what became of a question."""
    draw = random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLOUDTUNE_HOME"] = f"{folder}/home"
        experiment = made_experiment(draw, MARKETS[number % len(MARKETS)], "sha", Path(folder))
        profiles = [made_profile(draw, name, TYPES[name]) for name in experiment.cloud.instances]
        problem = build_problem(experiment, profiles)
        confidence = draw.choice([0.8, 0.9, 0.95])
        limits, sure_plan = _limits(problem, draw, confidence)
        given = None
        began = time.process_time()
        try:
            planned = make.make_plan(problem, limits, PlanOptions(confidence=confidence))
        except InfeasibleError:
            planned = None
        seconds = time.process_time() - began
        if planned is not None and planned.plan.staged is not None:
            given = _kept(planned.problem, limits, planned.plan.staged, runs)
        on = replace(
            problem, rentables=tuple(map(build_request(problem, limits).rentable, sure_plan.offers))
        )
        return Answer(confidence, _kept(on, limits, sure_plan, runs), given, seconds)


def main() -> None:
    options = parser(__doc__, questions=160, runs=100, processes=2).parse_args()
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # prices are those of the table
    work = partial(answer, runs=options.runs)
    answers = list(in_processes(work, range(options.questions), options.processes))
    table = pd.DataFrame(answers)
    sure = table[table["known"] >= table["asked"]]
    promised = table.dropna(subset="given")
    error = (promised["asked"] * (1 - promised["asked"]) / options.runs) ** 0.5
    broken = promised["given"] < promised["asked"] - 2 * error
    print(f"{len(sure)} of {len(table)} questions have a plan known to be sure enough")
    print(f"falsely infeasible: {sure['given'].isna().sum()} of {len(sure)}")
    print(f"falsely promised: {broken.sum()} of {len(promised)}")
    if len(promised):
        over = (promised["given"] - promised["asked"]).median()
        print(f"kept less asked: median {over:+.3f}")
    seconds = table["seconds"]
    print(f"seconds an answer: median {seconds.median():.2f}, worst {seconds.max():.2f}")


if __name__ == "__main__":
    main()
