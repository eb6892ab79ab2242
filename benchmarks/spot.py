"""Forecast, paid and bound of runs on recorded spot pools.

    python -m benchmarks.spot DATA [--strategy sha,seer] [--market any] [--deadline 5] [--trials 8]
                              [--most 1] [--runs 20] [--pools 79,48] [--figures trace|prior]
    python -m benchmarks.spot . --trace FILE --where zone=us-west-2a --experiment FILE.yaml

DATA is the folder of the traces (nothing of it is committed). The digits' experiment on p3.2xlarge,
by the published figures of ResNet-50 on CIFAR-10, epochs 8 to 64, or an experiment of your own (and
its --profile), from starts that are spread evenly over each trace. Missed are runs whose best trial
wasn't trained in full where the same run on demand alone would have done it, `less` those that did
less work. `--figures` says what the forecast goes by: the pool's own trace, or the prior of public
traces. Virtual time; seconds for each run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from benchmarks.compare.pools import SpotTrace
from benchmarks.compare.replay import on_traces, replay, starts
from benchmarks.compare.traces import read_traces
from benchmarks.runner import parser, print_table
from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem, stored_profiles
from cloudtune.model.catalog import pool
from cloudtune.model.plans import Limits

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from benchmarks.compare.replay import Replayed
    from cloudtune.forecast.make import Planned

SKYPILOT, GROUPS = "spot_traces_skypilot.csv", "ec2_asg_spot_bamboo.csv"
# Each trace, by the share of its time (%) in which there is an instance, and of how many.
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


def planned(
    given: argparse.Namespace, strategy: str, trace: SpotTrace, market: str | None = None
) -> Planned:
    """Return the plan, by the figures that are asked for."""
    experiment = asked(given, strategy, market or given.market)
    profiles = stored_profiles(experiment, given.profile)
    problem = build_problem(experiment, profiles)
    if given.figures == "trace":
        traces = {r.offer: trace for r in problem.rentables if r.offer.market == "spot"}
        problem = replace(problem, rentables=tuple(on_traces(problem.rentables, traces)))
    limits = Limits(experiment.limits.deadline, experiment.limits.budget)
    return make.make_plan(problem, limits, force=True)


def played(plan: Planned, trace: SpotTrace, runs: int) -> list[Replayed]:
    """Return runs of a plan from as many starts."""
    job = make_job(plan, 0.0, paced=False)
    rentables = (*job.rentables, *job.standins)
    pools = {pool(r.offer): trace for r in rentables if r.offer.market == "spot"}
    return [
        replay(
            job.policy(heartbeat=False, checked=False), rentables, pools, start=begin, seed=number
        )
        for number, begin in enumerate(starts(trace.length, runs))
    ]


def row(
    name: str, strategy: str, plan: Planned, runs: list[Replayed], alone: list[Replayed]
) -> dict[str, object]:
    """Return a row of the table; `alone` are the same runs on demand."""
    forecast = plan.plan.forecast.dollars
    paid = mean(run.dollars for run in runs)
    bound = mean(run.bound for run in runs)
    if not (bound and forecast.mean and all(run.dollars for run in alone)):
        raise SystemExit(f"{name}, {strategy}: a run trains nothing within these limits")
    endings = Counter(run.ended for run in runs)
    pairs = list(zip(runs, alone, strict=True))
    missed = [
        other.finished and not (run.finished and run.best_epochs >= other.best_epochs)
        for run, other in pairs
    ]
    return {
        "pool": name,
        "strategy": strategy,
        "forecast (p5 to p95)": f"${forecast.mean:.2f} (${forecast.p5:.2f} to ${forecast.p95:.2f})",
        "paid": f"${paid:.2f}",
        "off": f"{paid / forecast.mean - 1:+.0%}",
        "bound": f"${bound:.2f}",
        "paid / bound": f"{paid / bound:.2f}",
        "its median": f"{median(run.ratio for run in runs):.2f}",
        "spot h": f"{mean(run.spot_hours for run in runs):.2f}",
        "on-demand h": f"{mean(run.on_demand_hours for run in runs):.2f}",
        "paid / on demand": f"{paid / mean(run.dollars for run in alone):.2f}",
        "missed": sum(missed),
        "less": sum(run.work < 0.99 * other.work for run, other in pairs),
        "passed a limit": sum(bool(run.violations) for run in runs),
        "ended": ", ".join(f"{count} {why}" for why, count in endings.items()),
    }


def rows(given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield the rows of the table."""
    pools = {name: POOLS[name] for name in given.pools}
    if given.trace is not None:
        pools = {given.trace.stem: (given.trace.absolute(), given.where)}
    for strategy in given.strategy:
        dry = SpotTrace("dry", (0.0,), (0,), 3600.0)
        alone = played(planned(given, strategy, dry, "on-demand"), dry, given.runs)
        for name, (file, where) in pools.items():
            trace = read_traces(given.data / file, where)[0].trace
            plan = planned(given, strategy, trace)
            yield row(name, strategy, plan, played(plan, trace, given.runs), alone)


def options() -> argparse.ArgumentParser:
    options = parser(
        __doc__,
        strategy=("sha",),
        market="any",
        deadline=5.0,
        budget=40.0,
        trials=8,
        most=1,
        runs=20,
        pools=tuple(POOLS),
        profile="resnet50-cifar10@v100",
    )
    options.add_argument("data", type=Path)
    options.add_argument("--experiment", type=Path)
    options.add_argument("--trace", type=Path)
    options.add_argument("--where", action="append", default=[])
    options.add_argument("--figures", choices=["trace", "prior"], default="trace")
    return options


def main() -> None:
    print_table(rows(options().parse_args()))


if __name__ == "__main__":
    main()
