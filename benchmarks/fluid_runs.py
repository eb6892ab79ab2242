"""The same digits job at an equal fleet, by how wide its trials are: real runs on the emulated EC2.

    python -m benchmarks.fluid_runs [--instances 2] [--profile FILE] [--only NAME] [--json FILE]

Eight trials by successive halving on so many g7.12xlarge (two GPUs each), learning for real, paced
by the emulator: one GPU each, StaticFluid, DynamicFluid, the ILP, and the exact planner's stages,
which may rent fewer instances at times. Each run has a home of its own, which is empty afterwards.
Figures are from `cloudtune report -o json`: makespan, dollars, the busy share of the GPU-seconds
billed, resizes, and the best metric.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits"
_SECONDS = 900
STRATEGIES = {
    "one GPU each": "{name: halving, allocator: same, fleet: 'constant:%d'}",
    "StaticFluid": "{name: halving, allocator: static-fluid, fleet: 'constant:%d'}",
    "DynamicFluid": "{name: halving, allocator: dynamic-fluid, fleet: 'constant:%d'}",
    "ILP": "{name: halving, allocator: ilp, fleet: 'constant:%d'}",
    "exact stages": "sha",
}


@dataclass(frozen=True)
class Row:
    """What a run took and found."""

    name: str
    seconds: float
    dollars: float
    busy: float
    resizes: int
    metric: float
    epochs: int


def main() -> None:
    """Run each, and print the table."""
    parser = argparse.ArgumentParser(description="digits at an equal fleet, by allocator")
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--profile", type=Path, default=EXAMPLE / "profile.json")
    parser.add_argument("--only", choices=list(STRATEGIES))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = [given.only] if given.only else list(STRATEGIES)
    rows = [play(name, given.instances, given.profile) for name in names]
    print(f"{'':14} {'makespan':>9} {'dollars':>8} {'busy':>6} {'resizes':>8} {'epochs':>7} metric")
    for row in rows:
        print(
            f"{row.name:14} {row.seconds:8.1f}s {row.dollars:8.2f} {row.busy:6.1%} "
            f"{row.resizes:8d} {row.epochs:7d} {row.metric:.4f}"
        )
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def play(name: str, instances: int, profile: Path) -> Row:
    """Run the job with one kind of widths, in a home of its own."""
    with tempfile.TemporaryDirectory(prefix="ct-fluid-") as folder:
        job = _experiment(Path(folder) / "job", STRATEGIES[name], instances)
        home = Path(folder) / "home"
        done = _cloudtune(home, "run", str(job), "--profile", str(profile))
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stdout[-2000:]}{done.stderr}")
        told = json.loads(_cloudtune(home, "report", "-o", "json").stdout)
        _cloudtune(home, "gc", "--all")
    return _row(name, told)


def _experiment(folder: Path, strategy: str, instances: int) -> Path:
    shutil.copytree(EXAMPLE, folder)
    path = folder / "experiment.yaml"
    text = path.read_text(encoding="utf-8")
    shaped = strategy % instances if "%d" in strategy else strategy
    text = text.replace("strategy: sha\n", f"strategy: {shaped}\n")
    text = text.replace("max_instances: 4", f"max_instances: {instances}")
    text = text.replace("{deadline: 5m, budget: $2}", "{deadline: 15m, budget: $8}")
    path.write_text(text, encoding="utf-8")
    return path


def _cloudtune(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cloudtune", *arguments],
        env={**os.environ, "CLOUDTUNE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )


def _row(name: str, told: dict[str, Any]) -> Row:
    accounts = told["accounting"]
    return Row(
        name=name,
        seconds=told["seconds"]["actual"],
        dollars=told["dollars"]["actual"],
        busy=accounts["busy_share"],
        resizes=accounts["resizes"],
        metric=told["best"]["value"],
        epochs=sum(trial["epoch"] for trial in told["trials"]),
    )


if __name__ == "__main__":
    main()
