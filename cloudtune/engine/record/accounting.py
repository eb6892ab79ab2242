"""Where the money of a run went: every billed GPU-second and every cent in one category.

    training     finished epochs that weren't repeated
    checkpoint   the seconds for which saving held them up
    start-up     instances that boot; trials whose workers are set up or ended
    barrier      trials that have trained as far as they may, and wait for a decision
    lost         epochs that weren't finished, or had to be repeated
    idle         free GPUs of instances that take trials
    kept         the same of an instance that a person may look at (`trial.keep_failed`)
    returning    free GPUs of instances that were released or lost, until they are gone
    minimum      what a minimum charge adds; `rounding`: what whole seconds add
    launches     charges per launch; `hourly`: charges per hour

The dollars add up to the bill that the policy computes (`RunState.spent`), the GPU-seconds to those
between launch and end of all instances.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from cloudtune.engine.ledger import Entry
from cloudtune.engine.record.timeline import (
    InstanceSpan,
    SessionSpan,
    Timeline,
    levels,
    prices,
    read,
)
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Charges
from cloudtune.model.trial import TrialId

Use: TypeAlias = Literal["training", "checkpoint", "start-up", "barrier", "lost"]
# The uses of a trial's GPUs.
USES: tuple[Use, ...] = ("training", "checkpoint", "start-up", "barrier", "lost")
CATEGORIES = (*USES, "idle", "kept", "returning", "minimum", "rounding", "launches", "hourly")
# Relative tolerance for sums of floats that should cancel out.
_NOISE = 1e-12
# Times are sums of floats: a shorter gap, in seconds, isn't one.
_NO_GAP = 1e-6


@dataclass(frozen=True)
class Amount:
    """Billed GPU-seconds, and dollars."""

    gpu_seconds: float = 0.0
    dollars: float = 0.0


def total(amounts: Iterable[Amount]) -> Amount:
    """Return the sum."""
    listed = list(amounts)
    return Amount(math.fsum(a.gpu_seconds for a in listed), math.fsum(a.dollars for a in listed))


@dataclass(frozen=True)
class InstanceAccount:
    """How one instance was used, from its launch to its end (`returned`: the end was reported).

    `boot` is the part of its start-up before it took trials. `busy` are the GPUs in epochs that
    count as training, after each change: (time, GPUs).
    """

    intent: str
    instance: str | None
    offer: Offer
    begin: float
    end: float
    returned: bool
    amounts: Mapping[str, Amount]
    boot: Amount
    busy: tuple[tuple[float, float], ...]

    @property
    def whole(self) -> Amount:
        return total(self.amounts.values())

    @property
    def name(self) -> str:
        """The cloud's id of the instance, or that of its request if there is none yet."""
        return self.instance or self.intent

    @property
    def seconds(self) -> float:
        """The billed seconds."""
        return self.end - self.begin

    def dollars(self, at: float) -> float:
        """Return the cost of holding it if it is returned at a time (run second)."""
        return self.offer.charge(min(at, self.end) - self.begin) if at > self.begin else 0.0

    @property
    def added(self) -> float:
        """The part of its dollars charged per hour on top of its price: disk, address."""
        return self.offer.added_dollars(self.whole.dollars - self.amounts["launches"].dollars)

    @property
    def busy_share(self) -> float:
        """The share of its GPU-seconds in which trials trained."""
        return _share(self.amounts["training"].gpu_seconds, self.whole.gpu_seconds)


@dataclass(frozen=True)
class Accounting:
    """The bill of a run, by category (all of `CATEGORIES`), by instance and by trial.

    `boot` is part of the start-up. A trial's own account has only `USES`. `restarts` are starts of
    trials that had trained before; the `resizes` among them were at another width.
    """

    amounts: Mapping[str, Amount]
    boot: Amount
    instances: tuple[InstanceAccount, ...]
    trials: Mapping[TrialId, Mapping[str, Amount]]
    resizes: int
    restarts: int

    @property
    def whole(self) -> Amount:
        return total(self.amounts.values())

    @property
    def added(self) -> float:
        """The part of the dollars charged per instance hour on top of the price."""
        return math.fsum(instance.added for instance in self.instances)

    @property
    def busy_share(self) -> float:
        """The share of the billed GPU-seconds in which trials trained."""
        return _share(self.amounts["training"].gpu_seconds, self.whole.gpu_seconds)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


class _Held(NamedTuple):
    """GPUs of one instance during a time."""

    begin: float
    end: float
    gpus: float

    def within(self, begin: float, end: float) -> float:
        """Return the GPU-seconds in a window."""
        return self.gpus * max(0.0, min(self.end, end) - max(self.begin, begin))


