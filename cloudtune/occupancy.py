"""Who held which GPUs of a run, from when until when and what for: read from its ledger alone.

What is rented bills here by the very rules of the policy's books (`fleet.Rented`), and a session
holds its GPUs exactly as long as it does there, so that nothing is held twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, assert_never

from cloudtune.catalog import pool
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
from cloudtune.fleet import Rented

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.ledger import Entry
    from cloudtune.trial import TrialId, Width

Use: TypeAlias = Literal["training", "checkpoint", "start-up", "barrier", "lost"]
# Times are sums of floats: a gap as short as this is none.
_NOISE = 1e-6


class Stretch(NamedTuple):
    """What the GPUs of a session were used for, from when until when."""

    begin: float
    end: float
    use: Use


@dataclass
class Lease(Rented):
    """One launch intent; it takes trials from `joined_at` until `left_at`, where these are known.

    It leaves when it is given back, or when its node is lost.
    """

    joined_at: float | None = None
    left_at: float | None = None

    def end(self, at: float) -> float:
        """Return when it stopped billing; the given time where nobody has said so."""
        return max(self.began_at, at if self.gone_at is None else self.gone_at)


class _Epoch(NamedTuple):
    """A finished epoch: as it was told, and the time before which it can't have begun."""

    number: int
    at: float
    seconds: float
    saving: float
    after: float


