"""A plan: which instances, when, how many trials on them, how wide, at what price."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.catalog import Offer
    from cloudtune.scaling import ScalingProfile
    from cloudtune.trial import Width

SLACK = 1e-9
"""What sums of floats in another order may differ by, as a share."""
Objective: TypeAlias = Literal["cost", "time"]
"""What a plan is the least of, within the limits."""


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
        in_time = self.deadline is None or estimate.seconds <= self.deadline * (1 + SLACK)
        in_money = self.budget is None or estimate.dollars <= self.budget * (1 + SLACK)
        return in_time and in_money


@dataclass(frozen=True)
class Estimate:
    """Expected seconds from now and dollars."""

    seconds: float
    dollars: float


@dataclass(frozen=True)
class Charges:
    """What a run costs besides its instances' price by the hour.

    `usd_per_launch`: for each instance launched (the data set that it loads). `usd_per_second`:
    from the begin of the plan to its end (the head node, the checkpoints in storage).
    """

    usd_per_launch: float = 0.0
    usd_per_second: float = 0.0


@dataclass(frozen=True)
class Group:
    """The part of a stage on one offer: `trials` trials on `instances`, each `width` GPUs wide.

    They take `waves` rounds where they don't all fit at once.
    """

    offer: Offer
    instances: int
    width: Width
    trials: int
    waves: int


@dataclass(frozen=True)
class StagePlan:
    """How one stage is to run: one group, or several with an offer each.

    `begin` and `seconds` are seconds from the start of the plan; `overhead` of the seconds are
    spent before training (booting, starting, resizing), by the group that takes longest. `dollars`
    are the charges that fall due in the stage, so that the stages add up to the plan's price.
    `busy` is the share of the GPU-seconds paid for in which trials train.
    """

    stage: Stage
    groups: tuple[Group, ...]
    begin: float = 0.0
    seconds: float = 0.0
    overhead: float = 0.0
    dollars: float = 0.0
    busy: float = 0.0

    @property
    def instances(self) -> int:
        """Instances of all groups."""
        return sum(group.instances for group in self.groups)

    def group(self, offer: Offer) -> Group | None:
        """Return the group on an offer, if the stage has one."""
        return next((group for group in self.groups if group.offer == offer), None)


@dataclass(frozen=True)
class Plan:
    """Stages in order, and what they take.

    `gap` bounds how much dearer (or slower, by objective) the plan is than the best of its model,
    as a share of the best: 0 where proven optimal, None where nothing is known. `status` says what
    the planner achieved: "optimal", "feasible" (a search that was cut short), or "heuristic".
    What is alive never exceeds `max_instances` or `vcpu_quotas` (vCPUs by `Offer.quota`), at a
    hand-over neither.
    """

    planner: str
    stages: tuple[StagePlan, ...]
    estimate: Estimate
    max_instances: int
    gap: float | None = None
    status: str = "heuristic"
    charges: Charges = Charges()
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)

    def admits(self, alive: Mapping[Offer, int]) -> bool:
        """Whether so many instances may be alive at once."""
        return admits(self.max_instances, self.vcpu_quotas, alive)

    @property
    def most_instances(self) -> int:
        """The largest fleet that the plan ever holds."""
        return max(stage.instances for stage in self.stages)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer of the plan, in the order of their first use."""
        return tuple(dict.fromkeys(g.offer for stage in self.stages for g in stage.groups))

    @property
    def launches(self) -> Mapping[Offer, int]:
        """How many instances of each offer are launched in all, where nothing goes wrong."""
        counts: dict[Offer, int] = {}
        held: dict[Offer, int] = {}
        for stage in self.stages:
            now = {group.offer: group.instances for group in stage.groups}
            for offer, count in now.items():
                counts[offer] = counts.get(offer, 0) + max(0, count - held.get(offer, 0))
            held = now
        return counts


def admits(max_instances: int, vcpu_quotas: Mapping[str, int], alive: Mapping[Offer, int]) -> bool:
    """Whether so many instances of each offer may be alive at once."""
    vcpus: dict[str, int] = {}
    for offer, count in alive.items():
        vcpus[offer.quota] = vcpus.get(offer.quota, 0) + count * offer.instance_type.vcpus
    within = (vcpus[quota] <= most for quota, most in vcpu_quotas.items() if quota in vcpus)
    return sum(alive.values()) <= max_instances and all(within)


@dataclass(frozen=True)
class Spread:
    """The 5th, 50th and 95th percentile of what something may take, and its mean."""

    p5: float
    p50: float
    p95: float
    mean: float


@dataclass(frozen=True)
class Outlook:
    """What a plan may take, by Monte Carlo; `seed` makes it the same again.

    `in_time`, `in_money` and `within` are the probabilities that the deadline, the budget and both
    are kept; None where there is no such limit.
    """

    seconds: Spread
    dollars: Spread
    in_time: float | None
    in_money: float | None
    within: float | None
    samples: int
    seed: int


@dataclass(frozen=True)
class Alternative:
    """What else could be done: a plan and its outlook, None where nobody asked for it."""

    name: str
    plan: Plan
    outlook: Outlook | None = None


@dataclass(frozen=True)
class Live:
    """Instances of one offer that are rented already when a plan begins, by their ages (seconds).

    `width` is the width at which the surviving trials train there now, None before the start.
    """

    offer: Offer
    ages: tuple[float, ...]
    width: Width | None = None


@dataclass(frozen=True)
class Rentable:
    """An offer, how the script scales on it, and how many of it may be rented at once."""

    offer: Offer
    profile: ScalingProfile
    most: int

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.offer.gpus

    def epoch_seconds(self, width: Width) -> float:
        """Return the expected seconds of an epoch, with what spot interruptions cost on average.

        An interruption costs the half of an epoch that is lost, and a replacement's start.
        """
        epoch, profile = self.profile.epoch_seconds(width), self.profile
        rate = self.offer.interruptions_per_hour / 3600.0
        if rate == 0.0:
            return epoch
        back = profile.launch.mean + profile.boot.mean + profile.resize.mean
        return epoch * (1.0 + rate * max(1, math.ceil(width / self.gpus)) * (back + epoch / 2))


@dataclass(frozen=True)
class PlanRequest:
    """What a planner is asked: the work, on what it may run, and within which limits.

    `max_instances` is for all offers together, `vcpu_quotas` bounds vCPUs by `Offer.quota`; both
    hold for all that is alive at a time. `mix` is how many offers one stage may use.
    """

    work: tuple[Stage, ...]
    rentables: tuple[Rentable, ...]
    limits: Limits
    max_instances: int
    fleet: tuple[Live, ...] = ()
    charges: Charges = Charges()
    objective: Objective = "cost"
    vcpu_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)
    mix: int = 1

    def admits(self, alive: Mapping[Offer, int]) -> bool:
        """Whether so many instances may be alive at once."""
        return admits(self.max_instances, self.vcpu_quotas, alive)

    def rentable(self, offer: Offer) -> Rentable:
        """Return what is known of an offer of this request."""
        return self._by_offer[offer]

    @cached_property
    def _by_offer(self) -> Mapping[Offer, Rentable]:
        return {each.offer: each for each in reversed(self.rentables)}


class Planner(Protocol):
    """Decides, before a run and at its barriers, how the rest of a job is to run."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    def plan(self, request: PlanRequest) -> Plan:
        """Return the best plan of its kind that stays within the limits, by the objective.

        Raises:
            InfeasibleError: none does; carries the fastest and the cheapest plan there is.
        """
        ...
