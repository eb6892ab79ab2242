"""What every run has, whoever decides: a policy, brakes on money and time, a metric."""

import math
from dataclasses import dataclass, field
from typing import Protocol

from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command
from cloudtune.model.events import Event
from cloudtune.model.progress import TrialProgress
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import Mode, Slice, Width
from cloudtune.policy.planned.itinerary import Itinerary
from cloudtune.strategies.base import Allocator, FleetRule, Strategy


class Policy(Protocol):
    """Decides what a run does: takes events in, one at a time, and gives commands (see `World`)."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""


@dataclass(frozen=True)
class Components:
    """The three choices of a run; `itinerary` where they go by a plan."""

    strategy: Strategy
    allocator: Allocator
    fleet_rule: FleetRule
    itinerary: Itinerary | None = None


@dataclass(frozen=True)
class Brakes:
    """How the policy keeps the limits, in seconds.

    `tick`: how often it looks. `drain`: what giving an instance back may take; that long before
    the deadline, or before the budget's last cent, the run winds down. `avoid`: how long a pool
    without capacity is not asked again; `relaunch`: how long any other launch that failed isn't
    repeated. After `refusals` rounds of them a run ends that has no instances to train a single
    trial on. `cleanup`: how often a release is repeated that the cloud has not confirmed,
    `patience` times at most. `losses`: how often a trial's workers may vanish without an epoch in
    between. `join`: how long an instance may take to join before it is given back; as many as
    `refusals` that never do, and a run that can't train ends as failed.
    """

    tick: float = 1.0
    drain: float = 6.0
    avoid: float = 180.0
    relaunch: float = 15.0
    refusals: int = 3
    cleanup: float = 30.0
    patience: int = 10
    losses: int = 3
    join: float = 600.0

    def ahead(self, now: float) -> float:
        """By when all could be given back, if that were decided only at the next tick (run s)."""
        return now + self.tick + self.drain


@dataclass(frozen=True)
class TrialRules:
    """What a trial may do: see the experiment's `trial`.

    A trial that reports nothing for `stall_factor` times as long as expected, and `stall_least`
    seconds, is ended; by default none is. With `sync_required` a run ends whose trials train
    several models on several GPUs; else it goes on with one GPU each. A run ends where as many as
    `max_failures` trials failed with the same error before any has finished an epoch.
    """

    stall_factor: float = math.inf
    stall_least: float = 0.0
    sync_required: bool = False
    max_failures: float = math.inf


@dataclass(frozen=True)
class Metric:
    """The name of the metric that decides, and whether its largest or smallest value is best."""

    name: str
    mode: Mode


def drain_seconds(*profiles: ScalingProfile) -> float:
    """Return the seconds to give everything back within: twice the longest release, plus 3."""
    return 3.0 + 2.0 * max(profile.release.high for profile in profiles)


@dataclass(frozen=True)
class Move:
    """Where a trial is to go on, how wide, and the GPUs that are kept for it until then."""

    offer: Offer
    width: Width
    reserved: tuple[Slice, ...]


@dataclass
class Noted:
    """The part of an event that the policy has to act upon.

    `reported` is the trial that has finished an epoch, and trains on or waits at its rung; `late`
    one that has finished and saved an epoch while its session was being stopped; `diverged` one
    whose metric was not a number. `orphans` are sessions that lost a part of their GPUs: what is
    left of their workers is to be ended. `failed` are trials that won't come back.
    """

    reported: TrialProgress | None = None
    late: TrialProgress | None = None
    diverged: TrialProgress | None = None
    orphans: list[str] = field(default_factory=list)
    failed: list[TrialProgress] = field(default_factory=list)
