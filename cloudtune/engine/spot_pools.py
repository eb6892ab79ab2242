"""What spot pools have to give over time: recorded (a trace) or drawn, to be played again.

Pure, as the simulated world is: times are seconds of the run, chance comes with a generator.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.catalog import SpotBehaviour

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

UNLIMITED = 1_000_000
"""So many instances has a pool that is known to have room, and not for how many."""
PART_SECONDS = 86_400.0
"""A trace is looked at day by day, at the finest, for how its pool behaves,"""
PARTS = 12
"""and in so many parts, at most."""
_CYCLES = 64
"""So many times a drawn pool comes and goes before it begins anew."""


class Piece(NamedTuple):
    """A time in which a pool is the same: so many instances can be held, at a price if known."""

    begin: float
    end: float
    instances: int
    usd_per_hour: float | None


class _Seen(NamedTuple):
    """What a pool was like for a time: the share in which it was there, losses, hours held."""

    there: float
    lost: int
    held: float

    def losses(self, counted: float) -> float:
        """Return so many losses for an hour held; none of who could hold nothing."""
        return counted / self.held if self.held > 0 else 0.0


@dataclass(frozen=True)
class PoolTrace:
    """How many instances a pool had room for, from each of the `starts` on, and at what price.

    `starts` ascend from 0; the last holds until `length`, and then it all begins anew. `instances`
    is how many can be held at a time; `prices` are dollars an hour, empty where nothing is known
    of them.
    """

    name: str
    starts: tuple[float, ...]
    instances: tuple[int, ...]
    length: float
    prices: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert self.starts, "a trace of nothing"
        assert self.starts[0] == 0.0, "a trace begins with its first second"
        assert self.length > self.starts[-1], "a trace ends before its last row"

    def begun_at(self, second: float) -> PoolTrace:
        """Return the same trace as it goes by from a later second of it on."""
        second %= self.length
        if second == 0.0:
            return self
        first = bisect.bisect_right(self.starts, second) - 1
        order = [*range(first, len(self.starts)), *range(first + 1)]
        starts = [(self.starts[n] - second) % self.length for n in order]
        starts[0] = 0.0
        if not 0.0 < starts[-1] < self.length:  # it began at a row, which isn't cut in two
            order, starts = order[:-1], starts[:-1]
        return replace(
            self,
            starts=tuple(starts),
            instances=tuple(self.instances[n] for n in order),
            prices=tuple(self.prices[n] for n in order) if self.prices else (),
        )

    def capped(self, usd_per_hour: float) -> PoolTrace:
        """Return it as it is for somebody who pays no more than that: dearer is as good as gone."""
        if not self.prices:
            return self
        pairs = zip(self.instances, self.prices, strict=True)
        return replace(self, instances=tuple(n if p <= usd_per_hour else 0 for n, p in pairs))

    def _index(self, at: float) -> int:
        return bisect.bisect_right(self.starts, at % self.length) - 1

    def room(self, at: float) -> int:
        """Return how many instances can be held at a time."""
        return self.instances[self._index(at)]

    def pieces(self, begin: float, end: float) -> Iterator[Piece]:
        """Yield what there is from a time to another, in order."""
        at = begin
        while at < end:
            turn, index = math.floor(at / self.length), self._index(at)
            last = index + 1 == len(self.starts)
            until = turn * self.length + (self.length if last else self.starts[index + 1])
            if until <= at:  # a float that is a hair short of the turn
                until = math.nextafter(at, math.inf)
            price = self.prices[index] if self.prices else None
            yield Piece(at, min(until, end), self.instances[index], price)
            at = until

    def below(self, instances: int, after: float) -> float:
        """Return when next there is room for fewer, later than `after`; inf where never."""
        if self._least >= instances:
            return math.inf
        pieces = self.pieces(after, after + 2 * self.length)
        return next(p.begin for p in pieces if p.begin > after and p.instances < instances)

    @cached_property
    def _least(self) -> int:
        return min(self.instances)

    @property
    def availability(self) -> float:
        """The share of the time in which there is room for an instance."""
        return self._seen(0.0, self.length).there

    @property
    def losses(self) -> float:
        """Losses an hour of an instance: those of whoever had all that could be had."""
        seen = self._seen(0.0, self.length)
        return seen.losses(seen.lost)

    @property
    def behaviours(self) -> tuple[SpotBehaviour, ...]:
        """How the pool behaved in each of several equal parts of its trace.

        A part in which the pool was away at times, and lost no instance, counts half a loss.
        """
        found, parts = [], min(PARTS, max(1, int(self.length / PART_SECONDS)))
        for number in range(parts):
            seen = self._seen(*(self.length * n / parts for n in (number, number + 1)))
            counted = seen.lost or 0.5 * (seen.there < 1.0)
            found.append(SpotBehaviour(seen.losses(counted), seen.there))
        return tuple(found)

    def _seen(self, begin: float, end: float) -> _Seen:
        pieces = list(self.pieces(begin, end))
        return _Seen(
            sum(p.end - p.begin for p in pieces if p.instances > 0) / (end - begin),
            sum(max(0, a.instances - b.instances) for a, b in pairwise(pieces)),
            sum((p.end - p.begin) * p.instances for p in pieces) / 3600.0,
        )

    def dollars(self, begin: float, end: float, otherwise: float) -> float:
        """Return what an instance costs from a time to another; at a price where none is known."""
        return math.fsum(
            (p.end - p.begin) / 3600.0 * (otherwise if p.usd_per_hour is None else p.usd_per_hour)
            for p in self.pieces(begin, end)
        )


def drawn(name: str, behaviour: SpotBehaviour, chance: random.Random) -> PoolTrace | None:
    """Return a pool that comes and goes as it is said to; None for one that is always there.

    It has room, or it has none, for exponential times; when it goes, all that is held is lost.
    Losses of single instances of a pool that is always there are for the world to draw.
    """
    if behaviour.availability >= 1.0:
        return None
    if behaviour.availability <= 0.0:
        return PoolTrace(name, (0.0,), (0,), 3600.0)
    if behaviour.losses_per_hour <= 0.0:
        return None
    up, down = 3600.0 / behaviour.losses_per_hour, behaviour.outage
    there = chance.random() < behaviour.availability
    starts, instances, at = [], [], 0.0
    for _ in range(2 * _CYCLES):
        starts.append(at)
        instances.append(UNLIMITED if there else 0)
        at += max(1.0, chance.expovariate(1.0 / (up if there else down)))
        there = not there
    return PoolTrace(name, tuple(starts), tuple(instances), at)
