"""How long training stands still at a resize on a GPU, beside Ray Tune's way of it.

Ours: the session of a trial ends after an epoch with a checkpoint, and the next one begins with it,
by the agent alone, as a controller would have it. On one GPU a trial can go from half of it to the
whole and back, or be started again as wide as it was. The gap is from the end of the last epoch
before to the begin of the first step after, by the script's own clock. Tune's: `tune_side.py`, the
same model by pause, update of resources and restore. Each kind once uncounted; medians. On a GPU
also of a model with 1 GB of checkpoint.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.gpu.clients import waited
from benchmarks.gpu.loads import GIGABYTE
from benchmarks.gpu.node import Bench
from benchmarks.gpu.results import NO_GPU, PATH, Findings, python_path
from cloudtune.infra.node.gpus import gpus
from cloudtune.infra.node.messages import Epoch

LOAD = "transformer"
REPEATS, BIG_REPEATS = 5, 2
EPOCHS = 2
_PEER_SECONDS = 240.0


def measure(repeats: int = REPEATS) -> Findings:
    """Resize trials of ours, then of Tune."""
    findings, real = Findings(), gpus()[:1]
    changes = [(0.5, 1.0), (1.0, 0.5), (1.0, 1.0)] if real else [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)]
    with Bench(gpus=1 if real else 2, spares=True) as bench:
        for before, after in changes:
            name = f"{_named(before)}_to_{_named(after)}"
            gaps = [_gap(bench, f"{name}.{turn}", before, after) for turn in range(repeats + 1)]
            findings.figures[f"gap_{name}_s"] = median(gaps[1:])
            if real:
                names = [f"big_{name}.{turn}" for turn in range(BIG_REPEATS + 1)]
                big = [_gap(bench, item, before, after, load=GIGABYTE) for item in names]
                findings.figures[f"gap_{name}_with_1_gb_s"] = median(big[1:])
    theirs = _tunes(findings, repeats)
    for name, gap in theirs.items():
        findings.figures[f"tune_gap_{name}_s"] = gap
        ours = findings.figures.get(f"gap_{name}_s")
        if ours:
            findings.figures[f"tune_gap_to_ours_{name}_ratio"] = gap / ours
    if not real:
        findings.unknown["gap_half_to_1_s"] = NO_GPU
    return findings


def _named(width: float) -> str:
    return "half" if width < 1 else f"{width:g}"


def _gap(bench: Bench, name: str, before: float, after: float, *, load: str = LOAD) -> float:
    """Return how long one trial stood still."""
    trial = name.replace(".", "-")
    first, second = f"{trial}.1", f"{trial}.2"
    bench.start(first, before, until=EPOCHS, load=load)
    reports = [bench.hear(first, Epoch).body for _ in range(EPOCHS)]
    last = reports[-1]
    assert isinstance(last, Epoch)
    ended = max(at for kind, epoch, at, _ in bench.notes(first) if (kind, epoch) == ("end", EPOCHS))
    bench.end(first)
    width = max(1, round(after))
    bench.start(second, after, EPOCHS + 1, load=load, checkpoint=last.report.checkpoint)
    bench.hear(second, Epoch)
    begun = max(bench.noted(second, "begin", rank)[0] for rank in range(width))
    bench.end(second)
    if gpus():
        time.sleep(3.0)  # a spare gets ready, as between two resizes of a run
    return begun - ended


def _tunes(findings: Findings, repeats: int) -> dict[str, float]:
    """Return Tune's median gaps, of a process of its own."""
    if importlib.util.find_spec("ray") is None:
        findings.unknown["tune_gap_half_to_1_s"] = "ray isn't installed"
        return {}
    with tempfile.TemporaryDirectory(prefix="gpu-tune-") as folder:
        output = Path(folder) / "tune.json"
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "HOME": folder}
        environment |= {PATH: python_path(), "RAY_USAGE_STATS_ENABLED": "0"}
        log = Path(folder) / "log"
        with log.open("w") as words:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.tune_side", str(output), str(repeats), LOAD],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
            )
            if not waited(lambda: process.poll() is not None, _PEER_SECONDS):
                process.terminate()
            process.wait()
        if not output.exists():
            last = log.read_text().strip().splitlines()[-1:] or ["no words"]
            findings.unknown["tune_gap_half_to_1_s"] = f"Ray Tune ended early: {last[0][:200]}"
            return {}
        gaps: dict[str, list[float]] = json.loads(output.read_text())
    return {name: median(seconds) for name, seconds in gaps.items()}
