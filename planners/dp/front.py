"""The front of cost against time: the whole front, and its most telling points."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from cloudtune.model.plans import Allowance
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.dp.search import Search, make_search
from cloudtune.planners.dp.ways import Solution

T = TypeVar("T")

# The most pairs of options of two consecutive stages for which the whole front is searched.
_PAIRS = 1_000_000
# The number of plans on the front to search for beyond that.
_ASKED = 16


def whole_front(request: PlanRequest) -> list[Solution]:
    """Return every way that no other beats in both time and money, fastest first.

    Limits are ignored. With too many options, only some of these ways: from the ends inwards,
    always between the two neighbours with the widest gap.
    """
    search = make_search(request)
    if not search.possible:
        return []
    sizes = search.sizes
    if all(before * after <= _PAIRS for before, after in pairwise(sizes)):
        return search.front()
    return _front_points(search)


def _front_points(search: Search) -> list[Solution]:
    points = [end for end in search.ends() if end is not None]
    closed: set[tuple[float, float]] = set()
    for _ in range(_ASKED):
        gaps = [
            (_area(left, right), left, right)
            for left, right in pairwise(points)
            if (left.seconds, right.seconds) not in closed
        ]
        area, left, right = max(gaps, key=lambda gap: gap[0], default=(0.0, None, None))
        if left is None or right is None or area <= 0:
            break
        middle = Allowance((left.seconds + right.seconds) / 2)
        solution = search.best(middle, "cost", left)
        if solution is None or solution.choices in {left.choices, right.choices}:
            closed.add((left.seconds, right.seconds))
            continue
        points = sorted([*points, solution], key=lambda point: point.seconds)
    return falling(points, lambda point: point.dollars)


def _area(left: Solution, right: Solution) -> float:
    return (right.seconds - left.seconds) * (left.dollars - right.dollars)


def falling(points: Sequence[T], dollars: Callable[[T], float]) -> list[T]:
    """Return the points that are cheaper than all faster ones; they ascend in seconds."""
    kept: list[T] = []
    for point in points:
        if not kept or dollars(point) < dollars(kept[-1]):
            kept.append(point)
    return kept


def knees(points: Sequence[tuple[float, float]], most: int) -> list[int]:
    """Return which points of a falling front to show: both ends, and those that add most area.

    Points ascend in seconds and fall in dollars. The area is the region dominated by the chosen
    points, up to the worst of the front in both measures.
    """
    chosen = sorted({0, len(points) - 1}) if points else []
    while len(chosen) < min(most, len(points)):
        gains = [
            (_gain(points, left, middle, right), -middle)
            for left, right in pairwise(chosen)
            for middle in range(left + 1, right)
        ]
        gain, place = max(gains, default=(0.0, 0))
        if gain <= 0:
            break
        chosen = sorted([*chosen, -place])
    return chosen


def _gain(points: Sequence[tuple[float, float]], left: int, middle: int, right: int) -> float:
    return (points[right][0] - points[middle][0]) * (points[left][1] - points[middle][1])
