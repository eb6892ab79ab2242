"""Where the GPUs of a trial come from: which group of a stage, and which instances."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Group
from cloudtune.model.trial import GPU_ROUNDING, Slice, Width


def slots(width: Width, gpus: int, instances: int) -> int:
    """Return how many trials of that width run at once on `instances` instances of `gpus` GPUs.

    A trial that fits on one instance is never split over two; a wider one takes whole instances.
    """
    if width <= gpus:
        return instances * math.floor(gpus / width + GPU_ROUNDING)
    return instances // math.ceil(width / gpus - GPU_ROUNDING)


def can_train(group: Group, instances: Mapping[Offer, int]) -> bool:
    """Whether a group with these instances could train a single trial."""
    return slots(group.width, group.offer.gpus, instances.get(group.offer, 0)) > 0


def open_groups(
    groups: Sequence[Group], placed: Mapping[Offer, int], instances: Mapping[Offer, int]
) -> list[Group]:
    """Return the groups that a waiting trial may join, in the order given.

    While any group has room for one more, a group takes no more trials than planned. A group that
    can't train a trial on its present or expected instances doesn't count: if its instances are
    lost for good, the others take its trials.
    """
    able = [group for group in groups if can_train(group, instances)]
    with_room = [group for group in able if placed.get(group.offer, 0) < group.trials]
    return with_room or able


def enough(group: Group, trials: int, have: int) -> int:
    """Return the instances that a group needs for `trials` trials: those it has, or more.

    As many as let all of them train at once, but never more than planned.
    """
    sizes = range(have, group.instances)
    fitting = (size for size in sizes if slots(group.width, group.offer.gpus, size) >= trials)
    return next(fitting, group.instances)


class Room:
    """The free GPUs of one instance: whole GPUs, and the rest of shared ones.

    Two free halves of different GPUs don't fit a trial that needs a whole one. Whole GPUs are
    interchangeable and have no numbers, so what fits here can always be placed on physical GPUs.
    """

    __slots__ = ("shared", "whole")

    def __init__(self, gpus: int) -> None:
        self.whole = gpus
        """Empty GPUs."""
        self.shared: dict[int, float] = {}
        """The used part of each shared GPU."""

    @property
    def free(self) -> float:
        """All free GPUs, including the rest of shared ones."""
        return self.whole + sum([1 - used for used in self.shared.values()], 0.0)

    def take(self, piece: Slice) -> None:
        """Take a slice of the instance."""
        gpus = piece.gpus
        if gpus >= 1:
            self.whole -= math.ceil(gpus - GPU_ROUNDING)
            return
        if piece.gpu not in self.shared:
            self.whole -= 1
        self.shared[piece.gpu] = self.shared.get(piece.gpu, 0.0) + gpus

    def give(self, piece: Slice) -> None:
        """Free a slice of the instance; a GPU that nothing shares any more is whole again."""
        if piece.gpus >= 1:
            self.whole += _whole_gpus(piece)
        elif self._alone(piece):
            del self.shared[piece.gpu]
            self.whole += 1
        else:
            self.shared[piece.gpu] -= piece.gpus

    def besides(self, own: Slice, wanted: Slice) -> tuple[Slice, ...]:
        """Return the extra slices that a trial at `own` needs for `wanted` to fit once it has left.

        `wanted` is a slice that would fit if `own` were free already.
        """
        if wanted.gpus >= 1:
            return self._besides_for_whole(own, wanted)
        if own.gpus >= 1:
            return (wanted,) if wanted.gpu in self.shared else ()
        fresh = wanted.gpu not in self.shared and self._alone(own)  # then its own GPU will do
        if wanted.gpu != own.gpu and not fresh:
            return (wanted,)
        grows = wanted.gpus - own.gpus
        return (Slice(own.instance, grows, own.gpu),) if grows > GPU_ROUNDING else ()

    def _besides_for_whole(self, own: Slice, wanted: Slice) -> tuple[Slice, ...]:
        if own.gpus >= 1:
            grows = _whole_gpus(wanted) - _whole_gpus(own)
            return (Slice(own.instance, float(grows)),) if grows > 0 else ()
        if not self._alone(own):
            return (wanted,)
        rest = Slice(own.instance, 1 - own.gpus, own.gpu)  # of its own GPU
        others = _whole_gpus(wanted) - 1
        return (rest, Slice(own.instance, float(others))) if others else (rest,)

    def _alone(self, piece: Slice) -> bool:
        """Whether this share has its GPU to itself."""
        return self.shared[piece.gpu] - piece.gpus <= GPU_ROUNDING

    def fresh(self) -> int:
        """Return the lowest number of a GPU without shares."""
        return next(gpu for gpu in itertools.count() if gpu not in self.shared)

    def overfull(self) -> bool:
        """Whether the instance, or one of its GPUs, is overbooked."""
        if self.whole < 0:
            return True
        return bool(self.shared) and max(self.shared.values()) > 1 + GPU_ROUNDING

    def matches(self, other: "Room") -> bool:
        mine = self.shared
        its = other.shared
        if self.whole != other.whole or mine.keys() != its.keys():
            return False
        return not mine or all(abs(mine[gpu] - its[gpu]) <= GPU_ROUNDING for gpu in mine)


def _whole_gpus(piece: Slice) -> int:
    """Return the GPUs of a slice that shares none of them, rounded up."""
    return math.ceil(piece.gpus - GPU_ROUNDING)


def rooms(gpus: Mapping[str, int], taken: Iterable[Slice]) -> dict[str, Room]:
    """Return the room on each instance of `gpus`; slices on other instances are ignored."""
    free = {instance: Room(count) for instance, count in gpus.items()}
    for piece in taken:
        room = free.get(piece.instance)
        if room is not None:
            room.take(piece)
    return free


def place(width: Width, gpus: int, free: Mapping[str, Room]) -> tuple[Slice, ...] | None:
    """Return slices for one trial, or None if it doesn't fit now.

    `gpus` is what one empty instance has. A share goes on the fullest GPU with room for it, and
    opens another only if there is none. A trial goes on the fullest instance that has the GPUs, so
    that whole instances stay free for wide trials; ties by instance id.
    """
    if width < 1:
        return _place_share(width, free)
    if width <= gpus:
        name = _fullest(width, free)
        return None if name is None else (Slice(name, width),)
    needed = math.ceil(width / gpus - GPU_ROUNDING)
    empty = sorted(name for name in free if free[name].whole >= gpus)
    if len(empty) < needed:
        return None
    share = width / needed
    return tuple(Slice(name, share, -1 if share >= 1 else 0) for name in empty[:needed])


def _place_share(width: Width, free: Mapping[str, Room]) -> tuple[Slice, ...] | None:
    fitting = [
        (-used, room.whole, name, gpu)
        for name, room in free.items()
        for gpu, used in room.shared.items()
        if used + width <= 1 + GPU_ROUNDING
    ]
    if fitting:
        _, _, instance, gpu = min(fitting)
        return (Slice(instance, width, gpu),)
    name = _fullest(1, free)
    return None if name is None else (Slice(name, width, free[name].fresh()),)


def _fullest(width: Width, free: Mapping[str, Room]) -> str | None:
    """Return the instance with at least `width` whole free GPUs and the fewest of them."""
    fitting = [
        (room.whole, name) for name, room in free.items() if room.whole >= width - GPU_ROUNDING
    ]
    return min(fitting)[1] if fitting else None
