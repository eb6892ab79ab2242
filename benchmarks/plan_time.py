"""How long `cloudtune plan` takes, cold: the example, and 512 trials on every instance type.

    python -m benchmarks.plan_time [--repeats 5] [--top 15]

Each command is a process of its own with its imports, in a CLOUDTUNE_HOME of its own. Prints the
median seconds by the clock and of the processor (others may work on the same machine), what the
parts of the command take, and the functions that take most.
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
from typing import Any

from benchmarks import large_job
from benchmarks.runner import parser

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/digits/experiment.yaml"
PARTS = ROOT / "benchmarks/plan_parts.py"


@dataclass(frozen=True)
class Case:
    """A command to time: the arguments of `cloudtune plan`."""

    name: str
    arguments: tuple[str, ...]


def main() -> None:
    given = parser(__doc__, repeats=5, top=15).parse_args()
    with tempfile.TemporaryDirectory(prefix="ct-plan-time-") as folder:
        os.environ["CLOUDTUNE_HOME"] = str(Path(folder) / "home")
        everything = cases(Path(folder))
        whole(everything, given.repeats)
        for case in everything:
            parts(case, given.repeats, Path(folder) / "parts.json")
        hot(everything[1], given.top, Path(folder) / "hot.json")


def cases(folder: Path) -> list[Case]:
    """Return the commands; the large job with three deadlines, in times of the fastest plan's."""
    experiment, profile = large_job.write(folder)
    large = (str(experiment), "--profile", str(profile))
    told = json.loads(output(Case("", (*large, "--objective", "time", "-o", "json"))))
    fastest = told["plan"]["estimate"]["seconds"]
    print(f"the large job: {told['considered']} offers, the fastest plan takes {fastest:.0f} s")
    within = [(f"large, {x}x", (*large, "--deadline", f"{x * fastest:.0f}s")) for x in (1.3, 3)]
    return [
        Case("example", (str(EXAMPLE),)),
        *(Case(*each) for each in within),
        Case("large, no limit", large),
        Case("large, least time", (*large, "--objective", "time")),
    ]


# ---- the whole command --------------------------------------------------------------------------


def whole(everything: list[Case], repeats: int) -> None:
    """Print what each command takes, cold."""
    print(f"\n{'cold command':<20}{'median':>9}{'least':>9}{'most':>9}{'processor':>11}{'load':>7}")
    for case in everything:
        runs = [cold(case) for _ in range(repeats)]
        walls, cpus = zip(*runs, strict=True)
        print(
            f"{case.name:<20}{median(walls):>8.2f}s{min(walls):>8.2f}s{max(walls):>8.2f}s"
            f"{median(cpus):>10.2f}s{os.getloadavg()[0]:>7.1f}",
            flush=True,
        )


def cold(case: Case) -> tuple[float, float]:
    """Return the seconds of one process, by the clock and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output(case)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def output(case: Case) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "cloudtune", "plan", *case.arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# ---- its parts ----------------------------------------------------------------------------------


def parts(case: Case, repeats: int, file: Path) -> None:
    """Print what the parts of a command take: medians."""
    runs = [_child(["--", *case.arguments], file)["parts"] for _ in range(repeats)]
    print(f"\n{case.name + ', by part':<54}{'clock':>8}{'processor':>11}")
    for number, (label, *_) in enumerate(runs[0]):
        wall, cpu = (median(run[number][column] for run in runs) for column in (1, 2))
        print(f"  {label:<52}{wall:>7.3f}s{cpu:>10.3f}s", flush=True)


def hot(case: Case, top: int, file: Path) -> None:
    """Print the functions that take most of a command."""
    told = _child(["--top", str(top), "--", *case.arguments], file)
    title = f"{case.name}, {told['whole']:.1f} s under cProfile"
    print(f"\n{title:<60}{'calls':>9}{'own':>8}{'all':>8}")
    for where, calls, own, total in told["rows"]:
        print(f"  {where:<58}{calls:>9}{own:>7.2f}s{total:>7.2f}s")


def _child(arguments: list[str], file: Path) -> Any:
    subprocess.run([sys.executable, str(PARTS), str(file), *arguments], check=True)
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
