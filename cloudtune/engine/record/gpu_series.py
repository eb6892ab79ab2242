"""What each GPU of a run did over time: which trial had it, or which share of it, and for what.

Which physical GPU of an instance a trial gets its agent decides, and no event tells. GPUs are
numbered here from 0 as if each trial had the lowest that are free, and shares of a GPU lie beside
those of their own GPU. So how many were used, for how long and by whom is exact; the numbers within
an instance are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.engine.record.accounting import uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.engine.record.accounting import Accounting, Stretch, Use
    from cloudtune.engine.record.timeline import Timeline
    from cloudtune.model.trial import Slice, TrialId

_SAME = 1e-6
_THIRD = 1e-3
"""What three thirds may be more than one."""


class Place(NamedTuple):
    """A GPU of an instance, or the part of it from `low` on; `share` of it are taken."""

    gpu: int
    low: float
    share: float


@dataclass
class GpuRows:
    """Which GPUs of an instance are taken until when, as trials come in the order of time."""

    gpus: int
    whole: dict[int, float] = field(default_factory=dict)
    shares: list[tuple[Place, int, float]] = field(default_factory=list)

    def take(self, piece: Slice, begin: float, end: float) -> list[Place]:
        """Return the GPUs that a trial has from `begin` to `end`: the lowest that are free."""
        if piece.gpus < 1:
            return [self._share(piece, begin, end)]
        taken = {place.gpu for place, _, until in self.shares if until > begin + _SAME}
        free = (gpu for gpu in range(self.gpus) if gpu not in taken and self._empty(gpu, begin))
        found = [gpu for gpu, _ in zip(free, range(round(piece.gpus)), strict=False)]
        self.whole.update(dict.fromkeys(found, end))
        return [Place(gpu, 0.0, 1.0) for gpu in found]

    def _empty(self, gpu: int, at: float) -> bool:
        return self.whole.get(gpu, 0.0) <= at + _SAME

    def _share(self, piece: Slice, begin: float, end: float) -> Place:
        """Return where a share of a GPU is: beside the others on the same one."""
        self.shares = [each for each in self.shares if each[2] > begin + _SAME]
        same = [place.gpu for place, gpu, _ in self.shares if gpu == piece.gpu and gpu >= 0]
        empty = (g for g in range(self.gpus) if self._empty(g, begin) and g not in same)
        for gpu in (*same, *empty):
            others = [(p.low, p.low + p.share) for p, _, _ in self.shares if p.gpu == gpu]
            low = 0.0
            while low + piece.gpus <= 1 + _THIRD:
                high = low + piece.gpus
                if all(high <= a + _THIRD or b <= low + _THIRD for a, b in others):
                    place = Place(gpu, low, piece.gpus)
                    self.shares.append((place, piece.gpu, end))
                    return place
                low += piece.gpus
        return Place(0, 0.0, piece.gpus)


@dataclass(frozen=True)
class GpuUse:
    """What a trial did on a GPU (or on a `share` of it) from when until when (run seconds)."""

    instance: str
    gpu: int
    begin: float
    end: float
    trial: TrialId
    share: float
    use: Use


def gpu_uses(timeline: Timeline, accounting: Accounting) -> list[GpuUse]:
    """Return the series of every GPU, by instance, GPU and time.

    What a trial does without a pause is one use. A GPU that isn't named at some time is idle, or
    its instance boots or is given back.
    """
    ends = {each.instance or each.intent: each.end for each in accounting.instances}
    order = {name: number for number, name in enumerate(ends)}
    rows = {each.instance or each.intent: GpuRows(each.offer.gpus) for each in accounting.instances}
    found = []
    for session, end, did in sorted(uses(timeline), key=lambda use: use[0].begin):
        merged, trial = list(_merged(did)), session.start.trial
        for piece in session.start.placement:
            name = piece.instance
            for place in rows[name].take(piece, session.begin, end):
                found += [
                    GpuUse(
                        name,
                        place.gpu,
                        each.begin,
                        until,
                        trial,
                        place.share,
                        each.use,
                    )
                    for each in merged
                    if (until := min(each.end, ends[name])) > each.begin
                ]
    return sorted(found, key=lambda each: (order[each.instance], each.gpu, each.begin))


def _merged(did: list[Stretch]) -> Iterator[Stretch]:
    """Give what was done in stretches, with neighbours of one use as one."""
    last: Stretch | None = None
    for each in did:
        if last is not None and last.use == each.use and each.begin - last.end < _SAME:
            last = last._replace(end=each.end)
        else:
            if last is not None:
                yield last
            last = each
    if last is not None:
        yield last


def gpu_shares(timeline: Timeline, accounting: Accounting) -> dict[str, list[float]]:
    """Return, for each instance, which part of its billed time each of its GPUs trained."""
    trained: dict[tuple[str, int], list[float]] = {}
    for each in gpu_uses(timeline, accounting):
        if each.use == "training":
            seconds = (each.end - each.begin) * each.share
            trained.setdefault((each.instance, each.gpu), []).append(seconds)
    return {
        name: [
            math.fsum(trained.get((name, gpu), ())) / max(_SAME, each.end - each.begin)
            for gpu in range(each.offer.gpus)
        ]
        for each in accounting.instances
        for name in [each.instance or each.intent]
    }
