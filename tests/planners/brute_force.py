"""All plans there are, one by one, priced by keeping the books of every single instance.

Independent of planners/front.py on purpose: no labels, no ages, no dominance.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudtune.plan import PlanRequest, Stage


class Priced(NamedTuple):
    """One way to do the job."""

    seconds: float
    dollars: float
    choices: tuple[tuple[int, float], ...]


def every_plan(request: PlanRequest) -> Iterator[Priced]:
    """Yield each sequence of instances and widths that can run the job, with its price."""
    sizes = range(1, request.max_instances + 1)
    choices = list(itertools.product(sizes, request.profile.widths))
    for sequence in itertools.product(choices, repeat=len(request.work)):
        if all(at_once(request, *choice) for choice in sequence):
            yield priced(request, sequence)


def at_once(request: PlanRequest, instances: int, width: float) -> int:
    """Return how many trials run at the same time."""
    gpus = request.offer.gpus
    if width > gpus:
        return int(instances / math.ceil(width / gpus))
    return instances * int(gpus / width + 1e-9)


def priced(request: PlanRequest, sequence: Sequence[tuple[int, float]]) -> Priced:
    """Return what a plan takes, by the launch time and the end of each of its instances."""
    profile, rate = request.profile, request.offer.usd_per_hour / 3600
    now = 0.0
    launched: list[float] = []
    lives: list[float] = []
    before = (0.0, 0)
    for stage, (instances, width) in zip(request.work, sequence, strict=True):
        waves = math.ceil(stage.trials / at_once(request, instances, width))
        homes = stage.trials * math.ceil(width / request.offer.gpus)
        nobody_moves = len(launched) == instances or len(launched) > instances >= homes
        untouched = before == (width, 1) and waves == 1 and nobody_moves
        launched.sort()
        while len(launched) > instances:
            lives.append(now + profile.release.mean - launched.pop(0))
        grows = len(launched) < instances
        launched += [now + profile.launch.mean] * (instances - len(launched))
        now += training(request, stage, width, waves, untouched=untouched)
        if grows:
            now += profile.launch.mean + profile.boot.mean
        before = (width, waves)
    now += profile.release.mean
    lives += [now - at for at in launched]
    dollars = sum(max(life, request.offer.minimum_seconds) * rate for life in lives)
    return Priced(now, dollars, tuple(sequence))


def training(
    request: PlanRequest, stage: Stage, width: float, waves: int, *, untouched: bool
) -> float:
    """Return the seconds of a stage once its instances are there."""
    profile = request.profile
    begin = profile.start.mean if stage.start_epoch == 0 else profile.resize.mean
    epochs = (stage.end_epoch - stage.start_epoch) * profile.epoch[width].mean
    return waves * ((0.0 if untouched else begin) + epochs)
