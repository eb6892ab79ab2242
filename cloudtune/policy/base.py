"""What every run has: a policy, brakes on money and time, a metric."""

import math
from dataclasses import dataclass, field
from typing import Protocol

from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command
from cloudtune.model.events import Event
from cloudtune.model.progress import TrialProgress
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import Mode, Slice, Width
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.strategies.base import Allocator, FleetRule, Strategy


class Policy(Protocol):
    """Decides what a run does: it takes one event at a time and returns commands (see `World`)."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Handle one event; return the commands that follow from it, in order."""


@dataclass(frozen=True)
class Components:
    """The three choices of a run; `itinerary` is set where they follow a plan."""

    strategy: Strategy
    allocator: Allocator
    fleet_rule: FleetRule
    itinerary: Itinerary | None = None


@dataclass(frozen=True)
class Brakes:
    """How the policy keeps the limits, in seconds.

    - `tick`: how often the policy looks at the clock.
    - `drain`: the longest that returning an instance may take. The run winds down that long before
      the deadline, or before the last cent of the budget.
    - `avoid`: how long a pool without capacity isn't asked again; `relaunch`: the same after any
      other failed launch. After `refusals` rounds, a run that can't train a single trial ends.
    - `cleanup`: how often an unconfirmed release is repeated, at most `patience` times.
    - `losses`: how often a trial's workers may vanish without an epoch in between.
    - `join`: how long an instance may take to join before it is returned. Once it runs, that is at
      most `slow_boot` times what instances of its type have taken, but no less than `least_join`.
      After `refusals` instances that never joined, a run that can't train ends as failed.
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
    least_join: float = 120.0
    slow_boot: float = 2.0

    def ahead(self, now: float) -> float:
        """Return when everything could be returned, if decided only at the next tick (run s)."""
        return now + self.tick + self.drain


@dataclass(frozen=True)
class TrialRules:
    """When trials are ended: the experiment's `trial` section.

    A trial ends if it reports nothing for `stall_factor` times the expected seconds and at least
    `stall_least` seconds; by default none does. If the workers of a trial train separate models,
    the run continues with one GPU per trial, or ends with `sync_required`. A run ends if
    `max_failures` trials fail with the same error before any trial has finished an epoch. An
    instance on which a trial failed is kept for `keep_failed` seconds.
    """

    stall_factor: float = math.inf
    stall_least: float = 0.0
    sync_required: bool = False
    max_failures: float = math.inf
    keep_failed: float = 0.0


@dataclass(frozen=True)
class Metric:
    """The name of the deciding metric, and whether its largest or smallest value is best."""

    name: str
    mode: Mode


def drain_seconds(*profiles: ScalingProfile) -> float:
    """Return the seconds allowed for returning everything: twice the longest release, plus 3."""
    return 3.0 + 2.0 * max(profile.release.high for profile in profiles)


@dataclass(frozen=True)
class Move:
    """Where a trial continues, how wide, and the GPUs reserved for it until then."""

    offer: Offer
    width: Width
    reserved: tuple[Slice, ...]


@dataclass
class Noted:
    """The part of an event that the policy must act upon.

    - `reported`: the trial that finished an epoch, and trains on or waits at its rung.
    - `late`: a trial that finished and saved an epoch while its session was being stopped.
    - `diverged`: a trial whose metric was not a number.
    - `orphans`: sessions that lost part of their GPUs; their other workers must be stopped.
    - `failed`: trials that won't come back.
    - `failed_on`: the instance of one that failed by its script; "" if none did.
    - `finished`: a trial whose script has ended by itself.
    """

    reported: TrialProgress | None = None
    late: TrialProgress | None = None
    diverged: TrialProgress | None = None
    orphans: list[str] = field(default_factory=list)
    failed: list[TrialProgress] = field(default_factory=list)
    failed_on: str = ""
    finished: TrialProgress | None = None
