"""Whole runs of cloudtune on this machine, in a home of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.results import PATH, ROOT, python_path

if TYPE_CHECKING:
    from types import TracebackType

NEEDED = ("ray", "boto3", "flask", "moto", "pydantic", "optuna", "highspy", "rich", "ruamel")
COMMAND_SECONDS = 480.0

SCRIPT = """
import os, sys, tempfile
from pathlib import Path
sys.path.insert(0, os.environ["BENCHMARKS"])
import torch
import cloudtune
from benchmarks.gpu.loads import load_named

def train(config):
    load = load_named(os.environ["BENCHMARKS_LOAD"])
    device = str(cloudtune.get_device())
    model = load.model()
    net = cloudtune.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(Path(folder) / "model.pt", map_location=device))
    torch.manual_seed(1)
    inputs = load.inputs(load.batch, device)
    targets = torch.randint(0, load.classes, (load.batch,), device=device)
    for epoch in cloudtune.epochs():
        for _ in range(int(os.environ["BENCHMARKS_STEPS"])):
            loss = torch.nn.functional.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), Path(folder) / "model.pt")
            saved = cloudtune.Checkpoint.from_directory(folder)
            cloudtune.report({"loss": loss.item(), "on_gpu": float(device != "cpu")}, saved)
"""

EXPERIMENT = """
name: gpu
train: train.py:train
metric: {{name: loss, mode: min}}
search:
  lr: {{loguniform: [1e-3, 1e-1]}}
trials: {trials}
epochs: {{min: 1, max: 4}}
eta: 2
strategy: sha
limits: {{deadline: 8m}}
cloud: {{provider: local{slots}}}
seed: 0
"""


def lacking() -> str:
    """Return what of cloudtune's dependencies isn't installed; empty where all is."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


class Home:
    """A home of cloudtune with an experiment in it; `gc` and its folder's end come with its own."""

    def __init__(self, load: str, steps: int, trials: int = 4, slots: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-run-"))
        (self.folder / "train.py").write_text(SCRIPT)
        told = "" if slots is None else f", slots: {slots}"
        (self.folder / "experiment.yaml").write_text(EXPERIMENT.format(trials=trials, slots=told))
        self._environment = {
            **os.environ,
            "CLOUDTUNE_HOME": str(self.folder / "home"),
            PATH: python_path(),
            "BENCHMARKS": str(ROOT),
            "BENCHMARKS_LOAD": load,
            "BENCHMARKS_STEPS": str(steps),
        }

    def __enter__(self) -> Home:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cloudtune("gc", "--yes", seconds=120.0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def cloudtune(self, *words: str, seconds: float = COMMAND_SECONDS) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it printed."""
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "cloudtune", *words],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # it gives everything back first
                process.wait()
                code = -1
            output.seek(0)
            return code, output.read()

    def report(self) -> dict[str, Any]:
        """Return the last run's report."""
        code, text = self.cloudtune("report", "-o", "json", seconds=60.0)
        if code:
            raise RuntimeError(text.strip()[-300:])
        found: dict[str, Any] = json.loads(text)
        return found
