"""What the planners' plans cost, on generated jobs over measured scaling curves.

    python -m benchmarks.planners DATA [--jobs 360] [--seed 0] [--small 240] [--out FILE.csv]

DATA is a folder with gpu_scaling_hypersched.csv and gpu_scaling_gavel.csv. Each job is planned for
the least cost within a deadline of 1 to 5 times the fastest plan's time: `--jobs` times on one
offer, and as often on several offers of a family. Prints what static, naive and greedy plans cost
against exact ones. Exits with 1 where exact <= greedy <= static does not hold, a looser limit makes
a plan worse, a plan is further from the best than its gap, or exact, ILP and brute force differ on
a small job. `--only NAME` looks at one job, as in "several 17", and prints it whole.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks import planner_checks as checks
from benchmarks import planner_jobs as jobs
from benchmarks.runner import parser
from cloudtune.model.plans import Allowance
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.static import StaticPlanner

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.planner_jobs import Curve, Job
    from cloudtune.model.plans import Plan
    from cloudtune.planners.base import Planner, PlanRequest

PLANNERS: dict[str, Planner] = {
    "exact": ExactPlanner(),
    "static": StaticPlanner(),
    "naive": NaivePlanner(),
    "greedy": GreedyPlanner(),
    "greedy from every static": GreedyPlanner(from_every=True),
}
OTHERS = tuple(name for name in PLANNERS if name != "exact")
SETS = {"single": jobs.single, "several": jobs.several}
_GRID_EVERY, _GRID_POINTS = 6, 6
_SMALL_PLANS = 6000
# Costs that differ by less than that share are called equal.
_SAME = 1e-6


@dataclass
class Log:
    """What went wrong, job by job."""

    faults: list[str] = field(default_factory=list)

    def note(self, job: Job, faults: Sequence[str]) -> None:
        for fault in faults:
            self.faults.append(f"{job.name}: {fault}")
            print(f"FAULT {self.faults[-1]}", flush=True)


def main() -> None:
    options = parser(__doc__, jobs=360, seed=0, small=240)
    options.add_argument("data", type=Path)
    options.add_argument("--out", type=Path, help="write a line for each job there, as CSV")
    options.add_argument("--only", metavar="NAME")
    given = options.parse_args()
    curves = jobs.curves(given.data)
    log = Log()
    if given.only:
        look_at(given.only, given.seed, curves, log)
    else:
        tables = [compare(name, given, curves, log) for name in SETS]
        small_jobs(given, curves, log)
        if given.out is not None:
            pd.concat(tables).to_csv(given.out, index=False)
    print(f"\n{len(log.faults)} fault(s)")
    sys.exit(1 if log.faults else 0)


def look_at(name: str, seed: int, curves: Sequence[Curve], log: Log) -> None:
    """Print one job and what the planners make of it."""
    which, number = name.split()
    job = {**SETS, "small": jobs.small}[which](int(number), seed, curves)
    if which == "small":
        print(job.request, small_case(int(number), seed, curves, log), sep="\n")
        return
    request, plans, _ = planned(job)
    print(request, *(f"{key}: {plan}" for key, plan in plans.items()), sep="\n")
    log.note(job, [*faults_in(request, plans), *checks.looser(request, _GRID_POINTS).faults])


# ---- one job ------------------------------------------------------------------------------------


def planned(job: Job) -> tuple[PlanRequest, dict[str, Plan | None], dict[str, float]]:
    """Return a job with its deadline, the planners' plans, and the seconds that they took.

    By the clock and of this process alone, as others may work on the same machine.
    """
    fastest = ExactPlanner().plan(replace(job.request, objective="time"))
    request = replace(job.request, allowance=Allowance(fastest.estimate.seconds * job.slack))
    plans: dict[str, Plan | None] = {}
    taken = {}
    for name, planner in PLANNERS.items():
        wall, cpu = time.perf_counter(), time.process_time()
        plans[name] = checks.plan_of(planner, request)
        taken[f"wall {name}"] = time.perf_counter() - wall
        taken[f"cpu {name}"] = time.process_time() - cpu
    return request, plans, taken


def faults_in(request: PlanRequest, plans: dict[str, Plan | None]) -> list[str]:
    faults = [*checks.order(request, plans), *checks.gaps(request, plans)]
    for name, plan in plans.items():
        faults += checks.promises(request, name, plan) if plan is not None else []
    return faults


def row(job: Job, plans: dict[str, Plan | None], taken: dict[str, float]) -> dict[str, Any]:
    """Return a line of the table: what each plan costs as a multiple of the exact one."""
    exact = plans["exact"]
    assert exact is not None, "a plan exists, as the deadline is beyond the fastest"
    line: dict[str, Any] = {"job": job.name, "kind": job.kind, "slack": job.slack}
    line |= {"dollars": exact.estimate.dollars, "exact": 1.0}
    line |= {"mixes": len(exact.offers) > 1, "offers": len(job.request.rentables)}
    for name in OTHERS:
        plan = plans[name]
        ratio = np.nan if plan is None else plan.estimate.dollars / exact.estimate.dollars
        line[name] = ratio
    return line | taken


# ---- all jobs -----------------------------------------------------------------------------------


def compare(
    name: str, given: argparse.Namespace, curves: Sequence[Curve], log: Log
) -> pd.DataFrame:
    """Plan all jobs of a set, print how they compare, and return the table."""
    lines, grids = [], []
    for number in range(given.jobs):
        job = SETS[name](number, given.seed, curves)
        request, plans, taken = planned(job)
        log.note(job, faults_in(request, plans))
        if number % _GRID_EVERY == 0:
            grids.append(checks.looser(request, _GRID_POINTS))
            log.note(job, grids[-1].faults)
        lines.append(row(job, plans, taken))
    table = pd.DataFrame(lines)
    table.insert(0, "set", name)
    tell(name, table)
    asked = sum(grid.asked for grid in grids)
    print(f"limits loosened on {len(grids)} jobs, {asked} plans by exact and static")
    return table


def tell(name: str, table: pd.DataFrame) -> None:
    """Print how the planners compare on the jobs of a set."""
    offers = f"{table['offers'].min()} to {table['offers'].max()} offers"
    print(f"\n{name}: {len(table)} jobs, {offers}; cost as a multiple of the exact plan's")
    print(
        f"{'planner':<26}{'curve':<14}{'jobs':>5}{'none':>6}{'median':>8}{'p90':>8}{'max':>8}"
        f"{'equal':>8}{'wall ms':>9}{'cpu ms':>8}"
    )
    for other in ("exact", *OTHERS):
        for kind in ("all", *jobs.KINDS):
            _line(other, kind, table if kind == "all" else table[table["kind"] == kind])
    if table["offers"].max() > 1:
        print(f"exact uses several offers in {table['mixes'].mean():.0%} of the jobs")


def _line(name: str, kind: str, rows: pd.DataFrame) -> None:
    ratios = rows[name].dropna()
    if len(ratios) == 0:
        return
    spread = "".join(f"{ratio:>8.3f}" for ratio in (*ratios.quantile([0.5, 0.9]), ratios.max()))
    wall, cpu = (rows[f"{clock} {name}"].median() * 1000 for clock in ("wall", "cpu"))
    equal = (ratios <= 1 + _SAME).mean()
    none = len(rows) - len(ratios)
    print(
        f"{name:<26}{kind:<14}{len(rows):>5}{none:>6}{spread}{equal:>8.0%}{wall:>9.1f}{cpu:>8.1f}"
    )


# ---- small jobs ---------------------------------------------------------------------------------


def small_jobs(given: argparse.Namespace, curves: Sequence[Curve], log: Log) -> None:
    """Compare exact, ILP and brute force on as many small jobs as asked for."""
    done: list[checks.Small] = []
    number = mixed = 0
    while len(done) < given.small:
        job = small_case(number, given.seed, curves, log)
        if job is not None:
            done.append(job)
            mixed += jobs.small(number, given.seed, curves).request.mix > 1
        number += 1
    plans = [job.plans for job in done]
    print(
        f"\nsmall: exact, ILP and brute force on {len(done)} jobs ({mixed} with mixed stages), "
        f"three questions each; {min(plans)} to {max(plans)} plans a job, {sum(plans)} in all"
    )
    print(f"largest relative difference: {max(job.off for job in done):.1e}")


def small_case(number: int, seed: int, curves: Sequence[Curve], log: Log) -> checks.Small | None:
    """Return how one small job compares; None where it has too many plans, or next to none."""
    job = jobs.small(number, seed, curves)
    share = float(np.random.default_rng([seed, number, 4]).uniform(0.0, 0.4))
    compared = checks.small_case(job.request, _SMALL_PLANS, share)
    if compared is not None:
        log.note(job, compared.faults)
    return compared


if __name__ == "__main__":
    main()
