"""Fluid's rules on plain numbers: how wide each trial of a group is, and whether a resize pays.

Source: Yu et al., "Fluid: Resource-Aware Hyperparameter Tuning Engine" (MLSys 2021), by notes on
the authors' slides and published code (docs/allocators.md). The paper's StaticFluid rounds a share
below one GPU down to the narrowest, which breaks its bound of twice the optimum if more than two
trials may share a GPU; `repaired` rounds it to the next whole number of trials.
"""

import math
from collections.abc import Sequence

from cloudtune.model.trial import Width

# Tolerance when rounding down: 3.9999999 counts as 4.
_WHOLE = 1e-9


def static_fluid(
    heights: Sequence[float], gpus: int, packed: int, widest: int, *, repaired: bool = True
) -> list[Width]:
    """Return the width of each trial: its share of the GPUs by height, in whole GPUs or 1/k.

    `heights` are the seconds of each trial's budget on one GPU. At most `packed` trials share a
    GPU, and none is wider than `widest`.
    """
    total = sum(heights)
    exact = [height * gpus / total if total > 0 else 1.0 for height in heights]
    return [_width(share, packed, widest, repaired=repaired) for share in exact]


def _width(share: float, packed: int, widest: int, *, repaired: bool) -> Width:
    if share >= 1 - _WHOLE:
        return float(min(math.floor(share + _WHOLE), widest))
    if not repaired or share <= 0:
        return 1 / packed
    return 1 / min(packed, math.floor(1 / share + _WHOLE))


def scales_up(seconds: float, wider: float, resize: float) -> bool:
    """Whether a trial with `seconds` left ends sooner with a resize."""
    return wider + resize < seconds


def scales_down(
    width: Width, seconds: float, narrower: Width, longer: float, resize: float
) -> bool:
    """Whether a trial takes fewer GPU-seconds with a resize to a narrower width."""
    return narrower * (longer + resize) < width * seconds
