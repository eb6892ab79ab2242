"""Fluid's rules on plain numbers: how wide is each trial of a group, and does a resize pay.

Source: Yu et al., "Fluid: Resource-Aware Hyperparameter Tuning Engine" (MLSys 2021), by notes on
the authors' slides and published code (docs/allocators.md). The paper's StaticFluid rounds a share
below one GPU down to the narrowest there is, which costs its bound of twice the optimum where more
than two trials may be packed on a GPU; `repaired` rounds it to the next whole number of trials.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloudtune.model.trial import Width

    Height: TypeAlias = Callable[[int, Width], float]

_WHOLE = 1e-9
"""What 3.9999999 may lack of 4."""


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


def bound(heights: Sequence[float], gpus: int, widest: int) -> float:
    """Return seconds that no schedule of a group beats, where twice the GPUs are twice as fast."""
    return max(sum(heights) / gpus, max(heights, default=0.0) / widest)


def makespan(widths: Sequence[Width], heights: Sequence[float], height: Height, gpus: int) -> float:
    """Return when the last trial is done if each begins as soon as it fits, the longest first.

    `height(trial, width)` is what a trial takes at a width. GPUs are all alike; a share of one GPU
    is never split over two.
    """
    waiting = sorted(range(len(widths)), key=lambda trial: -heights[trial])
    free = [1.0] * gpus
    running: list[tuple[float, int, tuple[tuple[int, float], ...]]] = []
    now = 0.0
    while waiting or running:
        for trial in tuple(waiting):
            placement = _placement(free, widths[trial])
            if placement is not None:
                _change(free, placement, -1.0)
                waiting.remove(trial)
                heapq.heappush(running, (now + height(trial, widths[trial]), trial, placement))
        if not running:
            return math.inf  # what waits fits nowhere
        now, _, placement = heapq.heappop(running)
        _change(free, placement, 1.0)
    return now


def _placement(free: Sequence[float], width: Width) -> tuple[tuple[int, float], ...] | None:
    """Return (GPU, share) pairs for a trial; a share goes on the fullest GPU with room for it."""
    if width < 1:
        fitting = [gpu for gpu, room in enumerate(free) if room >= width - _WHOLE]
        return ((min(fitting, key=lambda gpu: free[gpu]), width),) if fitting else None
    empty = [gpu for gpu, room in enumerate(free) if room >= 1 - _WHOLE][: round(width)]
    return tuple((gpu, 1.0) for gpu in empty) if len(empty) == round(width) else None


def _change(free: list[float], placement: tuple[tuple[int, float], ...], sign: float) -> None:
    for gpu, part in placement:
        free[gpu] += sign * part
