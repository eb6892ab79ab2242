"""Whether a run's fleet flapped: what it took back or rented again, and nothing explains.

Read from the ledger alone, without the policy's rule (`fleet_manager.Hysteresis`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from cloudtune.engine.ledger import Entry
from cloudtune.engine.record.timeline import Timeline, prices
from cloudtune.model import events
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command, Launch, PlanAnew, Release, StartTrial
from cloudtune.model.plans import Rentable
from cloudtune.model.trial import has_diverged
from cloudtune.model.units import format_seconds
from cloudtune.policy.base import Brakes, Metric


def flaps(
    entries: Sequence[Entry],
    timeline: Timeline,
    rentables: Sequence[Rentable],
    *,
    brakes: Brakes,
    metric: Metric,
    stages: Sequence[float] = (),
) -> tuple[str, ...]:
    """Return what was taken back or rented again without a cause, in words; empty, as it must be.

    `timeline` is of the same entries. A launch must not come within a boot and a minimum charge
    (a tick at least) of the return of an instance of the same offer, but for one in place of each
    instance that was lost or refused since. While a run goes on no instance is given back before it
    has joined, unless in between another was lost or refused, or a trial failed. A changed plan, or
    a stage of it that began (at one of `stages`, in run seconds), explains both.
    """
    offers = prices(timeline, [rentable.offer for rentable in rentables])
    boots = {rentable.offer: rentable.profile.boot.mean for rentable in rentables}
    pauses = {
        offer: max(boot + offer.minimum_seconds, brakes.tick) for offer, boot in boots.items()
    }
    reader = _Reader(offers, pauses, brakes, metric, stages)
    last = _last_begin(entries)
    # After that all is given back: the run is over.
    return tuple(flap for entry in entries[: last + 1] for flap in reader.take(entry))


def _last_begin(entries: Sequence[Entry]) -> int:
    """Return the number of the last entry that rents or starts anything; -1 if none does."""
    for number in range(len(entries) - 1, -1, -1):
        if any(isinstance(command, StartTrial | Launch) for command in entries[number].commands):
            return number
    return -1


class _Reader:
    """Follows a run entry by entry: what was asked for, given back, and why it might be."""

    def __init__(
        self,
        offers: Mapping[str, Offer],
        pauses: Mapping[Offer, float],
        brakes: Brakes,
        metric: Metric,
        stages: Sequence[float],
    ) -> None:
        self._offers = offers
        self._pauses = pauses
        self._brakes = brakes
        self._metric = metric
        self._stages = stages
        self._causes = self._failures = 0
        self._asked: dict[str, tuple[int, float]] = {}  # by intent, until it has joined
        self._returned: dict[Offer, tuple[int, float, str]] = {}
        self._released: set[str] = set()
        self._lost: set[str] = set()
        self._diverged: set[str] = set()

    def take(self, entry: Entry) -> Iterator[str]:
        at = entry.event.at
        self._hear(entry.event)
        for command in entry.commands:
            yield from self._follow(command, at)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.EpochDone):
            if has_diverged(event.metrics.get(self._metric.name, math.nan)):
                self._diverged.add(event.session)
        elif isinstance(event, events.NodeJoined):
            self._asked.pop(event.intent, None)
        elif isinstance(
            event,
            events.NodeLost | events.InterruptionNotice | events.InstanceGone | events.LaunchFailed,
        ):
            self._causes += event.intent not in self._released | self._lost
            self._lost.add(event.intent)
        elif isinstance(event, events.TrialFailed):
            self._failures += 1
        elif isinstance(event, events.TrialStopped):
            self._failures += event.session in self._diverged

    def _follow(self, command: Command, at: float) -> Iterator[str]:
        if isinstance(command, PlanAnew):
            self._causes += 1
            self._returned.clear()
        elif isinstance(command, Launch):
            self._asked[command.intent] = self._causes + self._failures, at
            yield from self._launch(command.intent, at)
        elif isinstance(command, Release) and command.intent not in self._released:
            self._released.add(command.intent)
            yield from self._release(command.intent, at)

    def _launch(self, intent: str, at: float) -> Iterator[str]:
        offer = self._offers[intent]
        if offer not in self._returned:
            return
        causes, returned_at, before = self._returned[offer]
        self._returned[offer] = causes + 1, returned_at, before
        soon = causes >= self._causes and at < returned_at + self._pauses[offer]
        if soon and not self._staged(returned_at, at):
            gap = format_seconds(at - returned_at)
            yield f"{intent} was asked for {gap} after {before} of the same offer went back"

    def _release(self, intent: str, at: float) -> Iterator[str]:
        causes, asked_at = self._asked.get(intent, (-1, 0.0))
        patience = min(self._brakes.join, self._brakes.least_join)
        if at > asked_at + patience and intent in self._asked:
            self._lost.add(intent)  # it should have joined long ago
            self._causes += 1
        if intent in self._lost:
            return
        self._returned[self._offers[intent]] = self._causes, at, intent
        if causes == self._causes + self._failures and not self._staged(asked_at, at):
            yield f"{intent} was given back {format_seconds(at - asked_at)} after it was asked for"

    def _staged(self, begin: float, end: float) -> bool:
        return any(begin <= at <= end for at in self._stages)
