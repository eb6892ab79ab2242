"""Whole commands of cloudtune on this machine, in a home of their own.

`profile`: what `cloudtune profile --pack` says of packing, against what packing really brings: the
throughput of all packed trials together, as a share of one alone. `local`: a real small run on
provider local, which is measured, planned, tuned and reported, and leaves nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import packing
from benchmarks.gpu.results import NO_GPU, PATH, ROOT, TRAIN, Clock, Findings, python_path
from cloudtune.infra.node.gpus import gpus
from cloudtune.profiles.store import read
from cloudtune.train.checkpoint import read_manifest

if TYPE_CHECKING:
    from types import TracebackType

NEEDED = ("ray", "boto3", "flask", "moto", "pydantic", "optuna", "highspy", "rich", "ruamel")
COMMAND_SECONDS = 480.0
PACKED = "cnn"
PACKED_GPU_STEPS, PACKED_CPU_STEPS = 1000, 4
TRIALS = 6
GPU_STEPS, CPU_STEPS = 400, 20

EXPERIMENT = """
name: gpu
train: train.py:train
metric: {{name: loss, mode: min}}
search:
  lr: {{loguniform: [1e-4, 1e-2]}}
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
        shutil.copy(TRAIN, self.folder)
        result = "" if slots is None else f", slots: {slots}"
        (self.folder / "experiment.yaml").write_text(EXPERIMENT.format(trials=trials, slots=result))
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
        findings: dict[str, Any] = json.loads(text)
        return findings


# ---- the steps -----------------------------------------------------------------------------


def profile() -> Findings:
    """Measure both; return each one's shares, and how far they are apart."""
    findings, real = Findings(), gpus()
    if lack := lacking():
        findings.unknown["profile_s"] = lack
        return findings
    counts = packing.COUNTS if real else packing.COUNTS[:1]
    truth = packing.measure(loads=(PACKED,)).figures
    with Home(PACKED, PACKED_GPU_STEPS if real else PACKED_CPU_STEPS, slots=1) as home:
        clock, kept = Clock(), home.folder / "profile.json"
        words = ("--pack", str(counts[-1]), "--epochs", "3", "--save", str(kept))
        code, text = home.cloudtune("profile", "experiment.yaml", *words)
        findings.figures["profile_s"] = clock.seconds
        what = f"exit code {code}: {text[-600:]}"
        findings.expect("profile_ends_well", so=code == 0, message=what)
        if code:
            return findings
        (measured,) = read(kept)
    way = "mps" if f"{PACKED}_mps_{counts[0]}_share" in truth else "sliced" if real else "cores"
    findings.facts["way"] = way
    apart = []
    for count in counts:
        if 1 / count not in measured.epoch:
            findings.unknown[f"profile_{count}_share"] = "not in the profile"
            continue
        result = measured.epoch[1.0].mean / measured.epoch[1 / count].mean * count
        really = truth.get(f"{PACKED}_{way}_{count}_share")
        findings.figures[f"profile_{count}_share"] = result
        if really is not None:
            findings.figures[f"really_{count}_share"] = really
            apart.append(abs(result / really - 1))
    if apart:
        findings.figures["profile_is_off_by_share"] = fmean(apart)
    if not real:
        findings.unknown["profile_8_share"] = NO_GPU
    return findings


def local() -> Findings:
    """Run it; look into its report."""
    findings, real = Findings(), gpus()
    if lack := lacking():
        findings.unknown["local_run_s"] = lack
        return findings
    with Home("mlp", GPU_STEPS if real else CPU_STEPS, TRIALS) as home:
        clock = Clock()
        code, text = home.cloudtune("run", "experiment.yaml", "-q")
        findings.figures["local_run_s"] = clock.seconds
        findings.expect(
            "local_run_ends_well", so=code == 0, message=f"exit code {code}: {text[-600:]}"
        )
        if code == 0:
            _look_into(findings, home, real=bool(real))
        code, text = home.cloudtune("status", seconds=60.0)
        findings.facts["status_says"] = text.strip().splitlines()[-1] if text.strip() else ""
    if not real:
        findings.unknown["local_run_on_a_gpu"] = NO_GPU
    return findings


def _look_into(findings: Findings, home: Home, *, real: bool) -> None:
    report = home.report()
    best = report["best"]
    findings.figures["best_loss"] = best["value"]
    manifest = read_manifest(best["checkpoint"])
    on_gpu = manifest.metrics["on_gpu"]
    findings.expect("best_checkpoint_is_whole", so=manifest.epoch == best["epoch"])
    if real:
        findings.expect("local_run_on_a_gpu", so=on_gpu == 1.0, message=f"on_gpu is {on_gpu}")
