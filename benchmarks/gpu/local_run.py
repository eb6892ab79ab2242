"""A real small run on provider local: measured, planned, tuned, reported, and nothing left."""

from __future__ import annotations

from benchmarks.gpu.results import NO_GPU, Clock, Findings
from benchmarks.gpu.runs import Home, lacking
from cloudtune.infra.node.gpus import gpus
from cloudtune.train.checkpoint import read_manifest

TRIALS = 6
GPU_STEPS, CPU_STEPS = 400, 20


def measure() -> Findings:
    """Run it; look into its report."""
    found, real = Findings(), gpus()
    if lack := lacking():
        found.unknown["local_run_s"] = lack
        return found
    with Home("mlp", GPU_STEPS if real else CPU_STEPS, TRIALS) as home:
        clock = Clock()
        code, text = home.cloudtune("run", "experiment.yaml", "-q")
        found.figures["local_run_s"] = clock.seconds
        found.expect("local_run_ends_well", so=code == 0, told=f"exit code {code}: {text[-600:]}")
        if code == 0:
            _look_into(found, home, real=bool(real))
        code, text = home.cloudtune("status", seconds=60.0)
        found.facts["status_says"] = text.strip().splitlines()[-1] if text.strip() else ""
    if not real:
        found.unknown["local_run_on_a_gpu"] = NO_GPU
    return found


def _look_into(found: Findings, home: Home, *, real: bool) -> None:
    report = home.report()
    best = report["best"]
    found.figures["best_loss"] = best["value"]
    manifest = read_manifest(best["checkpoint"])
    on_gpu = manifest.metrics["on_gpu"]
    found.expect("best_checkpoint_is_whole", so=manifest.epoch == best["epoch"])
    if real:
        found.expect("local_run_on_a_gpu", so=on_gpu == 1.0, told=f"on_gpu is {on_gpu}")
