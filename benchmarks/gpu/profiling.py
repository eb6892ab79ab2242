"""`profile --pack` against what packing really brings: the same model, one way after the other.

A figure is the throughput of all packed trials together, as a share of one alone: by the profile's
seconds of an epoch, and by trials that train at the same time with nothing of cloudtune's between.
"""

from __future__ import annotations

from statistics import fmean

from benchmarks.gpu import packing
from benchmarks.gpu.results import NO_GPU, Clock, Findings
from benchmarks.gpu.runs import Home, lacking
from cloudtune.infra.node.gpus import gpus
from cloudtune.profiles.store import read

LOAD = "cnn"
GPU_STEPS, CPU_STEPS = 1000, 4


def measure() -> Findings:
    """Measure both; return each one's shares, and how far they are apart."""
    found, real = Findings(), gpus()
    if lack := lacking():
        found.unknown["profile_s"] = lack
        return found
    counts = packing.COUNTS if real else packing.COUNTS[:1]
    truth = packing.measure(loads=(LOAD,)).figures
    with Home(LOAD, GPU_STEPS if real else CPU_STEPS, slots=1) as home:
        clock, kept = Clock(), home.folder / "profile.json"
        words = ("--pack", str(counts[-1]), "--epochs", "3", "--save", str(kept))
        code, text = home.cloudtune("profile", "experiment.yaml", *words)
        found.figures["profile_s"] = clock.seconds
        found.expect("profile_ends_well", so=code == 0, told=f"exit code {code}: {text[-600:]}")
        if code:
            return found
        (profile,) = read(kept)
    way = "mps" if f"{LOAD}_mps_{counts[0]}_share" in truth else "sliced" if real else "cores"
    found.facts["way"] = way
    apart = []
    for count in counts:
        if 1 / count not in profile.epoch:
            found.unknown[f"profile_{count}_share"] = "not in the profile"
            continue
        told = profile.epoch[1.0].mean / profile.epoch[1 / count].mean * count
        really = truth.get(f"{LOAD}_{way}_{count}_share")
        found.figures[f"profile_{count}_share"] = told
        if really is not None:
            found.figures[f"really_{count}_share"] = really
            apart.append(abs(told / really - 1))
    if apart:
        found.figures["profile_is_off_by_share"] = fmean(apart)
    if not real:
        found.unknown["profile_8_share"] = NO_GPU
    return found
