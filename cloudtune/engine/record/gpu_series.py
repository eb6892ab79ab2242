"""The use of each GPU of a run over time: which trial had it, or which share of it, and for what.

The agent of an instance decides which physical GPU a trial gets, and no event reports it. Here GPUs
are numbered from 0 as if each trial had the lowest free ones, with shares of a GPU side by side. So
the number of used GPUs, the times and the trials are exact; the numbers within an instance are
ours.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cloudtune.engine.record.accounting import Accounting, Stretch, Use, uses
from cloudtune.engine.record.timeline import Timeline
from cloudtune.model.trial import Slice, TrialId

# Tolerance in seconds for times that are sums of the same durations.
_SAME = 1e-6
# Tolerance for three thirds of a GPU.
_THIRD = 1e-3


class GpuPlace(NamedTuple):
    """A GPU of an instance, or `share` of it from `low` on."""

    gpu: int
    low: float
    share: float


@dataclass
class GpuRows:
    """The GPUs of an instance and until when they are taken, for trials in order of time."""

    gpus: int
    whole: dict[int, float] = field(default_factory=dict)
    shares: list[tuple[GpuPlace, int, float]] = field(default_factory=list)

    def take(self, piece: Slice, begin: float, end: float) -> list[GpuPlace]:
        """Return the GPUs of a trial from `begin` to `end`: the lowest free ones."""
        if piece.gpus < 1:
            return [self._share(piece, begin, end)]
        taken = {place.gpu for place, _, until in self.shares if until > begin + _SAME}
        free = (gpu for gpu in range(self.gpus) if gpu not in taken and self._empty(gpu, begin))
        gpus = [gpu for gpu, _ in zip(free, range(round(piece.gpus)), strict=False)]
        self.whole.update(dict.fromkeys(gpus, end))
        return [GpuPlace(gpu, 0.0, 1.0) for gpu in gpus]

    def _empty(self, gpu: int, at: float) -> bool:
        return self.whole.get(gpu, 0.0) <= at + _SAME

    def _share(self, piece: Slice, begin: float, end: float) -> GpuPlace:
        """Return where a share of a GPU is: beside the others on the same one."""
        self.shares = [share for share in self.shares if share[2] > begin + _SAME]
        same = [place.gpu for place, gpu, _ in self.shares if gpu == piece.gpu and gpu >= 0]
        empty = (g for g in range(self.gpus) if self._empty(g, begin) and g not in same)
        for gpu in (*same, *empty):
            others = [(p.low, p.low + p.share) for p, _, _ in self.shares if p.gpu == gpu]
            low = 0.0
            while low + piece.gpus <= 1 + _THIRD:
                high = low + piece.gpus
                if all(high <= a + _THIRD or b <= low + _THIRD for a, b in others):
                    place = GpuPlace(gpu, low, piece.gpus)
                    self.shares.append((place, piece.gpu, end))
                    return place
                low += piece.gpus
        return GpuPlace(0, 0.0, piece.gpus)


@dataclass(frozen=True)
class GpuUse:
    """One use of a GPU (or of a `share` of it) by a trial, with begin and end in run seconds."""

    instance: str
    gpu: int
    begin: float
    end: float
    trial: TrialId
    share: float
    use: Use


def gpu_uses(timeline: Timeline, accounting: Accounting) -> list[GpuUse]:
    """Return the series of every GPU, by instance, GPU and time.

    Consecutive stretches of one kind are one use. A GPU without a use at some time is idle, or its
    instance boots or is being returned.
    """
    ends = {account.name: account.end for account in accounting.instances}
    order = {name: number for number, name in enumerate(ends)}
    rows = {account.name: GpuRows(account.offer.gpus) for account in accounting.instances}
    series = []
    for session, end, did in sorted(uses(timeline), key=lambda use: use[0].begin):
        merged = list(_merge(did))
        trial = session.start.trial
        for piece in session.start.placement:
            name = piece.instance
            for place in rows[name].take(piece, session.begin, end):
                series += [
                    GpuUse(name, place.gpu, stretch.begin, until, trial, place.share, stretch.use)
                    for stretch in merged
                    if (until := min(stretch.end, ends[name])) > stretch.begin
                ]
    return sorted(series, key=lambda use: (order[use.instance], use.gpu, use.begin))


def _merge(did: list[Stretch]) -> Iterator[Stretch]:
    """Yield the stretches, with adjacent ones of the same use merged."""
    last: Stretch | None = None
    for stretch in did:
        if last is not None and last.use == stretch.use and stretch.begin - last.end < _SAME:
            last = last._replace(end=stretch.end)
        else:
            if last is not None:
                yield last
            last = stretch
    if last is not None:
        yield last


def gpu_shares(timeline: Timeline, accounting: Accounting) -> dict[str, list[float]]:
    """Return, for each instance, the share of its billed time in which each GPU trained."""
    trained: dict[tuple[str, int], list[float]] = {}
    for use in gpu_uses(timeline, accounting):
        if use.use == "training":
            seconds = (use.end - use.begin) * use.share
            trained.setdefault((use.instance, use.gpu), []).append(seconds)
    shares = {}
    for account in accounting.instances:
        lived = max(_SAME, account.seconds)
        parts = [trained.get((account.name, gpu), ()) for gpu in range(account.offer.gpus)]
        shares[account.name] = [math.fsum(seconds) / lived for seconds in parts]
    return shares
