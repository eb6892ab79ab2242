"""What one job costs with fused trials and without: two profiles of one script, two plans.

    python -m benchmarks.fused_plan [--pack 16] [--trials 32] [--folder FOLDER]

A small network on made-up data, on one CPU slot of this machine (provider local, $1 an hour), with
one thread: two of OpenMP on busy cores wait for each other.
The script is the same twice; in the second `fused.train` is called by another name, so that it
isn't known for one: trials on shares of a slot are then processes beside each other. Both are
measured by `cloudtune profile --pack`, and planned by `cloudtune plan` with what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cloudtune.profiles.store import read

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from cloudtune import fused

def model(config):
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def loss(net, batch):
    inputs, targets = batch
    return functional.cross_entropy(net(inputs), targets)

def optimizer(config):
    return fused.AdamW(lr=config["lr"], weight_decay=config["decay"])

def data(config):
    inputs = torch.randn(8192, 64, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, inputs[:, :10].argmax(1)), batch_size=32)

def train(config):
    CALL(config, model=model, loss=loss, optimizer=optimizer, data=data)
"""
EXPERIMENT = """
name: NAME
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1e-1]}, decay: {loguniform: [1e-4, 1]}}
trials: TRIALS
epochs: {min: 4, max: 32}
eta: 2
limits: {deadline: 2h}
cloud: {provider: local, slots: 1, price: $1/h}
"""
CALLS = {"fused": "fused.train", "packed": 'getattr(fused, "train")'}


def cloudtune(folder: Path, *words: str) -> str:
    """Run a command of cloudtune there; returns what it printed."""
    environment = {**os.environ, "HOME": str(folder), "CLOUDTUNE_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "cloudtune", *words],
        cwd=folder,
        env={**environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def plan_of(folder: Path, way: str, pack: int, trials: int) -> dict[str, Any]:
    """Measure and plan the script in one of the two ways."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT.replace("CALL", CALLS[way]))
    text = EXPERIMENT.replace("NAME", way).replace("TRIALS", str(trials))
    (folder / "experiment.yaml").write_text(text)
    measure = ("profile", "experiment.yaml", "--pack", str(pack), "--save", "profile.json")
    cloudtune(folder, *measure, "--yes")
    (profile,) = read(folder / "profile.json")
    for width in profile.widths:
        seconds = profile.epoch_seconds(width)
        rate = profile.epoch_seconds(1.0) / seconds / width
        print(f"| {way} | 1/{1 / width:.0f} | {seconds:.3f} | {rate:.2f} |", flush=True)
    told = cloudtune(folder, "plan", "experiment.yaml", "-o", "json")
    found: dict[str, Any] = json.loads(told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=int, default=16)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="fused"))
    print("| way | share of the slot | seconds an epoch | epochs of all, against one alone |")
    print("|---|---|---|---|")
    plans = {way: plan_of(folder / way, way, given.pack, given.trials) for way in CALLS}
    for way, plan in plans.items():
        (folder / f"{way}.json").write_text(json.dumps(plan, indent=1))
        stages = plan["plan"]["staged"]["stages"]
        widths = ", ".join(f"1/{1 / stage['groups'][0]['width']:.0f}" for stage in stages)
        found = {each: plan["plan"]["forecast"][each]["p50"] for each in ("seconds", "dollars")}
        print(f"\n{way}: {found['seconds']:.0f} s, ${found['dollars']:.4f}; by stage {widths}")
    print(f"\nThe plans are in {folder}")


if __name__ == "__main__":
    main()
