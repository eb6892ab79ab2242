"""Batch size and learning rate after a change of width: for a training script to follow."""

from __future__ import annotations

import math

_STEP = 0.1
"""The largest step of the learning rate, as a share of the initial one."""
_ROUNDING = 1e-9


def batch_and_lr(
    batch: int, lr: float, width: float, new_width: float, *, initial_lr: float | None = None
) -> tuple[int, tuple[float, ...]]:
    """Return the global batch at a new width, and the learning rates that lead there.

    `batch` is the global one at `width` GPUs; each GPU keeps its part (weak scaling; below one GPU
    there is one worker all the same). The rate follows the square root of the batch's growth, in
    equal steps of at most a tenth of `initial_lr` (default: `lr`): one for each of the next epochs,
    the last of them for all that follow. Returns None where nothing changes.

    Source: Liaw et al., "HyperSched" (SoCC 2019), by notes on its published code.

    Raises:
        ValueError: something isn't above 0, or the batch can't be split over `width` GPUs evenly.
    """
    first = lr if initial_lr is None else initial_lr
    if not (min(batch, width, new_width) > 0 and lr > 0 and first > 0):
        raise ValueError("batch, learning rates and widths have to be above 0")
    workers, new_workers = _workers(width), _workers(new_width)
    if batch % workers:
        raise ValueError(f"a batch of {batch} can't be split evenly over {workers} GPUs")
    goal = lr * math.sqrt(new_workers / workers)
    steps = math.ceil(abs(goal - lr) / (_STEP * first) - _ROUNDING)
    rates = [lr + (goal - lr) * step / steps for step in range(1, steps)]
    return batch // workers * new_workers, (*rates, goal) if steps else ()


def _workers(width: float) -> int:
    return math.ceil(width - _ROUNDING)
