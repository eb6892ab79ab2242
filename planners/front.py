"""The exact time-cost front of a job on one offer, by Pareto dynamic programming over stages.

The state after a stage is the fleet and the width that it leaves behind; a label is what getting
there took: seconds, dollars and the ages of the live instances. A label is dropped only if another
one of the same state is nowhere worse: not later, not dearer, and no instance younger (a younger
one may still owe part of its minimum charge). What is left at the end is the whole front.

The model of a stage (`_Step`) is the one place that says what a stage takes; the simulator with
no spread gives exactly these seconds and dollars (tests/parity). The problem is that of
RubberBand (EuroSys 2021); the method is ours: docs/decisions/0004-exact-planner.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cloudtune.placement import slots
from cloudtune.plan import Estimate, Plan, StagePlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cloudtune.plan import PlanRequest, Stage
    from cloudtune.trial import Width

Choice: TypeAlias = tuple[int, float]
"""Instances and width of one stage."""


@dataclass(frozen=True)
class Label:
    """One way through the stages so far. `ages` ascend, and stop at the minimum charge."""

    seconds: float
    dollars: float
    ages: tuple[float, ...]
    width: Width | None
    one_wave: bool
    stages: tuple[StagePlan, ...] = ()

    @property
    def state(self) -> tuple[int, Width | None, bool]:
        """What the next stage's cost depends on, besides the ages."""
        return (len(self.ages), self.width, self.one_wave)

    def dominates(self, other: Label) -> bool:
        """Whether nothing that `other` leads to can be better than what this one leads to."""
        return (
            self.seconds <= other.seconds
            and self.dollars <= other.dollars
            and all(mine >= theirs for mine, theirs in zip(self.ages, other.ages, strict=True))
        )


def front(request: PlanRequest, allowed: Callable[[Choice], bool] = lambda _: True) -> list[Label]:
    """Return every undominated way to do the whole job, the fastest first; limits are ignored.

    `allowed` restricts the choices of each stage. Empty where no choice can run some stage.
    """
    fleet = request.fleet
    start = Label(0.0, 0.0, _capped(request, fleet.ages), fleet.width, one_wave=True)
    labels = [start]
    for number, stage in enumerate(request.work):
        step = _Step(request, stage, last=number == len(request.work) - 1)
        choices = [choice for choice in step.choices() if allowed(choice)]
        labels = _undominated(step.take(label, *choice) for label in labels for choice in choices)
    return sorted(labels, key=lambda label: (label.seconds, label.dollars))


def to_plan(planner: str, request: PlanRequest, label: Label, *, gap: float | None) -> Plan:
    """Return the label as a plan."""
    estimate = Estimate(label.seconds, label.dollars)
    return Plan(planner, request.offer, label.stages, estimate, gap)


@dataclass(frozen=True)
class _Step:
    """What one stage takes, by the choice made for it."""

    request: PlanRequest
    stage: Stage
    last: bool

    def choices(self) -> Iterable[Choice]:
        """Return all fleets and widths that can run the stage at all."""
        for instances in range(1, self.request.max_instances + 1):
            for width in self.request.profile.widths:
                if slots(width, self.request.offer.gpus, instances) > 0:
                    yield instances, width

    def take(self, label: Label, instances: int, width: Width) -> Label:
        """Return the label that running the stage so leads to."""
        request, profile = self.request, self.request.profile
        waves = math.ceil(self.stage.trials / slots(width, request.offer.gpus, instances))
        overhead = self._overhead(label, instances, width, waves)
        seconds = overhead + waves * self.stage.epochs * profile.epoch_seconds(width)
        kept, dollars = self._release(label.ages, len(label.ages) - instances)
        fresh = instances - len(kept)
        ages = [age + seconds for age in kept] + [seconds - profile.launch.mean] * fresh
        dollars += self._rent(len(kept) * seconds + fresh * (seconds - profile.launch.mean))
        if self.last:
            dollars += self._release(tuple(sorted(ages)), instances)[1]
        stage = StagePlan(
            self.stage, instances, width, waves, label.seconds, seconds, overhead, dollars
        )
        return Label(
            label.seconds + seconds + (profile.release.mean if self.last else 0.0),
            label.dollars + dollars,
            () if self.last else _capped(request, ages),
            None if self.last else width,
            self.last or waves == 1,
            (*label.stages, stage),
        )

    def _overhead(self, label: Label, instances: int, width: Width, waves: int) -> float:
        profile = self.request.profile
        begin = profile.start.mean if self.stage.start_epoch == 0 else profile.resize.mean
        if instances > len(label.ages):
            return profile.launch.mean + profile.boot.mean + waves * begin
        if waves == 1 and self._all_stay(label, instances, width):
            return 0.0
        return waves * begin

    def _all_stay(self, label: Label, instances: int, width: Width) -> bool:
        """Whether every survivor trains on where it is, whichever trials survive.

        The instances with most survivors are kept, so that is certain if all are kept, or if there
        are enough of them for each survivor to sit on instances of its own.
        """
        if not label.one_wave or width != label.width:
            return False
        spread = self.stage.trials * math.ceil(width / self.request.offer.gpus)
        return instances == len(label.ages) or instances >= spread

    def _release(self, ages: tuple[float, ...], count: int) -> tuple[tuple[float, ...], float]:
        """Return who stays when the oldest `count` go, and what their going costs."""
        if count <= 0:
            return ages, 0.0
        staying, going = ages[: len(ages) - count], ages[len(ages) - count :]
        minimum, release = self.request.offer.minimum_seconds, self.request.profile.release.mean
        return staying, self._rent(sum(max(release, minimum - age) for age in going))

    def _rent(self, seconds: float) -> float:
        return seconds * self.request.offer.usd_per_hour / 3600.0


def _capped(request: PlanRequest, ages: Iterable[float]) -> tuple[float, ...]:
    """Return ages ascending; past the minimum charge, age makes no difference to the bill."""
    return tuple(sorted(min(age, request.offer.minimum_seconds) for age in ages))


def _undominated(labels: Iterable[Label]) -> list[Label]:
    by_state: dict[tuple[int, Width | None, bool], list[Label]] = {}
    for label in sorted(labels, key=lambda it: (it.seconds, it.dollars)):
        kept = by_state.setdefault(label.state, [])
        if not any(other.dominates(label) for other in kept):
            kept.append(label)
    return [label for kept in by_state.values() for label in kept]
