"""How long `cloudtune plan` takes, cold: the example, large jobs of stages, and searches.

    python -m benchmarks.plan_time [--repeats 5] [--only searches]

The large job has 512 and 10,000 trials on all types. A search is by default: a script that never
ran, all types of AWS on both markets, and a plan that names no other thing than its two limits.

Each command is a process of its own with its imports, in a CLOUDTUNE_HOME of its own. Prints the
median seconds by the clock and of the processor (others may work on the same machine).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import large_job
from benchmarks.runner import parser

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
    arguments = parser(__doc__, repeats=5)
    arguments.add_argument("--only", choices=("stages", "searches"))
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ct-plan-time-") as folder:
        os.environ["CLOUDTUNE_HOME"] = str(Path(folder) / "home")
        if given.only != "searches":
            whole(stages(Path(folder)), given.repeats)
        if given.only != "stages":
            whole(searches(Path(folder)), given.repeats)


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
