"""How much processor time the policy takes of an event, in simulated runs of searches and stages.

    python -m benchmarks.simulation_speed [--trials 128,512,2048] [--strategies sha,asha,best]
        [--functions 10]

A job trains its trials to 16 epochs with eta 2 on g4dn.xlarge at invented speeds; limits are wide,
and `best` stops at that number of trials. Each is played once to warm up, then timed. Prints a
row per job: events, seconds of the processor, microseconds an event, and jobs a second. With
`--functions`, a table of the functions of this package that take most of the time of all of them,
by themselves and with what they call.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import large_job
from benchmarks.runner import numbers, parser, print_table, words
from cloudtune.api.experiments import load_experiment
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run, without_collection
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.lifecycle.planning import load_problem, plan_run, read_limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.runs.job import Job

_WIDE = {"deadline": "240h", "budget": "$20000"}


def main() -> None:
    arguments = parser(__doc__, trials="128,512,2048", strategies="sha,asha,best", functions=0)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ct-simulation-speed-") as folder:
        experiment, profile = large_job.write(Path(folder))
        jobs = [
            (strategy, trials, planned(experiment, profile, strategy, trials))
            for trials in numbers(given.trials)
            for strategy in words(given.strategies)
        ]
    print_table(row(*job) for job in jobs)
    if given.functions:
        profiler = cProfile.Profile()
        for _, _, job in jobs:
            profiler.runcall(play, job)
        print()
        print_table(costliest(profiler, given.functions))


def planned(experiment: Path, profile: Path, strategy: str, trials: int) -> Job:
    """Return the job of a strategy and a number of trials, as `cloudtune run` would plan it."""
    settings = {
        "strategy": strategy,
        "trials": trials,
        "max_epochs": 16,
        "instances": ("g4dn.xlarge",),
        "market": "on-demand",
        **_WIDE,
    }
    loaded = load_experiment(experiment, settings)
    problem = load_problem(loaded, str(profile))
    options = PlanOptions()
    report = plan_run(problem, read_limits(loaded), options, force=False, insists=print)
    return make_job(report, 0.0, paced=False)


def play(job: Job) -> int:
    """Play a job to its end; return the number of its events."""
    metric = job.experiment.metric
    world = SimWorld(job.rentables, metric.name, synthetic_metric(metric.mode, 0), 0)
    ledger = MemoryLedger()
    with without_collection():
        run(job.policy(heartbeat=False, checked=False), world, ledger)
    return len(ledger.entries)


def row(strategy: str, trials: int, job: Job) -> dict[str, object]:
    """Return the speed of a job."""
    play(job)
    began = time.process_time()
    events = play(job)
    seconds = time.process_time() - began
    return {
        "strategy": strategy,
        "trials": trials,
        "events": events,
        "CPU seconds": f"{seconds:.2f}",
        "us an event": f"{seconds / events * 1e6:.0f}",
        "jobs a second": f"{1 / seconds:.2f}",
    }


def costliest(profiler: cProfile.Profile, count: int) -> Iterator[dict[str, object]]:
    """Yield the functions of this package that take most time by themselves."""
    stats = pstats.Stats(profiler)
    total = stats.total_tt  # type: ignore[attr-defined]
    functions: Sequence[tuple[tuple[str, int, str], tuple[int, int, float, float, object]]]
    functions = sorted(stats.stats.items(), key=lambda each: -each[1][2])  # type: ignore[attr-defined]
    own = [each for each in functions if "cloudtune" in each[0][0]]
    for (path, line, name), (_, calls, itself, all_in, _) in own[:count]:
        yield {
            "function": f"{Path(path).stem}:{line} `{name}`",
            "calls": calls,
            "itself": f"{itself / total:.1%}",
            "with what it calls": f"{all_in / total:.1%}",
        }


if __name__ == "__main__":
    main()
