"""The front of cost against time: all of it, and the few of its points that say most."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from cloudtune.model.plans import Limits
from cloudtune.planners.dp.search import search_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.model.plans import Objective
    from cloudtune.planners.base import PlanRequest
    from cloudtune.planners.dp.search import Found, Search

_PAIRS = 1_000_000
"""Up to so many pairs of options in two stages, one after the other, all of the front is found."""
_ASKED = 16
"""Beyond, so many plans of it are asked for."""


def whole_front(request: PlanRequest) -> list[Found]:
    """Return every way that no other beats in both time and money, the fastest first.

    Limits are ignored. Where there are too many options for that, some of these ways: from the ends
    inwards, always between the two neighbours that leave most open.
    """
    search = search_of(request)
    if not search.possible:
        return []
    sizes = [len(options) for options in search.options]
    if all(one * other <= _PAIRS for one, other in pairwise(sizes)):
        return search.front()
    return _asked_for(search)


def _asked_for(search: Search) -> list[Found]:
    objectives: tuple[Objective, Objective] = ("time", "cost")
    ends = [search.best(Limits(), objective) for objective in objectives]
    points = [each for each in ends if each is not None]
    closed: set[tuple[float, float]] = set()
    for _ in range(_ASKED):
        gaps = [
            (_area(one, other), one, other)
            for one, other in pairwise(points)
            if (one.seconds, other.seconds) not in closed
        ]
        area, one, other = max(gaps, key=lambda gap: gap[0], default=(0.0, None, None))
        if one is None or other is None or area <= 0:
            break
        middle = Limits((one.seconds + other.seconds) / 2)
        found = search.best(middle, "cost", one)
        if found is None or found.choices in {one.choices, other.choices}:
            closed.add((one.seconds, other.seconds))
            continue
        points = sorted([*points, found], key=lambda each: each.seconds)
    return _falling(points)


def _area(one: Found, other: Found) -> float:
    return (other.seconds - one.seconds) * (one.dollars - other.dollars)


def _falling(points: Sequence[Found]) -> list[Found]:
    kept: list[Found] = []
    for each in points:
        if not kept or each.dollars < kept[-1].dollars:
            kept.append(each)
    return kept


def knees(points: Sequence[tuple[float, float]], most: int) -> list[int]:
    """Return which points of a falling front to show: both ends, and those that add most area.

    Points ascend in seconds and fall in dollars. The area is that of what is worse than any of the
    points chosen, as far as the worst of the whole front in both; it is what nobody has to pay or
    wait who knows of them.
    """
    chosen = sorted({0, len(points) - 1}) if points else []
    while len(chosen) < min(most, len(points)):
        gains = [
            (_gain(points, left, each, right), -each)
            for left, right in pairwise(chosen)
            for each in range(left + 1, right)
        ]
        gain, place = max(gains, default=(0.0, 0))
        if gain <= 0:
            break
        chosen = sorted([*chosen, -place])
    return chosen


def _gain(points: Sequence[tuple[float, float]], left: int, each: int, right: int) -> float:
    return (points[right][0] - points[each][0]) * (points[left][1] - points[each][1])