@dataclass
class _Page:
    """The account of one instance in the making; `end` is when it stopped billing."""

    of: InstanceSpan
    offer: Offer
    end: float
    parts: dict[str, list[Amount]] = field(default_factory=lambda: defaultdict(list))
    held: list[_Held] = field(default_factory=list)
    trained: list[_Held] = field(default_factory=list)

    def amount(self, gpu_seconds: float) -> Amount:
        """Return GPU-seconds of the instance with their cost in dollars."""
        dollars = gpu_seconds * self.offer.held_usd_per_second / self.offer.gpus
        return Amount(gpu_seconds, dollars)

    def use(self, stretch: "Stretch", gpus: float, session: SessionSpan) -> Amount:
        """Book the use of some GPUs while the instance existed; return what was booked.

        If use is billed, a session's rests at its rungs aren't.
        """
        since = self.of.began_at
        until = self.end
        begin = max(stretch.begin, since)
        end = min(stretch.end, until)
        amount = self.amount(_Held(begin, end, gpus).within(since, until))
        if self.offer.per_function:
            used = (
                gpus
                * session.busy_seconds(stretch.begin, stretch.end)
                * self.offer.used_usd_per_second
            )
            amount = Amount(amount.gpu_seconds, used)
        self.parts[stretch.use].append(amount)
        if stretch.use == "training" and end > begin:
            self.trained.append(_Held(begin, end, gpus))
        return amount

    def close(self, charges: Charges) -> InstanceAccount:
        """Add what no session held, and what isn't charged by the second."""
        begin = self.of.began_at
        left = self._between(begin, self.of.left_at, self.end)
        joined = self._between(begin, self.of.joined_at, left)
        kept = self._between(joined, self.of.kept_at, left)
        boot = self.amount(self._free(begin, joined))
        self.parts["start-up"].append(boot)
        self.parts["idle"].append(self.amount(self._free(joined, kept)))
        self.parts["kept"].append(self.amount(self._free(kept, left)))
        self.parts["returning"].append(self.amount(self._free(left, self.end)))
        offer = self.offer
        lived = self.end - self.of.began_at
        least = max(lived, offer.minimum_seconds)
        rounded = offer.charge(lived) - least * offer.held_usd_per_second
        self.parts["minimum"].append(Amount(0.0, (least - lived) * offer.held_usd_per_second))
        self.parts["rounding"].append(Amount(0.0, max(0.0, rounded)))
        self.parts["launches"].append(Amount(0.0, charges.usd_per_launch))
        return InstanceAccount(
            intent=self.of.intent,
            instance=self.of.instance,
            offer=self.offer,
            begin=begin,
            end=self.end,
            returned=self.of.gone_at is not None,
            amounts={name: total(self.parts.get(name, ())) for name in CATEGORIES},
            boot=boot,
            busy=tuple(
                levels(
                    change
                    for use in self.trained
                    for change in ((use.begin, use.gpus), (use.end, -use.gpus))
                )
            ),
        )

    @staticmethod
    def _between(begin: float, at: float | None, end: float) -> float:
        return end if at is None else min(max(begin, at), end)

    def _free(self, begin: float, end: float) -> float:
        """Return the GPU-seconds in a window that no session held."""
        whole = self.offer.gpus * (end - begin)
        free = whole - math.fsum(use.within(begin, end) for use in self.held)
        return free if free > _NOISE * self.offer.gpus * self.end else 0.0


class Stretch(NamedTuple):
    """One use of a session's GPUs, with its begin and end in seconds of the run."""

    begin: float
    end: float
    use: Use


def stretches(session: SessionSpan, end: float, kept: float) -> Iterator[Stretch]:
    """Yield a session's stretches until its end, without gaps; epochs after `kept` count as lost.

    An epoch is reported when its checkpoint is in the storage, which may be while the next one
    trains, or only when another controller takes over. So each is assumed to have ended before the
    next began.
    """
    stop = end if session.stopping is None else min(session.stopping, end)
    cursor = session.begin
    gap: Use = "start-up"
    placed = list(_place_epochs(session, stop))
    if placed and session.started is not None and session.started < placed[0][0] - _NO_GAP:
        # Its first epoch was reported late, but its set-up had ended by then.
        yield Stretch(cursor, session.started, "start-up")
        cursor = session.started
        gap = "barrier"
    for epoch, (begin, done) in zip(session.epochs, placed, strict=True):
        yield Stretch(cursor, begin, gap)
        lost = epoch.number > kept
        saved = max(begin, done - epoch.report.saving)
        yield Stretch(begin, saved, "lost" if lost else "training")
        yield Stretch(saved, done, "lost" if lost else "checkpoint")
        cursor = done
        gap = "barrier"
    if not session.epochs:
        started = stop if session.started is None else min(session.started, stop)
        yield Stretch(cursor, started, "start-up")
        cursor = started
    yield Stretch(cursor, stop, "barrier" if session.waits else "lost")
    yield Stretch(stop, end, "start-up")


