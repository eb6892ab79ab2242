"""What a run really took, summed from the events of its ledger alone.

No book of the policy is looked at: what the cloud says it launched and took back makes the bill,
what the sessions reported makes the result. So the two can be held against each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, assert_never

from cloudtune.catalog import of_pool, pool
from cloudtune.commands import EndRun, ExtendTrial, Launch, Release, SetTimer, StartTrial, StopTrial
from cloudtune.events import (
    EpochDone,
    Event,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    InterruptionNotice,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RunResumed,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)
from cloudtune.plan import SLACK
from cloudtune.trial import better
from cloudtune.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.ledger import Entry
    from cloudtune.plan import Limits
    from cloudtune.trial import Mode, TrialId, Width


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
        """Return what it has cost if it was given back at that time, or at its end."""
        return (
            self.offer.charge(max(0.0, min(at, self.end) - self.begin)) if at > self.begin else 0.0
        )


@dataclass(frozen=True)
class Span:
    """One session: so many GPUs of these instances for a trial; it trained in `trained` seconds."""

    trial: TrialId
    width: Width
    begin: float
    end: float
    trained: float
    instances: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """What a run took. `leases` and `spans` are in the order of their begin.

    `epochs` is how far each trial was ever trained, in the order of their first start.
    """

    leases: tuple[Lease, ...]
    spans: tuple[Span, ...]
    path: tuple[Point, ...]
    epochs: Mapping[TrialId, int]
    resizes: int
    not_returned: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """When the last instance was gone; 0 where there was none."""
        return max((lease.end for lease in self.leases), default=0.0)

    @property
    def dollars(self) -> float:
        """The bill."""
        return math.fsum(lease.dollars() for lease in self.leases)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that were paid for by the second, from launch to the end."""
        return math.fsum(each.offer.gpus * (each.end - each.begin) for each in self.leases)

    @property
    def held(self) -> float:
        """GPU-seconds in which a trial had the GPU: set up, trained, or waited at a rung."""
        return math.fsum(each.width * (each.end - each.begin) for each in self.spans)

    @property
    def trained(self) -> float:
        """GPU-seconds of epochs that were finished."""
        return math.fsum(each.width * each.trained for each in self.spans)

    @property
    def idle(self) -> float:
        """GPU-seconds paid for in which no trial had the GPU, booting included."""
        return max(0.0, self.gpu_seconds - self.held)

    def fleet(self) -> tuple[tuple[float, int], ...]:
        """Return the GPUs that bill, after each change."""
        changes = sorted(
            change
            for each in self.leases
            for change in ((each.begin, each.offer.gpus), (each.end, -each.offer.gpus))
        )
        sizes: dict[float, int] = {}
        size = 0
        for at, change in changes:
            size += change
            sizes[at] = size
        return tuple(sizes.items())

    def violations(self, limits: Limits) -> tuple[str, ...]:
        """Return how the run passed its limits, or what it left behind; empty if it kept them."""
        found = [f"{intent} was never given back" for intent in self.not_returned]
        deadline, budget = limits.deadline, limits.budget
        if deadline is not None and self.seconds > deadline * (1 + SLACK):
            late = max(self.leases, key=lambda lease: lease.end)
            found.append(
                f"{late.intent} was gone {format_seconds(late.end - deadline)} after the deadline "
                f"of {format_seconds(deadline)}"
            )
        if budget is not None and self.dollars > budget * (1 + SLACK):
            found.append(f"cost ${self.dollars:.6f} of a budget of {format_dollars(budget)}")
        return tuple(found)


@dataclass
class _Session:
    start: StartTrial
    begin: float
    trained: float = 0.0
    stopping: bool = False


