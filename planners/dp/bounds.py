"""Lower bounds that no plan can beat: they prune the exact search, and give every plan its gap.

A `Staircase` is the least cost within a time, as corners (seconds ascending, dollars descending).
There are two kinds: `least`, for plans made of the options of a menu; and `fluid`, for any plan,
as if trials could be cut into GPU-seconds and hand-overs were free.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from cloudtune.model.placement import slots
from cloudtune.model.plans import Estimate, Rentable
from cloudtune.model.trial import GPU_ROUNDING
from cloudtune.planners.arrays import Floats, Numbers
from cloudtune.planners.base import PlanRequest

# Sums of staircases multiply corners. With fewer corners the bounds are looser, but still valid.
_CORNERS = 300
# Relative tolerance for sums of floats in another order.
SLACK = 1e-9


@dataclass(frozen=True)
class Staircase:
    """The least dollars within a time; the corners are undominated, the fastest first."""

    seconds: Floats
    dollars: Floats

    @classmethod
    def of(cls, seconds: Numbers, dollars: Numbers) -> "Staircase":
        """Return the staircase with none of the points below it."""
        time = np.asarray(seconds, float)
        cost = np.asarray(dollars, float)
        if len(time) <= 1:
            return cls(time, cost)
        order = np.argsort(time)
        time = time[order]
        cost = cost[order]
        corner = np.ones(len(cost), dtype=bool)
        corner[1:] = cost[1:] < np.minimum.accumulate(cost)[:-1]
        time = time[corner]
        cost = cost[corner]
        # Of points with the same time the last is the cheapest.
        last = np.ones(len(time), dtype=bool)
        last[:-1] = time[1:] > time[:-1]
        return cls(time[last], cost[last])

    def dollars_within(self, seconds: Numbers) -> Floats:
        """Return the least dollars within these seconds; inf if nothing is that fast."""
        index = np.searchsorted(self.seconds, np.asarray(seconds) * (1 + SLACK), side="right")
        return np.concatenate([[np.inf], self.dollars])[index]

    def seconds_within(self, dollars: Numbers) -> Floats:
        """Return the least seconds for these dollars; inf if nothing is that cheap."""
        falling = self.dollars[::-1]
        index = np.searchsorted(falling, np.asarray(dollars) * (1 + SLACK), side="right")
        return np.concatenate([[np.inf], self.seconds[::-1]])[index]

    def then(self, other: "Staircase") -> "Staircase":
        """Return the staircase of doing both, one after another."""
        if len(self.seconds) == 1 or len(other.seconds) == 1:
            return Staircase(self.seconds + other.seconds, self.dollars + other.dollars).thin()
        both = Staircase.of(
            np.add.outer(self.seconds, other.seconds).ravel(),
            np.add.outer(self.dollars, other.dollars).ravel(),
        )
        return both.thin()

    def thin(self, corners: int = _CORNERS) -> "Staircase":
        """Return a staircase with fewer corners that is nowhere above this one."""
        size = len(self.seconds)
        if size <= corners:
            return self
        cuts = np.linspace(0, size, corners + 1).astype(int)
        return Staircase(self.seconds[cuts[:-1]], self.dollars[cuts[1:] - 1])


NOTHING = Staircase(np.zeros(1), np.zeros(1))
IMPOSSIBLE = Staircase(np.zeros(0), np.zeros(0))


def lowest(stairs: Sequence[Staircase]) -> Staircase:
    """Return the pointwise minimum of some staircases."""
    if not stairs:
        return IMPOSSIBLE
    different = list({id(stair): stair for stair in stairs}.values())
    seconds = np.concatenate([stair.seconds for stair in different])
    return Staircase.of(seconds, np.concatenate([stair.dollars for stair in different])).thin()


def chain(stairs: Iterable[Staircase]) -> Staircase:
    """Return the staircase of doing the work of several staircases in turn."""
    return reduce(Staircase.then, stairs, NOTHING)


def fluid(request: PlanRequest) -> Staircase:
    """Return a bound that no plan for the request can beat, whatever it mixes and hands over.

    A stage takes at least one trial's training at some width, and costs at least the GPU time of
    all trials at that width, or at a cheaper one that is as fast. On top come the first boot, if
    nothing is rented yet, and the last release.
    """
    ways = [
        (rentable, width) for rentable in request.rentables for width in rentable.profile.widths
    ]
    epoch = np.array([rentable.epoch_seconds(width) for rentable, width in ways])
    share = np.array([_share(rentable, width) for rentable, width in ways])
    stairs = chain(
        Staircase.of(stage.epochs * epoch, stage.trials * stage.epochs * epoch * share)
        for stage in request.work
    )
    begin, end = _edges(request)
    seconds = stairs.seconds + begin[0] + end[0]
    steady = seconds * request.charges.usd_per_second
    return Staircase.of(seconds, stairs.dollars + begin[1] + end[1] + steady)


def minimum(stairs: Staircase, request: PlanRequest) -> float:
    """Return the minimum of the request's objective, within its limit on the other measure."""
    allowance = request.allowance
    if request.objective == "cost":
        seconds = math.inf if allowance.seconds is None else allowance.seconds
        return float(stairs.dollars_within(seconds))
    dollars = math.inf if allowance.dollars is None else allowance.dollars
    return float(stairs.seconds_within(dollars))


def gap_to(bound: float, request: PlanRequest, estimate: Estimate) -> float:
    """Return how much an estimate exceeds a bound, as a share of it; 0 if the bound is 0."""
    mine = estimate.dollars if request.objective == "cost" else estimate.seconds
    return max(0.0, mine / bound - 1.0) if 0.0 < bound < math.inf else 0.0


def _share(rentable: Rentable, width: float) -> float:
    """Return the dollars per second of one trial's part of its instances."""
    whole = max(1, math.ceil(width / rentable.gpus - GPU_ROUNDING))
    at_once = slots(width, rentable.gpus, whole)
    offer = rentable.offer
    held = offer.held_usd_per_second * whole / at_once if at_once else math.inf
    return held + offer.used_usd_per_second * width


def _edges(request: PlanRequest) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return lower bounds for the seconds and dollars of the first boot and the last release."""
    begin = (0.0, 0.0)
    profiles = [
        (rentable.profile, rentable.offer.held_usd_per_second) for rentable in request.rentables
    ]
    fresh = bool(request.work) and request.work[0].start_epoch == 0
    if not request.fleet and profiles:
        starts = [(p.start if fresh else p.resize).mean for p, _ in profiles]
        both = list(zip(profiles, starts, strict=True))
        begin = (
            min(p.launch.mean + p.boot.mean + start for (p, _), start in both),
            min((p.boot.mean + start) * price for (p, price), start in both)
            + request.charges.usd_per_launch,
        )
    release = min((p.release.mean for p, _ in profiles), default=0.0)
    cost = min((p.release.mean * price for p, price in profiles), default=0.0)
    return begin, (release, cost)