def _place_epochs(session: SessionSpan, stop: float) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each epoch, in order and without overlap.

    An epoch of unknown length gets the mean length of the session's others, from the earliest time
    at which it can have begun.
    """
    measured = [epoch.report.seconds for epoch in session.epochs if epoch.report.seconds > 0]
    usual = math.fsum(measured) / len(measured) if measured else math.inf
    cursor = session.begin
    for epoch, latest in zip(session.epochs, _latest(session, stop), strict=True):
        end = max(cursor, latest)
        if epoch.report.seconds > 0:
            begin = max(cursor, end - epoch.report.seconds)
        else:
            begin = min(end, max(cursor, epoch.after, session.started or 0.0))
            end = min(end, begin + usual)
        begin = cursor if begin - cursor < _NO_GAP else begin
        yield begin, end
        cursor = end


def _latest(session: SessionSpan, stop: float) -> list[float]:
    """Return the latest possible end of each epoch: its report, or the next one's begin."""
    ends: list[float] = []
    for epoch in reversed(session.epochs):
        ends.append(min(epoch.report.at, stop))
        stop = ends[-1] - epoch.report.seconds
    return ends[::-1]


def _final_sessions(timeline: Timeline) -> Iterator[tuple[SessionSpan, float]]:
    """Yield each session with the last of its epochs that its trial never repeated."""
    first: dict[TrialId, float] = {}
    kept: list[tuple[SessionSpan, float]] = []
    for session in reversed(timeline.sessions.values()):
        trial = session.start.trial
        begin = session.start.start_epoch
        kept.append((session, first.get(trial, math.inf)))
        first[trial] = min(first.get(trial, math.inf), begin)
    yield from reversed(kept)


def account(
    entries: Iterable[Entry], offers: Iterable[Offer], charges: Charges | None = None
) -> Accounting:
    """Return where the money of a recorded run went; `offers` are those that it could rent."""
    return compute_accounting(read(entries), offers, charges)


def compute_accounting(
    timeline: Timeline, offers: Iterable[Offer], charges: Charges | None = None
) -> Accounting:
    """Return where the money of a run went; `offers` are those that it could rent.

    For a run that isn't over, or whose last instances were never seen to go, it is the bill up to
    the last entry.
    """
    charges = charges or Charges()
    over_at = timeline.over_at
    priced = prices(timeline, offers)
    rented = timeline.launched_instances()
    pages = [_Page(instance, priced[instance.intent], instance.end(over_at)) for instance in rented]
    placed = {page.of.instance: page for page in pages if page.of.instance}
    trials: dict[TrialId, dict[str, list[Amount]]] = defaultdict(lambda: defaultdict(list))
    for session, end, did in uses(timeline):
        parts = trials[session.start.trial]
        for piece in session.start.placement:
            page = placed[piece.instance]
            page.held.append(_Held(session.begin, end, piece.gpus))
            for stretch in did:
                parts[stretch.use].append(page.use(stretch, piece.gpus, session))
    instances = tuple(page.close(charges) for page in pages)
    whole = {}
    for name in CATEGORIES:
        whole[name] = total(instance.amounts[name] for instance in instances)
    whole["hourly"] = Amount(0.0, charges.dollars(0, timeline.running(over_at)))
    restarts = list(timeline.restarts())
    return Accounting(
        amounts=whole,
        boot=total(instance.boot for instance in instances),
        instances=instances,
        trials={trial: _total_uses(parts) for trial, parts in trials.items()},
        resizes=sum(restart.resized for restart in restarts),
        restarts=len(restarts),
    )


def _total_uses(parts: Mapping[str, Iterable[Amount]]) -> dict[str, Amount]:
    """Return what a trial's uses add up to: all of `USES`."""
    return {name: total(parts.get(name, ())) for name in USES}


def uses(timeline: Timeline) -> Iterator[tuple[SessionSpan, float, list[Stretch]]]:
    """Yield each session, its end (or the last event) and its stretches until then, in order."""
    for session, kept in _final_sessions(timeline):
        end = min(session.end, timeline.at)
        did = stretches(session, end, kept)
        yield session, end, [stretch for stretch in did if stretch.end > stretch.begin]
