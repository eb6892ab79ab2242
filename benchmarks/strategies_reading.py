"""One long run, read at limits that its strategy doesn't know of.

A strategy that looks at neither time nor money does the same under any limits until these end it.
So it is played once, to the widest limits, and each cell is read off at the moment when
the policy would have braked: the books' bill (`FleetBook.dollars`) is made again from the
ledger. A run that couldn't have paid for its next request is another run from there, and is played.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.engine.record.timeline import read
from cloudtune.model.fleet import Rented

if TYPE_CHECKING:
    from benchmarks.compare.audit import Point
    from benchmarks.compare.case import Played
    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Limits
    from cloudtune.policy.base import Brakes


@dataclass(frozen=True)
class Reading:
    """What a run would have come to, had it been ended then."""

    at: float
    dollars: float
    point: Point | None


@dataclass(frozen=True)
class Track:
    """A run's requests and bests; `tick` and `drain` are its brakes'.

    `lives` has of each request when it was made, when the instance launched, and when it was gone;
    inf where it never was. `last` is when any of this last changed what was billed.
    """

    offer: Offer
    tick: float
    drain: float
    lives: tuple[tuple[float, float, float], ...]
    last: float
    path: tuple[Point, ...]

    def read(self, limits: Limits) -> Reading | None:
        """Return what it would have come to under these limits.

        None where it would have asked for what these limits don't pay for.
        """
        at = self._stop(limits)
        if at is None:
            return None
        bests = [point for point in self.path if point.at <= at]
        return Reading(at, self._spent(min(at, self.last)), bests[-1] if bests else None)

    def _stop(self, limits: Limits) -> float | None:
        """Return when the policy would have braked: it looks at times that it sets itself."""
        budget = math.inf if limits.budget is None else limits.budget
        requests = sorted({requested for requested, _, _ in self.lives})
        at = 0.0
        asked = True
        while True:
            if asked and self._spent(at) > budget:
                return None
            brake = self._next_look(at, limits)
            following = next((time for time in requests if time > at), math.inf)
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
        alive = sum(asked <= now < gone for asked, _, gone in self.lives)
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
            for asked, launched, gone in self.lives
            if asked <= now
        )


def track_of(played: Played, offer: Offer, brakes: Brakes) -> Track:
    """Return the track of a run that rented this offer alone, billed by the second."""
    assert offer.granularity_seconds == 0
    lives = tuple(
        (instance.requested_at, _time(instance.launched_at), _time(instance.gone_at))
        for instance in read(played.entries).instances.values()
    )
    begins = [begin for requested, launched, _ in lives for begin in (requested, launched)]
    # The bill bends where an instance has run for the minimum that is paid for.
    bends = [begin + offer.minimum_seconds - brakes.tick - brakes.drain for begin in begins]
    changes = (*begins, *(gone for _, _, gone in lives), *bends)
    return Track(
        offer=offer,
        tick=brakes.tick,
        drain=brakes.drain,
        lives=lives,
        last=max((at for at in changes if math.isfinite(at)), default=0.0),
        path=played.result.path,
    )


def _time(at: float | None) -> float:
    return math.inf if at is None else at
