"""Forecast, paid and bound of runs on recorded spot pools.

    python -m benchmarks.spot DATA [--strategy sha,seer] [--market any] [--deadline 5] [--trials 8]
                              [--most 1] [--runs 20] [--pools 79,48] [--figures trace|prior|bands]
    python -m benchmarks.spot . --trace FILE --where zone=us-west-2a --experiment FILE.yaml

DATA is the folder of the traces (nothing of it is committed). The digits' experiment on p3.2xlarge,
by the published figures of ResNet-50 on CIFAR-10, epochs 8 to 64, or an experiment of your own (and
its --profile), from starts that are spread evenly over each trace. Missed are runs whose best trial
wasn't trained in full where the same run on demand alone would have done it, `less` those that did
less work. `--figures` says what the forecast goes by: the pool's own trace, the prior of public
traces, or the advisor's bands as before. Virtual time; seconds for each run.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from benchmarks.compare.pools import SpotTrace
from benchmarks.compare.replay import on_traces, replay, starts
from benchmarks.compare.traces import read_traces
from cloudtune.experiment import Experiment
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import pool
from cloudtune.model.plans import Limits
from cloudtune.planning import make
from cloudtune.planning.plan_file import job_of
from cloudtune.planning.problem import problem_of, stored_profiles

if TYPE_CHECKING:
    from benchmarks.compare.replay import Replayed
    from cloudtune.planning.make import Planned
    from cloudtune.planning.stages import Problem

SKYPILOT, GROUPS = "spot_traces_skypilot.csv", "ec2_asg_spot_bamboo.csv"
POOLS = {
    "89": (SKYPILOT, ["zone=us-west-2c"]),
    "79": (SKYPILOT, ["zone=us-west-2a", "gpu=v100", "gpus=1"]),
    "76": (SKYPILOT, ["zone=us-east-2a"]),
    "72": (SKYPILOT, ["zone=us-west-2b"]),
    "63 of 16": (SKYPILOT, ["nodes=16"]),
    "48": (SKYPILOT, ["zone=us-west-2a", "gpu=v100", "gpus=8"]),
    "38 of 4": (SKYPILOT, ["nodes=4"]),
    "33": (SKYPILOT, ["gpu=k80"]),
    "17": (SKYPILOT, ["zone=us-east-1a"]),
    "98 of 64": (GROUPS, ["trace=pipeline-mngr-test"]),
    "48 of 64": (GROUPS, ["trace=preempt-trace"]),
    "99 of 64": ("ec2_spot_bamboo_64node.csv", ["kind=full-64-node-trace"]),
}
"""Each trace, by the share of its time (%) in which there is an instance, and of how many."""


def asked(given: argparse.Namespace, strategy: str, market: str) -> Experiment:
    """Return the experiment: one that is given, or the digits' on p3.2xlarge."""
    chosen = {"strategy": strategy, "cloud.market": market}
    if given.experiment is not None:
        return Experiment.load(given.experiment, chosen)
    return Experiment.load(
        "examples/digits/experiment.yaml",
        {
            **chosen,
            "cloud.instances": ["p3.2xlarge"],
            "cloud.max_instances": given.most,
            "limits.deadline": f"{given.deadline}h",
            "limits.budget": given.budget,
            "trials": given.trials,
        },
    )


def as_bands(problem: Problem) -> Problem:
    """Return the problem as it was before: losses by the advisor's bands, and nothing else."""
    catalog = {pool(o): o for o in pricing.catalog("us-east-1", pricing.MARKETS).offers}
    rentables = (replace(r, offer=catalog[pool(r.offer)], behaviours=()) for r in problem.rentables)
    return replace(problem, rentables=tuple(rentables))


