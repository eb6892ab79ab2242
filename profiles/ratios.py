"""From one instance type to another: how much faster its GPUs train, and how certain that is.

A ratio is the median over the programs measured on both GPUs, and its spread is how far these
differ: a single program may well be at the edge. No ratio comes from data sheets.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import Width
from cloudtune.profiles.csv_table import rows

# Assumed, for the same GPU in another machine with other CPUs, disks and links.
SAME_GPU_SPREAD = 0.05


@dataclass(frozen=True)
class Ratio:
    """How many times as fast the second GPU trains as the first; `spread` is relative."""

    ratio: float
    spread: float
    n: int
    date: str
    source: str

    def then(self, other: "Ratio", over: str) -> "Ratio":
        """Return the ratio of both steps, with their combined uncertainty."""
        return Ratio(
            self.ratio * other.ratio,
            math.hypot(self.spread, other.spread),
            min(self.n, other.n),
            min(self.date, other.date),
            f"over {over}: {self.source}; {other.source}",
        )


@cache
def measured_ratios() -> dict[tuple[str, str], Ratio]:
    """Return the ratio of each pair of GPUs that were both measured, in both directions."""
    ratios: dict[tuple[str, str], Ratio] = {}
    for row in rows("ratios.csv"):
        ratio = Ratio(
            float(row["ratio"]), float(row["spread"]), int(row["n"]), row["date"], row["source"]
        )
        ratios.setdefault((row["slow"], row["fast"]), ratio)
        ratios.setdefault((row["fast"], row["slow"]), replace(ratio, ratio=1.0 / ratio.ratio))
    return ratios


def between(slow: str, fast: str) -> Ratio | None:
    """Return how many times as fast the second GPU is, via at most one other GPU; None if unknown.

    If several others were measured with both, the most certain one counts.
    """
    slow = slow.lower()
    fast = fast.lower()
    ratios = measured_ratios()
    if (slow, fast) in ratios:
        return ratios[slow, fast]
    over = sorted({b for a, b in ratios if a == slow} & {a for a, b in ratios if b == fast})
    chains = [ratios[slow, middle].then(ratios[middle, fast], middle) for middle in over]
    return min(chains, key=lambda chain: chain.spread, default=None)


def derive(
    profile: ScalingProfile, from_type: InstanceType, to_type: InstanceType
) -> ScalingProfile | None:
    """Return the profile for another instance type; None if its GPU is unknown.

    Every epoch is divided by the ratio, and `error` grows by its spread. Only widths with a
    measured layout stay: within one instance of both types, or over whole instances if both have
    the same number of GPUs; a packed width only on the same GPU. Ratios don't include that a faster
    GPU waits longer for its peers: wide trials may gain less.
    """
    if from_type.name == to_type.name:
        return profile
    same = from_type.gpu.lower() == to_type.gpu.lower()
    ratio = between(from_type.gpu, to_type.gpu)
    if same:
        why = "the same GPU; the spread is assumed"
        ratio = Ratio(1.0, SAME_GPU_SPREAD, 0, profile.measured_at, why)
    widths = [w for w in profile.widths if _laid_out_alike(w, from_type, to_type, same=same)]
    if ratio is None or not widths:
        return None
    return replace(
        profile,
        instance_type=to_type.name,
        epoch={width: profile.epoch[width].scaled(1 / ratio.ratio) for width in widths},
        memory={width: mib for width, mib in profile.memory.items() if width in widths},
        error=math.hypot(profile.error, ratio.spread),
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
