"""Fluid's rules on plain numbers: how wide is each trial of a group, and does a resize pay.

Source: Yu et al., "Fluid: Resource-Aware Hyperparameter Tuning Engine" (MLSys 2021), by notes on
the authors' slides and published code (docs/allocators.md). The paper's StaticFluid rounds a share
below one GPU down to the narrowest there is, which costs its bound of twice the optimum where more
than two trials may be packed on a GPU; `repaired` rounds it to the next whole number of trials.
"""

import math
from collections.abc import Sequence

from cloudtune.model.trial import Width

# What 3.9999999 may lack of 4.
_WHOLE = 1e-9


def static_fluid(
    heights: Sequence[float], gpus: int, packed: int, widest: int, *, repaired: bool = True
) -> list[Width]:
    """Return the width of each trial: its share of the GPUs by its height, in whole GPUs or 1/k.

    `heights` are the seconds that each trial's budget takes on one GPU; at most `packed` trials
    share a GPU, and none is wider than `widest`.
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
    """Whether a trial that has these seconds left is done sooner after a resize."""
    return wider + resize < seconds


def scales_down(
    width: Width, seconds: float, narrower: Width, longer: float, resize: float
) -> bool:
    """Whether a trial takes fewer GPU-seconds after a resize to a narrower width."""
    return narrower * (longer + resize) < width * seconds
