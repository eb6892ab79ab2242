"""A plan: which instances, when, how many trials on them, how wide, at what price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cloudtune.catalog import Offer
    from cloudtune.scaling import ScalingProfile
    from cloudtune.trial import Width


@dataclass(frozen=True)
class Stage:
    """The work between two rungs: `trials` trials train from `start_epoch` to `end_epoch`."""

    trials: int
    start_epoch: int
    end_epoch: int

    @property
    def epochs(self) -> int:
        """Epochs that each trial of the stage trains."""
        return self.end_epoch - self.start_epoch


@dataclass(frozen=True)
class Limits:
    """Seconds and dollars that a run may take from now; None where there is no limit."""

    deadline: float | None = None
    budget: float | None = None

    def admit(self, estimate: Estimate) -> bool:
        """Whether such a plan stays within both limits."""
        in_time = self.deadline is None or estimate.seconds <= self.deadline
        in_money = self.budget is None or estimate.dollars <= self.budget
        return in_time and in_money


@dataclass(frozen=True)
class Estimate:
    """Expected seconds from now and dollars."""

    seconds: float
    dollars: float


@dataclass(frozen=True)
class StagePlan:
    """How one stage is to run.

    `begin` and `seconds` are seconds from the start of the plan; `overhead` of the seconds are
    spent before training (booting, starting, resizing). `dollars` are the charges that fall due
    in the stage, so that the stages add up to the plan's price.
    """

    stage: Stage
    instances: int
    width: Width
    waves: int
    begin: float
    seconds: float
    overhead: float
    dollars: float


@dataclass(frozen=True)
class Plan:
    """Stages in order on one offer, and what they take; `gap` is 0 where proven optimal."""

    planner: str
    offer: Offer
    stages: tuple[StagePlan, ...]
    estimate: Estimate
    gap: float | None = None

    @property
    def most_instances(self) -> int:
        """The largest fleet that the plan ever holds."""
        return max(stage.instances for stage in self.stages)


@dataclass(frozen=True)
class Fleet:
    """What is rented already when a plan begins: the ages in seconds of live instances.

    `width` is the width at which the surviving trials train now, or None before the start.
    """

    ages: tuple[float, ...] = ()
    width: Width | None = None


@dataclass(frozen=True)
class PlanRequest:
    """What a planner is asked: the work, on what it may run, and within which limits."""

    work: tuple[Stage, ...]
    profile: ScalingProfile
    offer: Offer
    limits: Limits
    max_instances: int
    fleet: Fleet = Fleet()


class Planner(Protocol):
    """Decides, before a run and at its barriers, how the rest of a job is to run."""

    name: str

    def plan(self, request: PlanRequest) -> Plan:
        """Return the cheapest plan of its kind that stays within the limits.

        Raises:
            InfeasibleError: none does; carries the fastest and the cheapest plan there is.
        """
        ...
