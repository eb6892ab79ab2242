"""From one instance type to another: how much faster its GPUs train, and how certain that is.

`gpu_speeds.py` has the speeds of GPUs, and `width_scaling.py` what more GPUs of a machine bring.
"""

import math
from dataclasses import replace
from functools import cache

from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import Width
from cloudtune.profiles.gpu_speeds import (
    GpuSpeeds,
    Ratio,
    published_comparisons,
    solve,
    specifications,
)
from cloudtune.profiles.width_scaling import with_wider

# Assumed, for the same GPU in another machine with other CPUs, disks and links.
SAME_GPU_SPREAD = 0.05


@cache
def gpu_speeds() -> GpuSpeeds:
    """Return the speeds of all GPUs in the tables."""
    return solve(published_comparisons(), specifications())


def between(slow: str, fast: str) -> Ratio | None:
    """Return how many times as fast the second GPU is; None if one of them is unknown."""
    return gpu_speeds().between(slow.lower(), fast.lower())


def derive(
    profile: ScalingProfile, from_type: InstanceType, to_type: InstanceType
) -> ScalingProfile | None:
    """Return the profile for another instance type; None if its GPU is unknown, or only a part.

    Every epoch is divided by the ratio, whose spread goes into `gpu_error`. Measured widths stay
    within one instance of both types, or over whole instances if both have the same number of GPUs;
    a packed width only on the same GPU. On a type with more GPUs wider ones are predicted. Ratios
    don't include that a faster GPU waits longer for its peers: wide trials may gain less.
    """
    if from_type.name == to_type.name:
        return profile
    same = from_type.gpu_model == to_type.gpu_model
    ratio = between(from_type.gpu, to_type.gpu)
    if same:
        why = "the same GPU; the spread is assumed"
        ratio = Ratio(1.0, SAME_GPU_SPREAD, 0, profile.measured_at, why)
    widths = [w for w in profile.widths if _laid_out_alike(w, from_type, to_type, same=same)]
    if ratio is None or not widths:
        return None
    epoch = {width: profile.epoch[width].scale(1 / ratio.ratio) for width in widths}
    return replace(
        profile,
        instance_type=to_type.name,
        epoch=with_wider(epoch, from_type.gpus, to_type.gpus),
        memory={width: mib for width, mib in profile.memory.items() if width in widths},
        gpu_error=math.hypot(profile.gpu_error, ratio.spread),
        source=_source(profile, ratio, from_type, to_type),
        provenance=replace(profile.provenance, on=profile.provenance.on or from_type.name),
    )


def _laid_out_alike(
    width: Width, from_type: InstanceType, to_type: InstanceType, *, same: bool
) -> bool:
    if width < 1:
        return same and to_type.gpus >= 1
    if width <= from_type.gpus:
        return width <= to_type.gpus
    return from_type.gpus == to_type.gpus and width % from_type.gpus == 0


def _source(
    profile: ScalingProfile, ratio: Ratio, from_type: InstanceType, to_type: InstanceType
) -> str:
    faster = f"{to_type.gpu} {ratio.ratio:.2f} times as fast as {from_type.gpu}"
    text = f"derived from {from_type.name}: {faster} ±{ratio.spread:.0%} ({ratio.source})"
    if 0 < to_type.gpu_memory_mib < from_type.gpu_memory_mib:
        text += "; its GPU has less memory: whether the batch fits is not known"
    return f"{text}; {profile.source}"
