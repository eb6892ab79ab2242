"""The least that a run could have paid, knowing the spot pools beforehand: a lower bound.

The relaxation. The work of the run is what its trials trained: each epoch of each trial once, as a
number of epochs of average length. A buyer who knows the pools does that work within the same time,
with at most as many instances at once, on any offers. All else is given:

- training alone takes time: no boots, starts, resizes, lost epochs or returns, no minimum charges;
- on each instance the work goes as fast as it does at the offer's best width, with no GPU idle;
- work can be cut anywhere: trials and rungs need not wait for each other;
- instances can be had in parts.

What is left is a linear program: how many instances of each offer at each time, at least cost. With
a price L on work it falls apart into the single times, and for every L the sum

    L * work + integral of min over x of sum((price - L * speed) * x)

is at most the least cost (weak duality), and equal to it for the best L. So the bound holds even
where that L is only known to a few digits. Every schedule that the run could have carried out is a
solution of the program, the run's own as well: the bound never exceeds what it paid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.compare.pools import Priced
from cloudtune.engine.spot_pools import UNLIMITED
from cloudtune.model.catalog import pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.compare.pools import SpotTrace
    from cloudtune.engine.record.timeline import Timeline
    from cloudtune.model.catalog import PoolName
    from cloudtune.model.plans import Rentable

_HALVINGS = 100


@dataclass(frozen=True)
class Source:
    """Instances that can be had over time, and the epochs that one of them trains in a second."""

    speed: float
    pieces: tuple[Priced, ...]


@dataclass(frozen=True)
class _Moment:
    """A time in which nothing changes; of each source instances, dollars a second and speed."""

    seconds: float
    ways: tuple[tuple[int, float, float], ...]

    def best(self, worth: float, most: int) -> tuple[float, float]:
        """Return what is paid beyond what the work is worth, at its least, and the work done."""
        paid = done = 0.0
        left = most
        for gain, instances, dollars, speed in sorted(
            (dollars - worth * speed, instances, dollars, speed)
            for instances, dollars, speed in self.ways
        ):
            if gain >= 0 or left <= 0:
                break
            count = min(left, instances)
            left -= count
            paid += count * (dollars - worth * speed)
            done += count * speed
        return paid * self.seconds, done * self.seconds


def least_dollars(work: float, sources: Sequence[Source], most: int) -> float:
    """Return the least that `work` epochs cost, with `most` instances at once; inf: too many.

    A lower bound on every schedule over the sources' pieces, which cover the same time.
    """
    moments = _moments(sources)

    def dual(worth: float) -> tuple[float, float]:
        """Return the bound at a price of work, and how much work that price buys."""
        best = [moment.best(worth, most) for moment in moments]
        return worth * work + math.fsum(p for p, _ in best), math.fsum(d for _, d in best)

    low, high = 0.0, max((w[1] / w[2] for m in moments for w in m.ways if w[2] > 0), default=0.0)
    if work <= 0:
        return 0.0
    high = high or 1.0
    while dual(high)[1] < work:
        low, high = high, 2 * high
        if not math.isfinite(high) or high > 1e12:
            return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if dual(middle)[1] >= work else (middle, high)
    return max(0.0, dual(low)[0], dual(high)[0])


def _moments(sources: Sequence[Source]) -> list[_Moment]:
    times = sorted({at for source in sources for p in source.pieces for at in (p.begin, p.end)})
    moments = []
    places = [0] * len(sources)
    for begin, end in pairwise(times):
        ways = []
        for number, source in enumerate(sources):
            while source.pieces[places[number]].end <= begin:
                places[number] += 1
            piece = source.pieces[places[number]]
            ways.append((piece.instances, (piece.usd_per_hour or 0.0) / 3600.0, source.speed))
        moments.append(_Moment(end - begin, tuple(ways)))
    return moments


# ---- of a run ------------------------------------------------------------------------------------


def work_of(timeline: Timeline, rentables: Sequence[Rentable]) -> float:
    """Return the work of a run: each epoch of each trial once, in epochs of average length.

    An epoch that took longer than the mean of its place and width is that much more work.
    """
    profiles = {rentable.offer.instance_type.name: rentable.profile for rentable in rentables}
    kinds = {it.instance: it.launch.instance_type for it in timeline.instances.values()}
    amounts: dict[tuple[str, int], float] = {}
    for epoch in timeline.epochs:
        profile = profiles[kinds[epoch.session.start.placement[0].instance]]
        mean = profile.epoch[epoch.width].mean
        amounts[epoch.trial, epoch.number] = (epoch.report.seconds or mean) / mean
    return math.fsum(amounts.values())


def fastest(rentable: Rentable) -> float:
    """Return the epochs that an instance trains in a second at the offer's best width."""
    epoch = rentable.profile.epoch
    return max(rentable.gpus / (width * seconds.mean) for width, seconds in epoch.items())


def bound(
    work: float,
    rentables: Sequence[Rentable],
    pools: Mapping[PoolName, SpotTrace],
    *,
    most: int,
    until: float,
) -> float:
    """Return the least that this much work costs by a time, for a buyer who knows the pools.

    On the rentables as they really are; an offer without a pool can be had at all times.
    """
    sources = [_source(it, pools.get(pool(it.offer)), until) for it in rentables]
    return least_dollars(work, sources, most)


def _source(rentable: Rentable, trace: SpotTrace | None, until: float) -> Source:
    price = rentable.offer.usd_per_hour
    added = rentable.offer.added_usd_per_hour
    if trace is None:
        return Source(fastest(rentable), (Priced(0.0, until, UNLIMITED, price + added),))
    pieces = (
        piece._replace(usd_per_hour=added + (piece.usd_per_hour or price))
        for piece in trace.priced(0.0, until)
    )
    return Source(fastest(rentable), tuple(pieces))
