"""Where the GPUs of a trial come from: from which group of a stage, and from which instances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.trial import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Group
    from cloudtune.trial import Width

_EPSILON = 1e-6  # 1/3 + 1/3 + 1/3 must fit on one GPU


def slots(width: Width, gpus: int, instances: int) -> int:
    """Return how many trials of that width run at once on so many instances of `gpus` GPUs.

    A trial that fits on one instance is never split over two; a wider one takes whole instances.
    """
    if width <= gpus:
        return instances * math.floor(gpus / width + _EPSILON)
    return instances // math.ceil(width / gpus - _EPSILON)


def can_train(group: Group, instances: Mapping[Offer, int]) -> bool:
    """Whether a group with so many instances could train a single trial."""
    return slots(group.width, group.offer.gpus, instances.get(group.offer, 0)) > 0


def open_groups(
    groups: Sequence[Group], seated: Mapping[Offer, int], instances: Mapping[Offer, int]
) -> list[Group]:
    """Return the groups that a waiting trial may join, in the order given.

    Each takes as many trials as the plan gives it, while any of them has room for one more. One
    that can't train a trial with the instances it has (or is to have) doesn't count: when what it
    had is lost for good, the others take its trials.
    """
    able = [group for group in groups if can_train(group, instances)]
    with_room = [group for group in able if seated.get(group.offer, 0) < group.trials]
    return with_room or able


def enough(group: Group, trials: int, have: int) -> int:
    """Return the instances that a group needs for so many trials: what it has, or more.

    No more than it takes for all of them to train at once, and never more than the plan says.
    """
    sizes = range(have, group.instances)
    fitting = (size for size in sizes if slots(group.width, group.offer.gpus, size) >= trials)
    return next(fitting, group.instances)


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