@dataclass
class Session:
    """A trial on its GPUs, until `end`; it may train to epoch `until`."""

    start: StartTrial
    begin: float
    until: int
    after: float
    started: float | None = None
    stopping: float | None = None
    end: float = math.inf
    epochs: list[_Epoch] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether it has trained as far as it may."""
        done = self.epochs[-1].number if self.epochs else self.start.start_epoch
        return done >= self.until

    def note(self, event: EpochDone) -> None:
        """Take an epoch down, the first time that it is told and while it is waited for."""
        last = self.epochs[-1].number if self.epochs else self.start.start_epoch
        if self.stopping is None and event.epoch > last:
            told = (event.at, event.seconds, event.saving)
            self.epochs.append(_Epoch(event.epoch, *told, self.after))

    def extend(self, until: int, at: float) -> None:
        """Let it train on; where it waited, the next epoch begins from then on."""
        self.after = max(self.after, at) if self.waits else self.after
        self.until = max(self.until, until)

    def stretches(self, kept: float) -> Iterator[Stretch]:
        """Give what it did, without a gap; epochs after `kept` were lost later on.

        An epoch was told when its checkpoint was in the storage, which may be while the next one
        was training, or only when another controller took the run over. So each is taken to have
        ended before the next began.
        """
        stop = self.end if self.stopping is None else min(self.stopping, self.end)
        cursor = self.begin
        gap: Use = "start-up"
        placed = list(self._placed(stop))
        if placed and self.started is not None and self.started < placed[0][0] - _NOISE:
            # Its first epoch was told late: that it was set up by then is known all the same.
            yield Stretch(cursor, self.started, "start-up")
            cursor, gap = self.started, "barrier"
        for epoch, (begin, end) in zip(self.epochs, placed, strict=True):
            yield Stretch(cursor, begin, gap)
            lost, saved = epoch.number > kept, max(begin, end - epoch.saving)
            yield Stretch(begin, saved, "lost" if lost else "training")
            yield Stretch(saved, end, "lost" if lost else "checkpoint")
            cursor, gap = end, "barrier"
        if not self.epochs:
            started = stop if self.started is None else min(self.started, stop)
            yield Stretch(cursor, started, "start-up")
            cursor = started
        yield Stretch(cursor, stop, "barrier" if self.waits else "lost")
        yield Stretch(stop, self.end, "start-up")

    def _placed(self, stop: float) -> Iterator[tuple[float, float]]:
        """Give begin and end of each epoch, in order, none before the end of the one before.

        One of unknown length is as long as the others of the session, from when it could begin.
        """
        known = [epoch.seconds for epoch in self.epochs if epoch.seconds > 0]
        usual = math.fsum(known) / len(known) if known else math.inf
        cursor = self.begin
        for epoch, latest in zip(self.epochs, self._latest(stop), strict=True):
            end = max(cursor, latest)
            if epoch.seconds > 0:
                begin = max(cursor, end - epoch.seconds)
            else:
                begin = min(end, max(cursor, epoch.after, self.started or 0.0))
                end = min(end, begin + usual)
            begin = cursor if begin - cursor < _NOISE else begin
            yield begin, end
            cursor = end

    def _latest(self, stop: float) -> list[float]:
        """Return by when each epoch had ended: it was told, and the next one had begun."""
        ends: list[float] = []
        for epoch in reversed(self.epochs):
            ends.append(min(epoch.at, stop))
            stop = ends[-1] - epoch.seconds
        return ends[::-1]


@dataclass
class Occupancy:
    """What was rented and who held it, in order; `at` is when nothing bills any more.

    `began`: when the run was told to begin. Of the `restarts` (a trial that had a session before)
    the `resizes` were at another width.
    """

    leases: Sequence[Lease]
    sessions: Sequence[Session]
    began: float | None
    at: float
    restarts: int
    resizes: int

    def kept(self) -> Iterator[tuple[Session, float]]:
        """Give each session, and the last of its epochs that its trial never trained again."""
        least: dict[TrialId, float] = {}
        found: list[tuple[Session, float]] = []
        for session in reversed(self.sessions):
            trial, first = session.start.trial, session.start.start_epoch
            found.append((session, least.get(trial, math.inf)))
            least[trial] = min(least.get(trial, math.inf), first)
        yield from reversed(found)


@dataclass
class _Reader:
    """Reads a ledger, entry by entry."""

    offers: Mapping[tuple[str, str, str], Sequence[Offer]]
    leases: dict[str, Lease] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    open: dict[str, Session] = field(default_factory=dict)
    widths: dict[TrialId, Width] = field(default_factory=dict)
    began: float | None = None
    restarts: int = 0
    resizes: int = 0

    def hear(self, event: Event) -> None:
        """Take an event down."""
        match event:
            case RunStarted():
                self.began = event.at
            case InstanceLaunched() | NodeJoined() | NodeLost() | InstanceGone() | LaunchFailed():
                self._hear_cloud(event)
            case TrialStarted() | EpochDone() | TrialStopped() | TrialFailed() | TrialLost():
                if event.session in self.open:
                    self._hear_trial(event, self.open[event.session])
            case TimerFired() | InterruptionNotice() | RunResumed() | Interrupted():
                pass
            case _:
                assert_never(event)

    def _hear_cloud(
        self, event: InstanceLaunched | NodeJoined | NodeLost | InstanceGone | LaunchFailed
    ) -> None:
        lease = self.leases[event.intent]
        match event:
            case InstanceLaunched():
                lease.instance, lease.launched_at = event.instance, event.launched_at
            case NodeJoined():
                lease.joined_at = event.at if lease.joined_at is None else lease.joined_at
            case NodeLost():
                self._leave(lease, event.at)
                self._end_on(lease, event.at)
            case InstanceGone():
                lease.gone_at = event.gone_at
                self._end_on(lease, event.at)
            case LaunchFailed():
                lease.gone_at = event.at
            case _:
                assert_never(event)

    def _hear_trial(
        self,
        event: TrialStarted | EpochDone | TrialStopped | TrialFailed | TrialLost,
        session: Session,
    ) -> None:
        match event:
            case TrialStarted():
                session.started = event.at if session.started is None else session.started
            case EpochDone():
                session.note(event)
            case TrialStopped() | TrialFailed() | TrialLost():
                self.open.pop(event.session).end = event.at
            case _:
                assert_never(event)

    def follow(self, command: Command, at: float) -> None:
        """Take a command down."""
        match command:
            case Launch():
                offer, intent = self._offer(command), command.intent
                self.leases.setdefault(intent, Lease(intent, offer, at))
            case Release():
                self._leave(self.leases[command.intent], at)
            case StartTrial():
                self._begin(command, at)
            case ExtendTrial():
                if command.session in self.open:
                    self.open[command.session].extend(command.until_epoch, at)
            case StopTrial():
                if command.session in self.open:
                    self.open[command.session].stopping = at
            case SetTimer() | EndRun():
                pass
            case _:
                assert_never(command)

    def _offer(self, command: Launch) -> Offer:
        """Return what was rented: of the zone or of any, at the price that was reckoned with."""
        kind, market = command.instance_type, command.market
        places = dict.fromkeys(((kind, market, command.zone), (kind, market, "")))
        known = [offer for place in places for offer in self.offers.get(place, ())]
        return next((o for o in known if o.usd_per_hour == command.usd_per_hour), known[0])

    def _begin(self, command: StartTrial, at: float) -> None:
        before = self.widths.get(command.trial)
        self.restarts += before is not None
        self.resizes += before not in {None, command.width}
        self.widths[command.trial] = command.width
        session = Session(command, at, command.until_epoch, at)
        self.sessions.append(session)
        self.open[command.session] = session

    @staticmethod
    def _leave(lease: Lease, at: float) -> None:
        lease.left_at = at if lease.left_at is None else lease.left_at

    def _end_on(self, lease: Lease, at: float) -> None:
        """End what stood on a vanished instance, as the policy does: also its slices elsewhere."""
        for name, session in list(self.open.items()):
            if any(piece.instance == lease.instance for piece in session.start.placement):
                self.open.pop(name).end = at


def occupancy(entries: Iterable[Entry], offers: Iterable[Offer]) -> Occupancy:
    """Return who held what in a run; `offers` are those that it could rent.

    What has no end on record is taken to go on until the last entry.

    Raises:
        IndexError: it rented something else.
    """
    keyed: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in offers:
        keyed.setdefault(pool(offer), []).append(offer)
    reader, now = _Reader(keyed), 0.0
    for entry in entries:
        now = entry.event.at
        reader.hear(entry.event)
        for command in entry.commands:
            reader.follow(command, now)
        if any(isinstance(command, EndRun) for command in entry.commands):
            break  # the policy hears no more
    for session in reader.open.values():
        session.end = now
    leases = [lease for lease in reader.leases.values() if lease.launched]
    over = max((now if it.gone_at is None else it.gone_at for it in leases), default=now)
    return Occupancy(leases, reader.sessions, reader.began, over, reader.restarts, reader.resizes)