@dataclass
class _Clerk:
    """Reads a ledger, entry by entry."""

    offers: Mapping[tuple[str, str, str], Offer]
    metric: str
    mode: Mode
    asked: dict[str, Offer] = field(default_factory=dict)
    open: dict[str, tuple[Offer, float]] = field(default_factory=dict)
    closed: list[Lease] = field(default_factory=list)
    sessions: dict[str, _Session] = field(default_factory=dict)
    widths: dict[TrialId, Width] = field(default_factory=dict)
    epochs: dict[TrialId, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    path: list[Point] = field(default_factory=list)
    resizes: int = 0

    def hear(self, event: Event) -> None:
        """Take an event down."""
        match event:
            case InstanceLaunched():
                if event.intent in self.asked:  # told a second time after a takeover
                    offer = self.asked.pop(event.intent)
                    self.open[event.intent] = (offer, event.launched_at)
            case LaunchFailed():
                self.asked.pop(event.intent, None)
            case InstanceGone():
                self._close(event)
            case EpochDone():
                self._epoch(event)
            case TrialStopped() | TrialFailed() | TrialLost():
                self._end(event.session, event.at)
            case RunStarted() | NodeJoined() | NodeLost() | TrialStarted() | TimerFired():
                pass
            case InterruptionNotice() | RunResumed() | Interrupted():
                pass
            case _:
                assert_never(event)

    def follow(self, command: Command, at: float) -> None:
        """Take a command down."""
        match command:
            case Launch():
                where = (command.instance_type, command.market, command.zone)
                self.asked[command.intent] = of_pool(self.offers, *where)
            case StartTrial():
                before = self.widths.get(command.trial, command.width)
                self.resizes += before != command.width
                self.widths[command.trial] = command.width
                self.epochs.setdefault(command.trial, command.start_epoch)
                self.sessions[command.session] = _Session(command, at)
            case StopTrial():
                if command.session in self.sessions:
                    self.sessions[command.session].stopping = True
            case Release() | ExtendTrial() | SetTimer() | EndRun():
                pass
            case _:
                assert_never(command)

    def _epoch(self, event: EpochDone) -> None:
        session = self.sessions.get(event.session)
        if session is None or session.stopping:
            return
        session.trained += event.seconds
        trial = session.start.trial
        self.epochs[trial] = max(self.epochs[trial], event.epoch)
        value = event.metrics.get(self.metric, math.nan)
        if better(self.mode, value, self.path[-1].metric if self.path else None):
            self.path.append(Point(event.at, self._bill(event.at), value, trial, event.epoch))

    def _close(self, event: InstanceGone) -> None:
        self.asked.pop(event.intent, None)
        if event.intent in self.open:
            offer, begin = self.open.pop(event.intent)
            self.closed.append(Lease(event.intent, offer, begin, event.gone_at))

    def _bill(self, at: float) -> float:
        gone = math.fsum(lease.dollars() for lease in self.closed)
        return gone + math.fsum(
            offer.charge(max(0.0, at - begin)) for offer, begin in self.open.values()
        )

    def _end(self, session: str, at: float) -> None:
        ended = self.sessions.pop(session, None)
        if ended is not None:
            start = ended.start
            instances = tuple(piece.instance for piece in start.placement)
            self.spans.append(
                Span(start.trial, start.width, ended.begin, at, ended.trained, instances)
            )

    def audit(self, at: float) -> Audit:
        """Return what it comes to; what is still open is taken to end now."""
        for session in tuple(self.sessions):
            self._end(session, at)
        left = [Lease(intent, offer, begin, at) for intent, (offer, begin) in self.open.items()]
        return Audit(
            leases=tuple(sorted([*self.closed, *left], key=lambda lease: lease.begin)),
            spans=tuple(sorted(self.spans, key=lambda span: (span.begin, span.trial))),
            path=tuple(self.path),
            epochs=self.epochs,
            resizes=self.resizes,
            not_returned=(*self.open, *self.asked),
        )


def audit(entries: Sequence[Entry], offers: Iterable[Offer], metric: str, mode: Mode) -> Audit:
    """Return what the run of a ledger took; `offers` are those that it could rent.

    An event at which a session is stopped by a command of the same entry counts before that.
    """
    keyed = {pool(offer): offer for offer in offers}
    clerk, at = _Clerk(keyed, metric, mode), 0.0
    for entry in entries:
        at = entry.event.at
        clerk.hear(entry.event)
        for command in entry.commands:
            clerk.follow(command, at)
    return clerk.audit(at)
