"""A ledger, read once and in order: the instances, the sessions on them, and how each ended.

Where the money of a run went (`accounting`), what it achieved (`summary`, the report of a job) and
what a dead controller left behind (`resume`) are all computed from a `Timeline`. It has no prices,
no metric and no plan: callers pass them in. All times are in seconds of the run.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias, assert_never

from cloudtune.engine.ledger import Entry
from cloudtune.model import commands, events
from cloudtune.model.catalog import Offer, PoolName, pool
from cloudtune.model.trial import EndReason, Mode, TrialId, Width, better, has_diverged

# The events by which a session ends, and how.
SessionEnd: TypeAlias = events.TrialStopped | events.TrialFailed | events.TrialLost


@dataclass(eq=False)
class InstanceSpan:
    """One launch intent, from the request until the cloud says that billing has stopped.

    `joined_at` is when it first took trials, `left_at` when it was released or its node was lost,
    whichever came first; `joined` says whether it takes trials now. From `kept_at` on it was kept
    for a person, as a trial had failed there. A `refusal` ends it too, at `gone_at`.
    """

    intent: str
    launch: commands.Launch
    requested_at: float
    instance: str | None = None
    launched_at: float | None = None
    joined_at: float | None = None
    kept_at: float | None = None
    left_at: float | None = None
    gone_at: float | None = None
    joined: bool = False
    released: bool = False
    refusal: events.LaunchFailed | None = None

    @property
    def launched(self) -> bool:
        """Whether the instance was launched, or may have been: its request is unanswered."""
        return self.launched_at is not None or self.gone_at is None

    @property
    def began_at(self) -> float:
        """When the instance was launched; before that is known, when it was requested."""
        return self.requested_at if self.launched_at is None else self.launched_at

    def end(self, now: float) -> float:
        """Return when the instance stopped billing; `now` if no event says so."""
        return max(self.began_at, now if self.gone_at is None else self.gone_at)

    def leave(self, at: float) -> None:
        """Record that the instance takes no trials from a time on; the first such time counts."""
        self.left_at = at if self.left_at is None else self.left_at


@dataclass(slots=True, eq=False)  # a long run has very many
class EpochSpan:
    """A finished epoch, as first reported.

    It can't have begun before `after`. `waited` says whether the policy counts it: epochs of a
    session that is being stopped, or has ended, don't count.
    """

    session: "SessionSpan"
    report: events.EpochDone
    after: float
    waited: bool

    @property
    def number(self) -> int:
        """The number of the epoch, from 1."""
        return self.report.epoch

    @property
    def named(self) -> int:
        """The epoch that its report names: a later one, if the script only passed this one."""
        return self.report.of_epoch or self.number

    @property
    def trial(self) -> TrialId:
        return self.session.start.trial

    @property
    def width(self) -> Width:
        """The GPUs that trained it."""
        return self.session.start.width


@dataclass(eq=False)
class SessionSpan:
    """One start of a trial's workers; it may train to epoch `until`.

    The session held its GPUs from `begin` to `end`: until its end was reported (`ending`), or an
    instance vanished. The workers were set up at `started`, and asked to stop at `stopping`.
    The next epoch can't begin before `after`.
    """

    start: commands.StartTrial
    begin: float
    until: int
    after: float
    started: float | None = None
    stopping: float | None = None
    end: float = math.inf
    ending: SessionEnd | None = None
    epochs: list[EpochSpan] = field(default_factory=list)  # those that count
    last: int = 0  # the last reported epoch, or the one that it started from
    waited: bool = True  # whether its next epoch counts
    rests: list[tuple[float, float]] = field(default_factory=list)  # begin and end of each
    resting: float | None = None  # the time since which it waits at its rung, if it does

    @property
    def start_now(self) -> commands.StartTrial:
        """Its start, with the epoch that it may train to by now."""
        return replace(self.start, until_epoch=self.until)

    @property
    def waits(self) -> bool:
        """Whether the session has trained as far as it may, and waits for a grant or a stop."""
        done = self.epochs[-1].report.epoch if self.epochs else self.start.start_epoch
        return done >= self.until

    def busy_seconds(self, begin: float, end: float) -> float:
        """Return the seconds in a window in which the session had its GPUs and didn't rest.

        A bill by the function leaves out rests: from the epoch at its rung until the session may
        continue or is stopped.
        """
        until = min(self.end, end)
        whole = max(0.0, until - max(self.begin, begin))
        since = [] if self.resting is None else [(self.resting, math.inf)]
        rested = (min(b, until) - max(a, begin) for a, b in (*self.rests, *since))
        return whole - math.fsum(seconds for seconds in rested if seconds > 0)

    def rest(self, at: float) -> None:
        """Record that it has come as far as it may."""
        self.resting = at if self.resting is None else self.resting

    def go_on(self, at: float) -> None:
        if self.resting is not None:
            self.rests.append((self.resting, at))
            self.resting = None


class Restart(NamedTuple):
    """A session of a trial that had one before."""

    before: SessionSpan
    after: SessionSpan

    @property
    def resized(self) -> bool:
        return self.before.start.width != self.after.start.width


class Leg(NamedTuple):
    """A part of a run up to an end, and the event by which the run was resumed.

    Nothing billed from `over_at` until then.
    """

    over_at: float
    ended: EndReason
    event: events.RunContinued


@dataclass
class Timeline:
    """Everything that a ledger says about a run, as far as it was read.

    Instances are by intent and sessions by name, both in the order of the requests; epochs are in
    the order of their reports. `timers` have yet to fire. `at` is the time of the last event;
    nothing is read after the run has `ended`.
    """

    instances: dict[str, InstanceSpan] = field(default_factory=dict)
    sessions: dict[str, SessionSpan] = field(default_factory=dict)
    epochs: list[EpochSpan] = field(default_factory=list)
    notices: list[events.InterruptionNotice] = field(default_factory=list)
    recommendations: list[events.RebalanceRecommended] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)
    takeovers: list[float] = field(default_factory=list)
    began: float | None = None
    interrupted: float | None = None
    ended: EndReason | None = None
    at: float = 0.0
    legs: list[Leg] = field(default_factory=list)
    _open: dict[str, SessionSpan] = field(default_factory=dict)

    @property
    def over_at(self) -> float:
        """When billing stopped; for a run that isn't over, the time of the last event."""
        ends = (
            self.at if instance.gone_at is None else instance.gone_at
            for instance in self.launched_instances()
        )
        return max(ends, default=self.at)

    def running(self, at: float) -> float:
        """Return the seconds of the run until a time, without those between an end and a resume."""
        if self.began is None:
            return 0.0
        paused = sum(max(0.0, min(at, leg.event.at) - leg.over_at) for leg in self.legs)
        return max(0.0, at - self.began - paused)

    def launched_instances(self) -> list[InstanceSpan]:
        return [instance for instance in self.instances.values() if instance.launched]

    def used_dollars(
        self, offers: Mapping[str, Offer], begin: float = -math.inf, end: float = math.inf
    ) -> float:
        """Return the dollars of use in a window, if use is billed; `offers` by intent."""
        if not any(offer.per_function for offer in offers.values()):
            return 0.0
        rates = {
            instance.instance: offers[intent].used_usd_per_second
            for intent, instance in self.instances.items()
            if intent in offers
        }
        return math.fsum(
            piece.gpus * rates[piece.instance] * session.busy_seconds(begin, min(end, self.at))
            for session in self.sessions.values()
            for piece in session.start.placement
            if piece.instance in rates
        )

    def restarts(self) -> Iterator[Restart]:
        """Yield every session of a trial that had one before, with the earlier one."""
        before: dict[TrialId, SessionSpan] = {}
        for session in self.sessions.values():
            trial = session.start.trial
            if trial in before:
                yield Restart(before[trial], session)
            before[trial] = session

    def sync_counts(self) -> dict[TrialId, tuple[int, int]]:
        """Return, for each trial with several ranks, epochs in sync and epochs checked."""
        synced: dict[TrialId, tuple[int, int]] = {}
        for epoch in self.epochs:
            if epoch.report.in_sync is not None:
                equal, checked = synced.get(epoch.trial, (0, 0))
                synced[epoch.trial] = (equal + epoch.report.in_sync, checked + 1)
        return synced

    def final_epochs(self) -> dict[tuple[TrialId, int], EpochSpan]:
        """Return the epochs that count, by trial and number: the last report of repeated ones.

        They include saved epochs that no decision depended on any more, but none that a script only
        passed.
        """
        reported = [epoch for epoch in self.epochs if not epoch.report.of_epoch]
        return {(e.trial, e.number): e for e in reported if e.waited or _late(e)}

    def improvements(self, metric: str, mode: Mode) -> list[EpochSpan]:
        """Return the epochs that were the best so far when they were reported, in order.

        Those of trials that diverge later aren't among them.
        """
        path: list[EpochSpan] = []
        best: float | None = None
        values = [(e, e.report.metrics.get(metric, math.nan)) for e in self.epochs if e.waited]
        lost = {epoch.trial for epoch, value in values if has_diverged(value)}
        for epoch, value in values:
            if epoch.trial not in lost and better(mode, value, best):
                best = value
                path.append(epoch)
        return path

    def fleet_sizes(self) -> tuple[tuple[float, int], ...]:
        """Return the number of billing instances after each change."""
        launched = [
            instance for instance in self.instances.values() if instance.launched_at is not None
        ]
        starts = [(instance.began_at, 1) for instance in launched]
        ends = [(instance.gone_at, -1) for instance in launched if instance.gone_at is not None]
        size = 0
        sizes = []
        for at, change in sorted([*starts, *ends]):
            size += change
            sizes.append((at, size))
        return tuple(sizes)

    def read(self, entry: Entry) -> None:
        """Record the next entry of the ledger; after an end only a resume counts."""
        if self.ended is not None and not isinstance(entry.event, events.RunContinued):
            return
        over_at = self.over_at if self.ended else 0.0
        self.at = entry.event.at
        if isinstance(entry.event, events.RunContinued) and self.ended is not None:
            self.legs.append(Leg(over_at, self.ended, entry.event))
            self.ended = self.interrupted = None
            self.timers.clear()  # those of the previous leg never fire
        self._hear(entry.event)
        for command in entry.commands:
            self._follow(command, self.at)

    def _hear(self, event: events.Event) -> None:  # noqa: C901, PLR0912  one flat match
        if isinstance(event, events.SessionEvent) and event.session not in self.sessions:
            return
        if isinstance(event, events.InstanceEvent) and event.intent not in self.instances:
            return
        match event:  # the most frequent one first
            case events.EpochDone():
                self._hear_epoch(self.sessions[event.session], event)
            case events.TrialStarted():
                session = self.sessions[event.session]
                session.started = event.at if session.started is None else session.started
            case events.TrialStopped() | events.TrialFailed() | events.TrialLost():
                session = self.sessions[event.session]
                session.ending = event if session.ending is None else session.ending
                self._close(event.session, event.at)
            case events.TimerFired():
                self.timers.pop(event.name, None)
            case events.InstanceLaunched():
                instance = self.instances[event.intent]
                instance.instance = event.instance
                instance.launched_at = event.launched_at
            case events.NodeJoined():
                instance = self.instances[event.intent]
                instance.joined = True
                instance.joined_at = event.at if instance.joined_at is None else instance.joined_at
            case events.NodeLost():
                instance = self.instances[event.intent]
                instance.joined = False
                instance.leave(event.at)
                self._close_on(instance, event.at)
            case events.InstanceGone():
                instance = self.instances[event.intent]
                instance.gone_at = event.gone_at
                self._close_on(instance, event.at)
            case events.LaunchFailed():
                instance = self.instances[event.intent]
                instance.gone_at = event.at
                instance.refusal = event
            case events.InterruptionNotice():
                self.notices.append(event)
            case events.RebalanceRecommended():
                self.recommendations.append(event)
            case events.RunStarted():
                self.began = event.at
            case events.RunResumed():
                self.takeovers.append(event.at)
            case events.InstanceBooting() | events.RunContinued():
                pass  # the first is for people; `read` has handled the other
            case events.Interrupted():
                self.interrupted = event.at
            case _:
                assert_never(event)

    def _hear_epoch(self, session: SessionSpan, event: events.EpochDone) -> None:
        if event.epoch <= session.last:
            return  # reported before: the first time counts
        session.last = event.epoch
        epoch = EpochSpan(session, event, session.after, session.waited)
        self.epochs.append(epoch)
        if session.waited:
            session.epochs.append(epoch)
            if session.waits:
                session.rest(event.at)

    def _close(self, name: str, at: float) -> None:
        session = self._open.pop(name, None)
        if session is not None:
            session.end = at
            session.waited = False
            session.go_on(at)

    def _close_on(self, instance: InstanceSpan, at: float) -> None:
        """End the sessions with any slice on a vanished instance, as the policy does."""
        for name, session in tuple(self._open.items()):
            if any(piece.instance == instance.instance for piece in session.start.placement):
                self._close(name, at)

    def _follow(self, command: commands.Command, at: float) -> None:  # noqa: C901  one flat match
        match command:
            case commands.SetTimer():
                self.timers[command.name] = command.at
            case commands.ExtendTrial() | commands.StopTrial():
                session = self.sessions.get(command.session)
                if session is not None:
                    _change(session, command, at)
            case commands.StartTrial():
                span = SessionSpan(command, at, command.until_epoch, at, last=command.start_epoch)
                self.sessions[command.session] = self._open[command.session] = span
            case commands.Launch():
                asked = InstanceSpan(command.intent, command, at)
                self.instances.setdefault(command.intent, asked)
            case commands.Release():
                if command.intent in self.instances:
                    self.instances[command.intent].released = True
                    self.instances[command.intent].leave(at)
            case commands.KeepInstance():
                if command.intent in self.instances:
                    self.instances[command.intent].kept_at = at
            case commands.PlanAnew():
                pass  # it is on record, and nothing is to be done
            case commands.EndRun():
                self.ended = command.reason
            case _:
                assert_never(command)


