"""From counts to seats: which GPUs each trial gets, once it is known that all fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cloudtune.trial import Slice, TrialId, Width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Pattern: TypeAlias = tuple[Width, ...]
"""Widths that share a GPU, or an instance."""

Piece: TypeAlias = tuple[TrialId, Width, float, int]
"""A trial, its width and seconds, and the GPUs of each instance that it is to sit on."""


@dataclass(frozen=True)
class Seat:
    """Where a trial sits: its slices, and the numbers of the GPUs that it has on each of them."""

    task: TrialId
    width: Width
    seconds: float
    slices: tuple[Slice, ...]
    gpus: tuple[int, ...]

    @property
    def gpu_seconds(self) -> float:
        """What it takes: its share of a GPU, or whole GPUs, for as long as it trains."""
        return min(self.width, 1.0) * len(self.gpus) * len(self.slices) * self.seconds


Place: TypeAlias = tuple[str, int]
"""An instance, and the first GPU of a piece of it."""


def seated(
    machines: Mapping[str, int],
    pieces: Sequence[Piece],
    cuts: Sequence[tuple[int, Pattern]],
    shares: Sequence[tuple[int, Pattern]],
) -> list[Seat]:
    """Return a seat for each piece.

    `cuts` say into which widths instances of so many GPUs are cut, `shares` how single GPUs of such
    instances are shared; together with the pieces wider than an instance they fit.
    """
    free = {
        gpus: [name for name in machines if machines[name] == gpus] for gpus in machines.values()
    }
    seats = []
    for task, width, seconds, gpus in pieces:
        if width > gpus:
            count = math.ceil(width / gpus)
            names, free[gpus] = free[gpus][:count], free[gpus][count:]
            slices = tuple(Slice(name, width / count) for name in names)
            seats.append(Seat(task, width, seconds, slices, tuple(range(gpus))))
    places = _places(free, cuts)
    _share(places, shares)
    for task, width, seconds, gpus in pieces:
        if width <= gpus:
            name, first = places[gpus, width].pop(0)
            numbers = tuple(range(first, first + max(1, int(width))))
            seats.append(Seat(task, width, seconds, (Slice(name, width),), numbers))
    return seats


def _places(
    free: Mapping[int, Sequence[str]], cuts: Sequence[tuple[int, Pattern]]
) -> dict[tuple[int, Width], list[Place]]:
    """Return the places of each width on instances of each size."""
    left = {gpus: list(names) for gpus, names in free.items()}
    places: dict[tuple[int, Width], list[Place]] = {}
    for gpus, pattern in cuts:
        name, first = left[gpus].pop(0), 0
        for width in pattern:
            places.setdefault((gpus, width), []).append((name, first))
            first += int(width)
    return places


def _share(
    places: dict[tuple[int, Width], list[Place]], shares: Sequence[tuple[int, Pattern]]
) -> None:
    """Turn whole GPUs into places of fractions."""
    for gpus, pattern in shares:
        place = places[gpus, 1.0].pop()
        for width in pattern:
            places.setdefault((gpus, width), []).append(place)
