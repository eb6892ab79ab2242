"""Fluid's rules on plain numbers: how wide each trial of a group is, and whether a resize pays.

Source: Yu et al., "Fluid: Resource-Aware Hyperparameter Tuning Engine" (MLSys 2021), by notes on
the authors' slides and published code (docs/allocators.md).
"""

import math
from collections.abc import Callable, Sequence

from cloudtune.model.trial import Width

# Tolerance when rounding down: 3.9999999 counts as 4.
_WHOLE = 1e-9


def whole_trials(share: float, packed: int) -> Width:
    """Return the width of a share below one GPU: the next whole number of trials on it."""
    return 1 / min(packed, math.floor(1 / share + _WHOLE)) if share > 0 else 1 / packed


def static_fluid(
    heights: Sequence[float],
    gpus: int,
    packed: int,
    widest: int,
    *,
    narrow: Callable[[float, int], Width] = whole_trials,
) -> list[Width]:
    """Return the width of each trial: its share of the GPUs by height, in whole GPUs or 1/k.

    `heights` are the seconds of each trial's budget on one GPU. At most `packed` trials share a
    GPU, and none is wider than `widest`; `narrow` rounds the shares below one GPU.
    """
    total = sum(heights)
    widths = []
    for height in heights:
        share = height * gpus / total if total > 0 else 1.0
        if share >= 1 - _WHOLE:
            widths.append(float(min(math.floor(share + _WHOLE), widest)))
        else:
            widths.append(narrow(share, packed))
    return widths


def scales_up(seconds: float, wider: float, resize: float) -> bool:
    """Whether a trial with `seconds` left ends sooner with a resize."""
    return wider + resize < seconds


def scales_down(
    width: Width, seconds: float, narrower: Width, longer: float, resize: float
) -> bool:
    """Whether a trial takes fewer GPU-seconds with a resize to a narrower width."""
    return narrower * (longer + resize) < width * seconds
