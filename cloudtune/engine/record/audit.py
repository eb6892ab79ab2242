"""What a run really took, summed from nothing but the events of its ledger.

The policy's state isn't looked at: what the cloud says it launched and took back makes the bill,
what the sessions reported makes the result. So the two can be held against each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.engine.record.timeline import prices, read
from cloudtune.model.plans import SLACK
from cloudtune.model.trial import better
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.engine.ledger import Entry
    from cloudtune.engine.record.timeline import Instance, Session, Timeline
    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Limits
    from cloudtune.model.trial import Mode, TrialId, Width


class Point(NamedTuple):
    """A new best: when, by which trial, at its which epoch.

    `dollars` is the bill if everything had been given back then.
    """

    at: float
    dollars: float
    metric: float
    trial: TrialId
    epoch: int


@dataclass(frozen=True)
class Lease:
    """One instance, from its launch until it was gone."""

    intent: str
    offer: Offer
    begin: float
    end: float

    def dollars(self, at: float = math.inf) -> float:
        """Return the dollars of the instance if it was given back at that time, or at its end."""
        return (
            self.offer.charge(max(0.0, min(at, self.end) - self.begin)) if at > self.begin else 0.0
        )


@dataclass(frozen=True)
class Span:
    """One session: `width` GPUs of these instances for a trial; it trained in `trained` seconds."""

    trial: TrialId
    width: Width
    begin: float
    end: float
    trained: float
    instances: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """The sums of a run. `leases` and `spans` are in the order of their begin.

    `epochs` is how far each trial was ever trained, in the order of their first start.
    `used_dollars` is what trials used, where that is billed and not the instances.
    """

    leases: tuple[Lease, ...]
    spans: tuple[Span, ...]
    path: tuple[Point, ...]
    epochs: Mapping[TrialId, int]
    resizes: int
    not_returned: tuple[str, ...]
    used_dollars: float = 0.0

    @property
    def seconds(self) -> float:
        """When the last instance was gone; 0 where there was none."""
        return max((lease.end for lease in self.leases), default=0.0)

    @property
    def dollars(self) -> float:
        """The bill."""
        return math.fsum([*(lease.dollars() for lease in self.leases), self.used_dollars])

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that were paid for by the second, from launch to the end."""
        return math.fsum(lease.offer.gpus * (lease.end - lease.begin) for lease in self.leases)

    @property
    def held(self) -> float:
        """GPU-seconds in which a trial had the GPU: set up, trained, or waited at a rung."""
        return math.fsum(span.width * (span.end - span.begin) for span in self.spans)

    @property
    def trained(self) -> float:
        """GPU-seconds of epochs that were finished."""
        return math.fsum(span.width * span.trained for span in self.spans)

    @property
    def idle(self) -> float:
        """GPU-seconds paid for in which no trial had the GPU, booting included."""
        return max(0.0, self.gpu_seconds - self.held)

    def fleet(self) -> tuple[tuple[float, int], ...]:
        """Return the GPUs that bill, after each change."""
        changes = sorted(
            change
            for lease in self.leases
            for change in ((lease.begin, lease.offer.gpus), (lease.end, -lease.offer.gpus))
        )
        sizes: dict[float, int] = {}
        size = 0
        for at, change in changes:
            size += change
            sizes[at] = size
        return tuple(sizes.items())

    def violations(self, limits: Limits) -> tuple[str, ...]:
        """Return how the run passed its limits, or what it left behind; empty if it kept them."""
        violations = [f"{intent} was never given back" for intent in self.not_returned]
        deadline = limits.deadline
        budget = limits.budget
        if deadline is not None and self.seconds > deadline * (1 + SLACK):
            late = max(self.leases, key=lambda lease: lease.end)
            violations.append(
                f"{late.intent} was gone {format_seconds(late.end - deadline)} after the deadline "
                f"of {format_seconds(deadline)}"
            )
        if budget is not None and self.dollars > budget * (1 + SLACK):
            violations.append(f"cost ${self.dollars:.6f} of a budget of {format_dollars(budget)}")
        return tuple(violations)


# ---- from a timeline to an audit -----------------------------------------------------------------


def audit(entries: Sequence[Entry], offers: Iterable[Offer], metric: str, mode: Mode) -> Audit:
    """Return what the run of a ledger took; `offers` are those that it could rent."""
    return audited(read(entries), offers, metric, mode)


def audited(timeline: Timeline, offers: Iterable[Offer], metric: str, mode: Mode) -> Audit:
    """Return what a run took; what is still open is taken to end at its last event.

    An event at which a session is stopped by a command of the same entry counts before that.
    """
    priced = prices(timeline, offers)
    instances = timeline.instances.values()
    launched = [instance for instance in instances if instance.launched_at is not None]
    unanswered = [
        instance for instance in instances if instance.launched and instance.launched_at is None
    ]
    leases = [
        Lease(instance.intent, priced[instance.intent], instance.began_at, _end(instance, timeline))
        for instance in launched
    ]
    spans = [_span(session, timeline) for session in timeline.sessions.values()]
    return Audit(
        leases=tuple(sorted(leases, key=lambda lease: lease.begin)),
        spans=tuple(sorted(spans, key=lambda span: (span.begin, span.trial))),
        path=tuple(_path(timeline, priced, metric, mode)),
        epochs=_epochs(timeline),
        resizes=sum(restart.resized for restart in timeline.restarts()),
        not_returned=tuple(
            instance.intent for instance in (*launched, *unanswered) if instance.gone_at is None
        ),
        used_dollars=timeline.used_dollars(priced),
    )


def _end(instance: Instance, timeline: Timeline) -> float:
    return timeline.at if instance.gone_at is None else instance.gone_at


def _span(session: Session, timeline: Timeline) -> Span:
    start = session.start
    end = min(session.end, timeline.at)
    trained = sum(epoch.told.seconds for epoch in session.epochs)
    instances = tuple(piece.instance for piece in start.placement)
    return Span(start.trial, start.width, session.begin, end, trained, instances)


def _epochs(timeline: Timeline) -> dict[TrialId, int]:
    """Return how far each trial was ever trained, or cloned from."""
    furthest: dict[TrialId, int] = {}
    for session in timeline.sessions.values():
        start = session.start
        done = session.epochs[-1].told.epoch if session.epochs else 0
        furthest[start.trial] = max(furthest.get(start.trial, start.start_epoch), done)
    return furthest


def _path(timeline: Timeline, priced: Mapping[str, Offer], metric: str, mode: Mode) -> list[Point]:
    path: list[Point] = []
    best: float | None = None
    for number, epoch in enumerate(timeline.epochs):
        event = epoch.told
        value = event.metrics.get(metric, math.nan)
        if epoch.waited and better(mode, value, best):
            bill = _bill(timeline, priced, number, event.at)
            best = value
            path.append(Point(event.at, bill, value, epoch.trial, event.epoch))
    return path


def _bill(timeline: Timeline, priced: Mapping[str, Offer], epochs: int, at: float) -> float:
    """Return the bill if all had been given back at a time, as known after `epochs` epochs."""
    ends = (
        (
            instance,
            instance.end(at) if instance.gone_after <= epochs else max(at, instance.began_at),
        )
        for instance in timeline.instances.values()
        if instance.launched_after <= epochs
    )
    rented = (priced[instance.intent].charge(end - instance.began_at) for instance, end in ends)
    return math.fsum([*rented, timeline.used_dollars(priced, end=at)])