def planned(
    given: argparse.Namespace, strategy: str, trace: SpotTrace, market: str | None = None
) -> Planned:
    """Return the plan, by the figures that are asked for."""
    experiment = asked(given, strategy, market or given.market)
    profiles = stored_profiles(experiment, given.profile)
    problem = problem_of(experiment, profiles)
    if given.figures == "bands":
        problem = as_bands(problem)
    elif given.figures == "trace":
        traces = {r.offer: trace for r in problem.rentables if r.offer.market == "spot"}
        problem = replace(problem, rentables=tuple(on_traces(problem.rentables, traces)))
    limits = Limits(experiment.limits.deadline, experiment.limits.budget)
    return make.make_plan(problem, limits, force=True)


def played(plan: Planned, trace: SpotTrace, runs: int) -> list[Replayed]:
    """Return runs of a plan from as many starts."""
    job = job_of(plan, 0.0, paced=False)
    rentables = (*job.rentables, *job.standins)
    pools = {pool(r.offer): trace for r in rentables if r.offer.market == "spot"}
    return [
        replay(
            job.policy(heartbeat=False, checked=False), rentables, pools, start=begin, seed=number
        )
        for number, begin in enumerate(starts(trace.length, runs))
    ]


def row(
    name: str, strategy: str, plan: Planned, found: list[Replayed], alone: list[Replayed]
) -> str:
    """Return a row of the table; `alone` are the same runs on demand."""
    forecast, paid = plan.plan.forecast.dollars, mean(each.dollars for each in found)
    bound = mean(each.bound for each in found)
    if not (bound and forecast.mean and all(each.dollars for each in alone)):
        raise SystemExit(f"{name}, {strategy}: a run trains nothing within these limits")
    endings = ", ".join(f"{n} {why}" for why, n in Counter(each.ended for each in found).items())
    spot, dear = (mean(getattr(r, f"{m}_hours") for r in found) for m in ("spot", "on_demand"))
    both = list(zip(found, alone, strict=True))
    missed = sum(
        a.finished and not (r.finished and r.best_epochs >= a.best_epochs) for r, a in both
    )
    less = sum(r.work < 0.99 * a.work for r, a in both)
    return (
        f"| {name} | {strategy} | ${forecast.mean:.2f} (${forecast.p5:.2f} to ${forecast.p95:.2f})"
        f" | ${paid:.2f} | {paid / forecast.mean - 1:+.0%} | ${bound:.2f} | {paid / bound:.2f}"
        f" | {median(each.ratio for each in found):.2f} | {spot:.2f} | {dear:.2f}"
        f" | {paid / mean(each.dollars for each in alone):.2f} | {missed} | {less}"
        f" | {sum(bool(each.violations) for each in found)} | {endings} |"
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--strategy", default="sha")
    parser.add_argument("--market", default="any")
    parser.add_argument("--deadline", type=float, default=5.0)
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--most", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pools", default=",".join(POOLS))
    parser.add_argument("--experiment", type=Path)
    parser.add_argument("--profile", default="resnet50-cifar10@v100")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--where", action="append", default=[])
    parser.add_argument("--figures", choices=["trace", "prior", "bands"], default="trace")
    return parser


def main() -> None:
    given = parser().parse_args()
    pools = {name: POOLS[name] for name in given.pools.split(",")}
    if given.trace is not None:
        pools = {given.trace.stem: (given.trace.absolute(), given.where)}
    print(
        "| pool | strategy | forecast (p5 to p95) | paid | off | bound | paid / bound | its median"
        " | spot h | on-demand h | paid / on demand | missed | less | passed a limit | ended |"
    )
    for strategy in given.strategy.split(","):
        dry = SpotTrace("dry", (0.0,), (0,), 3600.0)
        alone = played(planned(given, strategy, dry, "on-demand"), dry, given.runs)
        for name in pools:
            file, where = pools[name]
            trace = read_traces(given.data / file, where)[0].trace
            plan = planned(given, strategy, trace)
            print(row(name, strategy, plan, played(plan, trace, given.runs), alone), flush=True)


if __name__ == "__main__":
    main()
