"""How long `cloudtune plan` takes, cold: the example, large jobs of stages, and searches.

    python -m benchmarks.plan_time [--repeats 5] [--only searches] [--jobs 40] [--runs 31]

The large job has 512 and 10,000 trials on all types. A search is by default: a script that never
ran, all types of AWS on both markets, and a plan that names no other thing than its two limits.

Each command is a process of its own with its imports, in a CLOUDTUNE_HOME of its own. Prints the
median seconds by the clock and of the processor (others may work on the same machine).

`--only coarse` shows what playing smaller runs changes: drawn searches of $20 to $200 are forecast
as `plan` does, and by as many runs at their full size. Prints the ratio of the two for each.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import large_job
from benchmarks.runner import parser, print_table
from cloudtune.api.experiments import load_experiment
from cloudtune.forecast.prediction import PlayedRuns
from cloudtune.forecast.staged_plans import PlanOptions, Question
from cloudtune.lifecycle.planning import load_problem, read_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.model.plans import Forecast

_SEARCH = """\
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1]}, width: {choice: [8, 16, 32]}}
epochs: {max: 54}
"""
_LIMITS = (("$5", "20m"), ("$20", "1h"), ("$100", "2h"), ("$10", "72h"), ("$5000", "72h"))

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/digits/experiment.yaml"


@dataclass(frozen=True)
class Case:
    """A command to time: the arguments of `cloudtune plan`."""

    name: str
    arguments: tuple[str, ...]


def main() -> None:
    arguments = parser(__doc__, repeats=5, jobs=40, runs=31)
    arguments.add_argument("--only", choices=("stages", "searches", "coarse"))
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ct-plan-time-") as folder:
        os.environ["CLOUDTUNE_HOME"] = str(Path(folder) / "home")
        if given.only == "coarse":
            print_table(coarse(Path(folder), given.jobs, given.runs))
            return
        if given.only != "searches":
            whole(stages(Path(folder)), given.repeats)
        if given.only != "stages":
            whole(searches(Path(folder)), given.repeats)


def coarse(folder: Path, jobs: int, runs: int) -> Iterator[dict[str, object]]:
    """Yield the forecast of each drawn search over that by full runs, and the worst of all."""
    experiment, profile = large_job.write(folder)
    rows = []
    for seed in range(jobs):
        question = drawn(experiment, profile, seed)
        limits = question.limits
        began = time.process_time()
        smaller = PlayedRuns(question).forecast()
        took = time.process_time() - began
        full = PlayedRuns(question, samples=runs, whole=True).forecast()
        row = ratios(smaller, full)
        rows.append(row)
        strategy = question.problem.experiment.strategy_name
        name = f"{strategy}, ${limits.budget:.0f}, {(limits.deadline or 0.0) / 60:.0f}m"
        yield {"job": name, **shown(row), "full": f"{full.trials.p50:.0f}", "CPU": f"{took:.2f}s"}
    yield {"job": "median", **shown({name: median(row[name] for row in rows) for name in rows[0]})}
    for share in (0.5, 0.9):
        off = {name: quantile([abs(row[name] - 1) for row in rows], share) for name in rows[0]}
        yield {"job": f"off, {share:.0%} below", **shown(off)}


def drawn(experiment: Path, profile: Path, seed: int) -> Question:
    """Return a search within drawn limits, on all types at made-up speeds; some without a profile.

    A script that never ran is taken to be fast, so those have a fifth of the budget.
    """
    dice = random.Random(seed)
    is_known = seed % 4 < 3
    settings = {
        "strategy": ("best", "asha-stopping", "asha")[seed % 3],
        "trials": 100_000,
        "epochs": dice.choice((9, 27, 54)),
        "budget": (20 if is_known else 4) * 10 ** dice.random(),
        "deadline": 1800 * 16 ** dice.random(),
    }
    loaded = load_experiment(experiment, settings)
    problem = load_problem(loaded, str(profile) if is_known else None)
    return Question(problem, read_limits(loaded), PlanOptions())


def ratios(smaller: Forecast, full: Forecast) -> dict[str, float]:
    pairs = {
        "dollars": (smaller.dollars.p50, full.dollars.p50),
        "configurations": (smaller.trials.p50, full.trials.p50),
        "p5": (smaller.trials.p5, full.trials.p5),
        "p95": (smaller.trials.p95, full.trials.p95),
        "best's epochs": (smaller.epochs.p50, full.epochs.p50),
        "GPU-hours": (smaller.gpu_hours.p50, full.gpu_hours.p50),
    }
    return {name: one / max(other, 1e-9) for name, (one, other) in pairs.items()}


def shown(row: dict[str, float]) -> dict[str, object]:
    return {name: f"{value:.3f}" for name, value in row.items()}


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def searches(folder: Path) -> list[Case]:
    """Return plans of a search by its limits."""
    experiment = folder / "search.yaml"
    experiment.write_text(_SEARCH, encoding="utf-8")
    (folder / "train.py").write_text(large_job.TRAIN, encoding="utf-8")
    named = (str(experiment), "--provider", "aws")
    return [
        Case(f"search, {budget}, {deadline}", (*named, "--budget", budget, "--deadline", deadline))
        for budget, deadline in _LIMITS
    ]


def stages(folder: Path) -> list[Case]:
    """Return the commands; the large job with three deadlines, in times of the fastest plan's."""
    experiment, profile = large_job.write(folder)
    large = (str(experiment), "--profile", str(profile))
    report = json.loads(output(Case("", (*large, "--objective", "time", "-o", "json"))))
    fastest = report["plan"]["estimate"]["seconds"]
    print(f"the large job: {report['considered']} offers, the fastest plan takes {fastest:.0f} s")
    within = [(f"large, {x}x", (*large, "--deadline", f"{x * fastest:.0f}s")) for x in (1.3, 3)]
    return [
        Case("example", (str(EXAMPLE),)),
        *(Case(*command) for command in within),
        Case("large, no limit", large),
        Case("large, on demand", (*large, "--market", "on-demand")),
        Case("10,000 trials", (*large, "--trials", "10000")),
    ]


def whole(commands: list[Case], repeats: int) -> None:
    """Print what each command takes, cold."""
    print(f"\n{'cold command':<20}{'median':>9}{'least':>9}{'most':>9}{'processor':>11}{'load':>7}")
    for case in commands:
        walls, cpus = zip(*[cold(case) for _ in range(repeats)], strict=True)
        print(
            f"{case.name:<20}{median(walls):>8.2f}s{min(walls):>8.2f}s{max(walls):>8.2f}s"
            f"{median(cpus):>10.2f}s{os.getloadavg()[0]:>7.1f}",
            flush=True,
        )


def cold(case: Case) -> tuple[float, float]:
    """Return the seconds of one process, by the clock and of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    output(case)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def output(case: Case) -> str:
    command = [sys.executable, "-m", "cloudtune", "plan", *case.arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
