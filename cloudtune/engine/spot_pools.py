"""The capacity of spot pools over time, drawn or given, for runs in virtual time.

Pure, as the simulated world is: times are seconds of the run, randomness comes from a generator.
"""

import bisect
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cloudtune.model.catalog import SpotBehaviour

# The instances of a pool with unknown capacity.
UNLIMITED = 1_000_000
# How often a drawn pool comes and goes before it repeats.
_CYCLES = 64


class Piece(NamedTuple):
    """A time of constant capacity, and how many instances can be held in it."""

    begin: float
    end: float
    instances: int


@dataclass(frozen=True)
class PoolTrace:
    """The capacity of a pool: `instances` can be held from each of the `starts` on.

    `starts` ascend from 0; the last lasts until `length`, and then the trace repeats.
    """

    name: str
    starts: tuple[float, ...]
    instances: tuple[int, ...]
    length: float

    def __post_init__(self) -> None:
        assert self.starts, "a trace of nothing"
        assert self.starts[0] == 0.0, "a trace begins with its first second"
        assert self.length > self.starts[-1], "a trace ends before its last row"

    def _index(self, at: float) -> int:
        return bisect.bisect_right(self.starts, at % self.length) - 1

    def room(self, at: float) -> int:
        """Return how many instances can be held at a time."""
        return self.instances[self._index(at)]

    def pieces(self, begin: float, end: float) -> Iterator[Piece]:
        """Yield what there is from a time to another, in order."""
        at = begin
        while at < end:
            turn = math.floor(at / self.length)
            index = self._index(at)
            last = index + 1 == len(self.starts)
            until = turn * self.length + (self.length if last else self.starts[index + 1])
            if until <= at:  # rounding at the end of the trace
                until = math.nextafter(at, math.inf)
            yield Piece(at, min(until, end), self.instances[index])
            at = until

    def below(self, instances: int, after: float) -> float:
        """Return the next time after `after` with room for fewer; inf if never."""
        if min(self.instances) >= instances:
            return math.inf
        pieces = self.pieces(after, after + 2 * self.length)
        return next(p.begin for p in pieces if p.begin > after and p.instances < instances)


def draw_pool(name: str, behaviour: SpotBehaviour, chance: random.Random) -> PoolTrace | None:
    """Return a pool that comes and goes as the behaviour says; None if it is always there.

    It has room, or it has none, for exponential times; when it goes, all that is held is lost.
    Losses of single instances of a pool that is always there are for the world to draw.
    """
    if behaviour.availability >= 1.0:
        return None
    if behaviour.availability <= 0.0:
        return PoolTrace(name, (0.0,), (0,), 3600.0)
    if behaviour.losses_per_hour <= 0.0:
        return None
    up = 3600.0 / behaviour.losses_per_hour
    down = behaviour.outage
    is_up = chance.random() < behaviour.availability
    starts = []
    instances = []
    at = 0.0
    for _ in range(2 * _CYCLES):
        starts.append(at)
        instances.append(UNLIMITED if is_up else 0)
        at += max(1.0, chance.expovariate(1.0 / (up if is_up else down)))
        is_up = not is_up
    return PoolTrace(name, tuple(starts), tuple(instances), at)
