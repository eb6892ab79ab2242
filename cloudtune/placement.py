"""Where the GPUs of a trial come from: best fit on one instance, or several whole ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.trial import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cloudtune.trial import Width

_EPSILON = 1e-6  # 1/3 + 1/3 + 1/3 must fit on one GPU


def slots(width: Width, gpus: int, instances: int) -> int:
    """Return how many trials of that width run at once on so many instances of `gpus` GPUs.

    A trial that fits on one instance is never split over two; a wider one takes whole instances.
    """
    if width <= gpus:
        return instances * math.floor(gpus / width + _EPSILON)
    return instances // math.ceil(width / gpus - _EPSILON)


def free_gpus(gpus: Mapping[str, int], taken: Iterable[Slice]) -> dict[str, float]:
    """Return the free GPUs of each instance of `gpus`; slices on other instances are ignored."""
    free = {instance: float(count) for instance, count in gpus.items()}
    for piece in taken:
        if piece.instance in free:
            free[piece.instance] -= piece.gpus
    return free


def place(width: Width, gpus: int, free: Mapping[str, float]) -> tuple[Slice, ...] | None:
    """Return slices for one trial, or None where it doesn't fit now.

    `gpus` is what one empty instance has. Of the instances that fit, the fullest is taken, so
    that whole instances stay free for wide trials; ties go by instance id.
    """
    if width <= gpus:
        fitting = [name for name in free if free[name] >= width - _EPSILON]
        if not fitting:
            return None
        return (Slice(min(fitting, key=lambda name: (free[name], name)), width),)
    needed = math.ceil(width / gpus - _EPSILON)
    empty = sorted(name for name in free if free[name] >= gpus - _EPSILON)
    if len(empty) < needed:
        return None
    return tuple(Slice(name, width / needed) for name in empty[:needed])
