"""Five scripts of different cost on the emulated cloud: their profiles and plans side by side.

    python -m benchmarks.emulated_seconds [--instances g7.12xlarge] [--deadline 30m]

Each is measured in a home of its own (some 20 s each), and planned with the same trials, epochs and
deadline. The figures are those of the machine that this runs on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_LOOP = """
import time
import torch
from torch import nn
import cloudtune

{model}

def train(config):
    torch.manual_seed(0)
    model = cloudtune.prepare_model(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in cloudtune.epochs():
        for step in range({steps}):
            {load}
            x, y = batch()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        cloudtune.report({{"loss": float(loss.detach())}})
"""
_MLP = """
def build():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

def batch():
    return torch.randn(64, 32), torch.randint(0, 10, (64,))
"""
_CONV = """
def build():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10))

def batch():
    return torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
"""
_TRANSFORMER = """
def build():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 32, 10))

def batch():
    return torch.randn(32, 32, 64), torch.randint(0, 10, (32,))
"""
SCRIPTS = {
    "mlp": _LOOP.format(model=_MLP, steps=50, load="pass"),
    "conv": _LOOP.format(model=_CONV, steps=20, load="pass"),
    "transformer": _LOOP.format(model=_TRANSFORMER, steps=20, load="pass"),
    "slow data": _LOOP.format(model=_MLP, steps=50, load="time.sleep(0.01)"),
}
_SEARCH = "search: {lr: {loguniform: [1e-4, 1]}}"
_EXPERIMENT = """
name: {name}
train: train.py:train
metric: {{name: {metric}}}
{search}
trials: 8
epochs: {{min: 2, max: 16}}
eta: 2
cloud: {{instances: [{instances}], max_instances: 4}}
"""
_DIGITS = Path(__file__).parents[1] / "examples" / "digits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", default="g7.12xlarge")
    parser.add_argument("--deadline", default="30m")
    asked = parser.parse_args()
    digits = (_DIGITS / "experiment.yaml").read_text()
    search = "search:" + digits.split("search:")[1].split("trials:")[0]
    scripts = {**SCRIPTS, "digits": (_DIGITS / "train.py").read_text()}
    print("script        on a core     1 GPU    2 GPUs      plan     cost  machines")
    for name, script in scripts.items():
        own = name == "digits"
        text = _EXPERIMENT.format(
            name=name.replace(" ", "-"),
            metric="val_accuracy, mode: max" if own else "loss, mode: min",
            search=search if own else _SEARCH,
            instances=asked.instances,
        )
        print(row(name, script, text, asked.deadline), flush=True)


def row(name: str, script: str, experiment: str, deadline: str) -> str:
    """Return the line of one script, measured and planned in a home of its own."""
    with tempfile.TemporaryDirectory(prefix="es-", dir=os.environ.get("TMPDIR", "/tmp")) as folder:
        Path(folder, "train.py").write_text(script)
        Path(folder, "experiment.yaml").write_text(experiment)
        profile = Path(folder, "profile.json")
        _cloudtune(folder, "profile", "experiment.yaml", "--save", str(profile))
        told = _cloudtune(folder, "plan", "experiment.yaml", "--deadline", deadline, "-o", "json")
        (found,) = json.loads(profile.read_text())["profiles"]
        plan = json.loads(told)["plan"]
    core = found.get("provenance", {}).get("core_seconds")
    epochs = {float(width): one["mean"] for width, one in found["epoch"].items()}
    seconds, dollars = plan["estimate"]["seconds"], plan["estimate"]["dollars"]
    most = max(sum(g["instances"] for g in s["groups"]) for s in plan["staged"]["stages"])
    alone = f"{core:.3f} s" if core else "-"
    figures = (f"{alone:>10}", *(f"{epochs[w]:>7.2f} s" for w in (1.0, 2.0)))
    return f"{name:12} {' '.join(figures)} {seconds:>7.1f} s {dollars:>7.3f}$  up to {most}"


def _cloudtune(folder: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cloudtune", *arguments],
        cwd=folder,
        env={**os.environ, "CLOUDTUNE_HOME": str(Path(folder, "home"))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
