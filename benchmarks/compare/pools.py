"""Spot pools that were recorded: their traces with prices, and how such a pool behaved."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.engine.spot_pools import PoolTrace
from cloudtune.model.catalog import SpotBehaviour

if TYPE_CHECKING:
    from collections.abc import Iterator

# A trace is looked at day by day, at the finest, and in that many parts at most.
_PART_SECONDS = 86_400.0
_MAX_PARTS = 12


class Priced(NamedTuple):
    """A time in which a pool and its price are the same; None: no price is known."""

    begin: float
    end: float
    instances: int
    usd_per_hour: float | None


@dataclass(frozen=True)
class SpotTrace(PoolTrace):
    """A trace with its prices, dollars an hour; they are empty where none are known."""

    prices: tuple[float, ...] = ()

    def begun_at(self, second: float) -> SpotTrace:
        """Return the same trace as it goes by from a later second of it on."""
        second %= self.length
        if second == 0.0:
            return self
        first = bisect.bisect_right(self.starts, second) - 1
        order = [*range(first, len(self.starts)), *range(first + 1)]
        starts = [(self.starts[n] - second) % self.length for n in order]
        starts[0] = 0.0
        if not 0.0 < starts[-1] < self.length:  # it began at a row, which isn't cut in two
            order = order[:-1]
            starts = starts[:-1]
        return replace(
            self,
            starts=tuple(starts),
            instances=tuple(self.instances[n] for n in order),
            prices=tuple(self.prices[n] for n in order) if self.prices else (),
        )

    def capped(self, usd_per_hour: float) -> SpotTrace:
        """Return it for a bidder who pays no more than that: what costs more is as good as gone."""
        if not self.prices:
            return self
        pairs = zip(self.instances, self.prices, strict=True)
        return replace(self, instances=tuple(n if p <= usd_per_hour else 0 for n, p in pairs))

    def priced(self, begin: float, end: float) -> Iterator[Priced]:
        """Yield what there is from a time to another, and its price, in order."""
        for piece in self.pieces(begin, end):
            price = self.prices[self._index(piece.begin)] if self.prices else None
            yield Priced(*piece, price)

    def dollars(self, begin: float, end: float, otherwise: float) -> float:
        """Return what an instance costs from a time to another; at a price where none is known."""
        return math.fsum(
            (p.end - p.begin) / 3600.0 * (otherwise if p.usd_per_hour is None else p.usd_per_hour)
            for p in self.priced(begin, end)
        )

    @property
    def availability(self) -> float:
        """The share of the time in which there is room for an instance."""
        return self._behaviour(0.0, self.length).availability

    @property
    def losses(self) -> float:
        """Losses an hour of an instance, for a holder of all that the pool had."""
        return self._behaviour(0.0, self.length).losses_per_hour

    @property
    def behaviours(self) -> tuple[SpotBehaviour, ...]:
        """How the pool behaved in each of several equal parts of its trace.

        A part in which the pool was away at times, and lost no instance, counts half a loss.
        """
        parts = min(_MAX_PARTS, max(1, int(self.length / _PART_SECONDS)))
        edges = [self.length * number / parts for number in range(parts + 1)]
        return tuple(self._behaviour(*part, least=0.5) for part in pairwise(edges))

    def _behaviour(self, begin: float, end: float, least: float = 0.0) -> SpotBehaviour:
        """Return losses and availability; `least` losses where the pool was away at times."""
        pieces = list(self.pieces(begin, end))
        there = sum(p.end - p.begin for p in pieces if p.instances > 0) / (end - begin)
        held = sum((p.end - p.begin) * p.instances for p in pieces) / 3600.0
        lost = sum(max(0, a.instances - b.instances) for a, b in pairwise(pieces))
        counted = lost or (least if there < 1.0 else 0.0)
        return SpotBehaviour(counted / held if held > 0 else 0.0, there)
