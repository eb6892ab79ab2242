"""One long run, read at limits that its strategy doesn't know of.

A strategy that looks at neither time nor money does the same under any limits until these end it.
So it is played once, to the widest limits, and each cell is read off at the moment when
the policy would have braked: the books' bill (`FleetBook.dollars`) is made again from the
ledger. A run that couldn't have paid for its next request is another run from there, and is played.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.engine.record.timeline import read
from cloudtune.model.fleet import Rented

if TYPE_CHECKING:
    from benchmarks.compare.case import Played
    from cloudtune.engine.record.audit import Point
    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Limits
    from cloudtune.policy.base import Brakes

    Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class Reading:
    """What a run would have come to, had it been ended then."""

    at: float
    dollars: float
    point: Point | None


@dataclass(frozen=True)
class Track:
    """A run's requests and bests; `tick` and `drain` are its brakes'.

    Of each request: when it was made, when the instance launched, and when it was gone; inf where
    it never was.
    """

    offer: Offer
    tick: float
    drain: float
    asked: Floats
    launched: Floats
    gone: Floats
    path: tuple[Point, ...]

    def read(self, limits: Limits) -> Reading | None:
        """Return what it would have come to under these limits.

        None where it would have asked for what these limits don't pay for.
        """
        at = self._stop(limits)
        if at is None:
            return None
        bests = [point for point in self.path if point.at <= at]
        return Reading(at, self._spent(min(at, self._times[-1])), bests[-1] if bests else None)

    def _stop(self, limits: Limits) -> float | None:
        """Return when the policy would have braked: it looks at times that it sets itself."""
        budget = math.inf if limits.budget is None else limits.budget
        last = math.inf if limits.deadline is None else limits.deadline - self._ahead
        soon = min(self._near(budget), last)
        at = max((t for t in self.asked if t <= soon), default=0.0)
        asked = True
        while True:
            if asked and self._spent(at) > budget:
                return None
            brake = self._next_look(at, limits)
            following = min((t for t in self.asked if t > at), default=math.inf)
            asked = following <= brake
            at = following if asked else brake
            if not asked and (at == math.inf or self._brakes(at, limits)):
                return at

    def _brakes(self, at: float, limits: Limits) -> bool:
        late = limits.deadline is not None and at + self.tick + self.drain >= limits.deadline
        return late or (limits.budget is not None and self._spent(at) > limits.budget)

    def _next_look(self, now: float, limits: Limits) -> float:
        """Return what `LimitKeeper._next_look` does."""
        at = math.inf
        if limits.deadline is not None:
            at = limits.deadline - self.tick - self.drain
        alive = sum(asked <= now < gone for asked, _, gone in self._lives)
        if limits.budget is not None and alive:
            left = limits.budget - self._spent(now)
            at = min(at, now + left / sum([self.offer.usd_per_second] * alive))
        return max(at, now + self.tick)

    def _spent(self, now: float) -> float:
        """Return the bill if it were decided at the next tick to give all back."""
        ahead = now + self.tick + self.drain
        return sum(
            Rented(
                intent="",
                offer=self.offer,
                requested_at=asked,
                launched_at=launched if launched <= now else None,
                gone_at=gone if gone <= now else None,
            ).dollars(ahead)
            for asked, launched, gone in self._lives
            if asked <= now
        )

    @cached_property
    def _lives(self) -> list[tuple[float, float, float]]:
        columns = (self.asked, self.launched, self.gone)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _near(self, budget: float) -> float:
        """Return a time before which the bill doesn't pass the budget, and soon after it does."""
        begin, end = self._segments
        over = np.flatnonzero((begin > budget) | (end > budget))
        return float(self._times[over[0]]) if len(over) else math.inf

    @property
    def _ahead(self) -> float:
        return self.tick + self.drain

    @cached_property
    def _times(self) -> Floats:
        """Return when the bill bends or jumps, ascending; between these it is linear."""
        begins = np.concatenate([self.asked, self.launched])
        kinks = begins + self.offer.minimum_seconds - self._ahead
        every = np.concatenate([begins, self.gone, kinks])
        return np.unique(every[np.isfinite(every) & (every >= 0)])

    @cached_property
    def _segments(self) -> tuple[Floats, Floats]:
        """Return the bill that would be, were all given back, at both ends of each segment."""
        times = self._times
        following = np.append(times[1:], times[-1])
        return self._bill(times, times + self._ahead), self._bill(times, following + self._ahead)

    def _bill(self, known: Floats, at: Floats) -> Floats:
        """Return the bill `at` some time by what is `known` at another."""
        seen, until = known[:, None], at[:, None]
        begin = np.where(self.launched <= seen, self.launched, self.asked)
        end = np.where(self.gone <= seen, self.gone, until)
        never = np.isinf(self.launched) & (self.gone <= seen)
        seconds = np.maximum(np.maximum(0.0, end - begin), self.offer.minimum_seconds)
        billed = np.where((self.asked <= seen) & ~never, seconds, 0.0)
        total: Floats = billed.sum(axis=1) * self.offer.usd_per_second
        return total


def track_of(played: Played, offer: Offer, brakes: Brakes) -> Track:
    """Return the track of a run that rented this offer alone, billed by the second."""
    assert offer.granularity_seconds == 0
    asked = read(played.entries).instances.values()
    return Track(
        offer=offer,
        tick=brakes.tick,
        drain=brakes.drain,
        asked=np.array([each.requested_at for each in asked]),
        launched=np.array([_known(each.launched_at) for each in asked]),
        gone=np.array([_known(each.gone_at) for each in asked]),
        path=played.result.path,
    )


def _known(at: float | None) -> float:
    return math.inf if at is None else at
