"""How long a person waits for the first reported epoch: `cloudtune run` beside the script alone.

    python -m benchmarks.first_metric [--repeats 3]

The script imports torch, and its epoch takes a second. Each run has a CLOUDTUNE_HOME of its own,
in which it has never run; on the emulated cloud it isn't paced. Prints the medians of the seconds
from the command to each moment of a run, and what that takes beyond the script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.runner import parser

SCRIPT = """
import time

import torch

import cloudtune


def train(config):
    weight = torch.tensor(config["lr"], requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for epoch in cloudtune.epochs():
        time.sleep(1.0)
        optimizer.zero_grad()
        (weight * weight).backward()
        optimizer.step()
        cloudtune.report({"loss": weight.item()})


if __name__ == "__main__":
    cloudtune.report = lambda metrics: exit()
    train({"lr": 0.1})
"""
EXPERIMENT = """
name: first
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1]}}
trials: 2
epochs: {min: 1, max: 2}
strategy: random
"""
CLOUDS = {
    "local": "cloud: {provider: local}\nlimits: {deadline: 10m}\n",
    "emulated": "cloud: {provider: emulated, instances: [g4dn.12xlarge], max_instances: 1}\n"
    "limits: {deadline: 10m, budget: $4}\n",
}
# What a run's ledger says, in the order in which it comes.
MOMENTS = ("RunStarted", "InstanceLaunched", "NodeJoined", "TrialStarted", "EpochDone")


@dataclass(frozen=True)
class Waits:
    """Seconds from a command to each of its moments; the last is its first metric."""

    moments: dict[str, float]

    @property
    def first_metric(self) -> float:
        return self.moments[MOMENTS[-1]]


def main() -> None:
    given = parser(__doc__, repeats=3).parse_args()
    with tempfile.TemporaryDirectory(prefix="ct-first-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        by_itself = median(alone(folder) for _ in range(given.repeats))
        print(f"the script alone: {by_itself:.1f} s to the end of its first epoch")
        for provider in CLOUDS:
            waits = [run(folder, provider, number) for number in range(given.repeats)]
            print_medians(provider, waits, by_itself)


def alone(folder: Path) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
    return time.monotonic() - began


def run(folder: Path, provider: str, number: int) -> Waits:
    """Run the experiment to its end, and return when it had what."""
    experiment = folder / f"{provider}.yaml"
    experiment.write_text(EXPERIMENT + CLOUDS[provider])
    home = folder / f"{provider}-{number}"
    began = time.time()
    subprocess.run(
        [sys.executable, "-m", "cloudtune", "run", str(experiment), "--no-pace", "--quiet"],
        cwd=folder,
        env={**os.environ, "CLOUDTUNE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (ledger,) = home.glob("runs/*/ledger.jsonl")
    header, *lines = map(json.loads, ledger.read_text().splitlines())
    return Waits(first_times(lines, header["began"] - began))


def first_times(lines: list[dict[str, Any]], offset: float) -> dict[str, float]:
    """Return when each of the moments first came, `offset` added to the times of a ledger."""
    found: dict[str, float] = {}
    for line in lines:
        event = line["event"]
        if event["type"] in MOMENTS:
            found.setdefault(event["type"], event["at"] + offset)
    return found


def print_medians(provider: str, waits: list[Waits], by_itself: float) -> None:
    print(f"\n{provider}: first metric after {[round(it.first_metric, 1) for it in waits]} s")
    for moment in MOMENTS:
        print(f"  {moment:18} {median(it.moments[moment] for it in waits):6.1f}")
    beyond = median(it.first_metric for it in waits) - by_itself
    print(f"  beyond the script alone: {beyond:.1f} s")


if __name__ == "__main__":
    main()