def _late(epoch: EpochSpan) -> bool:
    return epoch.report.checkpoint is not None and epoch.report.at < epoch.session.end


def _change(
    session: SessionSpan, command: commands.ExtendTrial | commands.StopTrial, at: float
) -> None:
    """Record a grant or a stop.

    A session that waited at its rung can't begin its next epoch before the grant; one that still
    trains doesn't wait for it.
    """
    if isinstance(command, commands.StopTrial):
        session.stopping = at if session.stopping is None else session.stopping
        session.waited = False
        session.go_on(at)
        return
    session.after = max(session.after, at) if session.waits else session.after
    session.go_on(at)
    session.until = max(session.until, command.until_epoch)


def read(entries: Iterable[Entry]) -> Timeline:
    """Return the timeline of a ledger, from its entries in order."""
    timeline = Timeline()
    for entry in entries:
        timeline.read(entry)
    return timeline


def levels(changes: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the running sum of changes, at each time at which it changes.

    Args:
        changes: (time, change), in any order.
    """
    by_time: dict[float, list[float]] = {}
    for at, change in changes:
        by_time.setdefault(at, []).append(change)
    result: list[tuple[float, float]] = []
    level = 0.0
    for at in sorted(by_time):
        level += math.fsum(by_time[at])
        shown = abs(round(level, 9))  # thirds of a GPU add up to a whole one, or to none
        if shown != (result[-1][1] if result else 0.0):
            result.append((at, shown))
    return result


def prices(timeline: Timeline, offers: Iterable[Offer]) -> Mapping[str, Offer]:
    """Return the offer of each instance by intent, at the price that the policy used.

    Raises:
        KeyError: the run rented an instance that isn't among the offers.
    """
    keyed: dict[PoolName, list[Offer]] = {}
    for offer in offers:
        keyed.setdefault(pool(offer), []).append(offer)
    return {name: _offer(keyed, instance.launch) for name, instance in timeline.instances.items()}


def _offer(keyed: Mapping[PoolName, list[Offer]], launch: commands.Launch) -> Offer:
    kind = launch.instance_type
    market = launch.market
    places = dict.fromkeys(((kind, market, launch.zone), (kind, market, "")))
    offers = [offer for place in places for offer in keyed.get(place, ())]
    if not offers:
        raise KeyError(kind, market, launch.zone)
    return next((offer for offer in offers if offer.usd_per_hour == launch.usd_per_hour), offers[0])
