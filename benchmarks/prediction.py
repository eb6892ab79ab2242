"""How well a plan foretells its run: the digits example on the emulated cloud, over seeds.

    python benchmarks/prediction.py [--seeds 5] [--experiment FILE] [--deadline 5m] [--budget 2]

Each run is a whole `cloudtune run` in a home of its own; prints one line a run, and the errors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples/digits/experiment.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--experiment", type=Path, default=EXAMPLE)
    parser.add_argument("--deadline", default="5m")
    parser.add_argument("--budget", default="2")
    given = parser.parse_args()
    print("seed  exit  seconds planned/actual  error   dollars planned/actual  error   wall")
    errors: dict[str, list[float]] = {"seconds": [], "dollars": []}
    for seed in range(given.seeds):
        began = time.time()
        code, told = run(given.experiment, given.deadline, given.budget, seed)
        parts = [f"{seed:4d}  {code:4d}"]
        for what, pairs in errors.items():
            planned, actual = told[what]["planned"], told[what]["actual"]
            pairs.append(actual / planned - 1)
            parts.append(f"{planned:11.3f} / {actual:8.3f}  {pairs[-1]:+6.1%}")
        print("  ".join([*parts, f"{time.time() - began:5.0f} s"]), flush=True)
    for what, pairs in errors.items():
        worst = max(pairs, key=abs)
        print(f"{what}: mean absolute error {fmean(map(abs, pairs)):.1%}, worst {worst:+.1%}")


def run(experiment: Path, deadline: str, budget: str, seed: int) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the report of one run."""
    with tempfile.TemporaryDirectory(prefix="ct-bench-") as home:
        environment = {**os.environ, "CLOUDTUNE_HOME": home}
        command = [sys.executable, "-m", "cloudtune"]
        options = ["--deadline", deadline, "--budget", budget, "--seed", str(seed)]
        done = subprocess.run(
            [*command, "run", str(experiment), *options],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        report = subprocess.run(
            [*command, "report", "-o", "json"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.returncode, json.loads(report.stdout)


if __name__ == "__main__":
    main()
