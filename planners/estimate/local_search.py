"""Plans that differ from another in one thing, and all plans of a small job."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from cloudtune.model.placement import slots
from cloudtune.model.plans import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cloudtune.model.plans import Rentable, Stage
    from cloudtune.model.trial import Width
    from cloudtune.planners.base import PlanRequest

Way: TypeAlias = "tuple[Group, ...]"
"""The groups of one stage."""
Choices: TypeAlias = "tuple[Way, ...]"
Change: TypeAlias = "Callable[[Stage, Way], Way | None]"
"""Gives another way to do a stage; None where there is none of that kind."""


def every_choice(request: PlanRequest, most: int) -> list[Choices] | None:
    """Return all ways through the stages with one offer each; None if they are more than that."""
    ways = [tuple(_ways(request, stage)) for stage in request.work]
    if math.prod(map(len, ways)) > most:
        return None
    return list(itertools.product(*ways))


def _ways(request: PlanRequest, stage: Stage) -> Iterator[Way]:
    for rentable in request.rentables:
        sizes = range(1, min(rentable.most, request.max_instances) + 1)
        for width, count in itertools.product(rentable.profile.widths, sizes):
            way = _alone(request, stage, rentable, count, width)
            if way is not None:
                yield way


def neighbours(request: PlanRequest, choices: Choices, *, fixed: bool = False) -> list[Choices]:
    """Return what differs by one change in one stage, in the first, the last or all stages.

    By more or fewer instances, by other widths, or by another offer; or by an instance more in one
    stage and one fewer in another. With `fixed` the fleet is the same in all stages.
    """
    distinct: dict[Choices, None] = {}
    for (begin, end), change in itertools.product(_spans(len(choices)), _changes(request)):
        whole = (begin, end) == (0, len(choices))
        changed = tuple(
            (change(stage, way) or way) if begin <= number < end else way
            for number, (stage, way) in enumerate(zip(request.work, choices, strict=True))
        )
        if changed != choices and (whole or not fixed or _same_fleet(changed)):
            distinct[changed] = None
    for more, fewer in itertools.permutations(range(0 if fixed else len(choices)), 2):
        distinct.update(dict.fromkeys(_shifted(request, choices, more, fewer)))
    return list(distinct)


def _shifted(request: PlanRequest, choices: Choices, more: int, fewer: int) -> Iterator[Choices]:
    """Yield the choices with an instance more in one stage, and one fewer in another."""
    shifted = list(choices)
    for place, step in ((more, 1), (fewer, -1)):
        way = _resized(request, step, request.work[place], choices[place])
        if way is None:
            return
        shifted[place] = way
    yield tuple(shifted)


def _spans(stages: int) -> list[tuple[int, int]]:
    spans = [
        *((0, stages - cut) for cut in range(stages)),
        *((cut, stages) for cut in range(1, stages)),
        *((number, number + 1) for number in range(stages)),
    ]
    return list(dict.fromkeys(spans))


def _same_fleet(choices: Choices) -> bool:
    fleets = {tuple((group.offer, group.instances) for group in way) for way in choices}
    return len(fleets) == 1


def _changes(request: PlanRequest) -> Iterator[Change]:
    for step in (1, -1):
        yield partial(_resized, request, step)
        yield partial(_other_width, request, step, scaled=False)
        yield partial(_other_width, request, step, scaled=True)
    if len(request.rentables) > 1:
        yield from (partial(_elsewhere, request, rentable) for rentable in request.rentables)


def _resized(request: PlanRequest, step: int, stage: Stage, way: Way) -> Way | None:
    """Return a way with more or fewer instances: of two groups, of the smaller one."""
    group = min(way, key=lambda part: part.instances)
    if len(way) == 1:
        rentable = request.rentable(group.offer)
        return _alone(request, stage, rentable, group.instances + step, group.width)
    room = slots(group.width, group.offer.gpus, group.instances + step)
    if group.instances + step < 1 or room < 1:
        return None
    waves = math.ceil(group.trials / room)
    other = Group(group.offer, group.instances + step, group.width, group.trials, waves)
    resized = tuple(other if part is group else part for part in way)
    return resized if _admitted(request, resized) else None


def _other_width(
    request: PlanRequest, step: int, stage: Stage, way: Way, *, scaled: bool
) -> Way | None:
    """Return a way with the next wider or narrower width; `scaled`: with as much for each trial."""
    if len(way) > 1:
        return None
    (group,) = way
    rentable = request.rentable(group.offer)
    widths = rentable.profile.widths
    place = widths.index(group.width) + step if group.width in widths else -1
    if not 0 <= place < len(widths):
        return None
    ratio = widths[place] / group.width if scaled else 1.0
    count = max(1, math.ceil(group.instances * ratio - 1e-9))
    return _alone(request, stage, rentable, count, widths[place])


def _elsewhere(request: PlanRequest, to: Rentable, stage: Stage, way: Way) -> Way | None:
    """Return a way on another offer, with about as many GPUs."""
    gpus = sum(group.instances * group.offer.gpus for group in way)
    width = max(group.width for group in way)
    if any(group.offer == to.offer for group in way) and len(way) == 1:
        return None
    widths = [narrower for narrower in to.profile.widths if narrower <= width] or list(
        to.profile.widths
    )
    count = max(1, min(to.most, request.max_instances, math.ceil(gpus / max(1, to.gpus))))
    return _alone(request, stage, to, count, widths[-1])


def _alone(
    request: PlanRequest, stage: Stage, rentable: Rentable, count: int, width: Width
) -> Way | None:
    room = slots(width, rentable.gpus, count) if 1 <= count <= rentable.most else 0
    if room < 1:
        return None
    way = (Group(rentable.offer, count, width, stage.trials, math.ceil(stage.trials / room)),)
    return way if _admitted(request, way) else None


def _admitted(request: PlanRequest, way: Sequence[Group]) -> bool:
    return request.admits({group.offer: group.instances for group in way})
