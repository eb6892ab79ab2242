"""A group of trials on given nodes: when it ends at given widths, and a search for better widths.

Schedules are lists: a trial begins where and as soon as it fits, by the placement of real runs. A
real run can carry them out; nothing here proves that there is no shorter one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, TypeAlias

from cloudtune.model.placement import place, rooms
from cloudtune.strategies.allocators.fluid_rules import static_fluid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cloudtune.model.trial import Slice, Width

    Heights: TypeAlias = Sequence[Mapping[Width, float]]
    Widths: TypeAlias = tuple[Width, ...]

_TRIES = 1000
"""The most schedules that a search plays; where there are no more choices than this, all."""
_EQUAL = 1 + 1e-9


def makespan(
    widths: Sequence[Width], heights: Heights, nodes: Sequence[int], before: float = math.inf
) -> float:
    """Return when the last trial is done if each begins where and as soon as it fits.

    `heights` has the seconds of each trial's budget at each width, `nodes` the GPUs of each node;
    the largest are whole. In the best of three orders: the longest first, by their heights at one
    GPU (or the nearest width), by those they have now, and by GPU-seconds. inf where one fits
    nowhere, or none of it can be done `before` then.
    """
    now = [curve[width] for curve, width in zip(heights, widths, strict=True)]
    area = [seconds * width for seconds, width in zip(now, widths, strict=True)]
    if max(max(now, default=0.0), sum(area) / sum(nodes)) >= before:
        return math.inf
    ones = [at_one(curve) for curve in heights]
    orders = dict.fromkeys(tuple(_longest(order)) for order in (ones, now, area))
    return min((_played(widths, now, order, nodes) for order in orders), default=0.0)


def at_one(height: Mapping[Width, float]) -> float:
    """Return the seconds at one GPU, or at the nearest width that is known."""
    return height[min(height, key=lambda width: abs(width - 1))]


def _longest(seconds: Sequence[float]) -> list[int]:
    return sorted(range(len(seconds)), key=lambda trial: (-seconds[trial], trial))


def _played(
    widths: Sequence[Width], seconds: Sequence[float], order: Sequence[int], nodes: Sequence[int]
) -> float:
    free = rooms({f"n{node:03d}": gpus for node, gpus in enumerate(nodes)}, ())
    waiting = list(order)
    whole = max(nodes)
    running: list[tuple[float, int, tuple[Slice, ...]]] = []
    now = 0.0
    while waiting or running:
        for trial in tuple(waiting):
            placement = place(widths[trial], whole, free)
            if placement is not None:
                waiting.remove(trial)
                for piece in placement:
                    free[piece.instance].take(piece)
                heapq.heappush(running, (now + seconds[trial], trial, placement))
        if not running:
            return math.inf
        now, _, placement = heapq.heappop(running)
        for piece in placement:
            free[piece.instance].give(piece)
    return now


# ---- the search ----------------------------------------------------------------------------------


def shortest(
    starts: Iterable[Widths], heights: Heights, nodes: Sequence[int], bound: float
) -> tuple[Widths, float]:
    """Return the widths that end first, and when in seconds: never later than the `starts`.

    Few choices are all tried; of many, the neighbours of the best so far, which differ from it in
    one trial or two, as long as one is better. Stops at `bound`.
    """
    ends = {start: makespan(start, heights, nodes) for start in starts}
    best = min(sorted(ends), key=lambda start: ends[start])
    end = ends[best]
    left = _TRIES
    seen = set(ends)
    few = math.prod(len(curve) for curve in heights) <= _TRIES
    while end > bound * _EQUAL:
        candidates = itertools.product(*heights) if few else _neighbours(best, heights)
        for tried in itertools.islice(
            (candidate for candidate in candidates if candidate not in seen), left
        ):
            left -= 1
            seen.add(tried)
            took = makespan(tried, heights, nodes, end)
            if took * _EQUAL < end:
                best = tried
                end = took
                break
        else:
            break
    return best, end


def _neighbours(widths: Widths, heights: Heights) -> Iterator[Widths]:
    for count in (1, 2):
        for trials in itertools.combinations(range(len(widths)), count):
            for chosen in itertools.product(*(heights[trial] for trial in trials)):
                changed = list(widths)
                for trial, width in zip(trials, chosen, strict=True):
                    changed[trial] = width
                yield tuple(changed)


def simple(heights: Heights, nodes: Sequence[int]) -> Iterator[Widths]:
    """Yield the widths of heuristics: the same for all, each its fastest, and Fluid's two rules."""
    for width in sorted(set.intersection(*(set(curve) for curve in heights))):
        yield (width,) * len(heights)
    yield tuple(min(curve, key=lambda width: (curve[width], width)) for curve in heights)
    widths = sorted({width for curve in heights for width in curve})
    packed = max(1, round(1 / widths[0]))
    widest = max(1, math.floor(widths[-1]))
    ones = [at_one(curve) for curve in heights]
    for repaired in (True, False):
        shares = static_fluid(ones, sum(nodes), packed, widest, repaired=repaired)
        yield tuple(_offered(curve, share) for curve, share in zip(heights, shares, strict=True))


def _offered(height: Mapping[Width, float], share: Width) -> Width:
    return max((width for width in height if width <= share * _EQUAL), default=min(height))
