"""What a run knows: every event is taken down here, before anything is decided about it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from cloudtune.capacity import NO_CAPACITY, QUOTA
from cloudtune.commands import Command, Release, SetTimer, StopTrial
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
from cloudtune.fleet import FleetBook, Trouble
from cloudtune.placement import rooms
from cloudtune.plan import Charges
from cloudtune.progress import OVER, Best, Record, TrialProgress
from cloudtune.trial import EndReason, rank_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.placement import Room
    from cloudtune.plan import Limits
    from cloudtune.progress import Status
    from cloudtune.trial import Mode, Slice, Trial


@dataclass(frozen=True)
class Brakes:
    """How the policy keeps the limits, in seconds.

    `tick`: how often it looks. `drain`: what giving an instance back may take; so much before
    the deadline, or before the budget's last cent, the run winds down. `avoid`: how long a pool
    without capacity is not asked again; `relaunch`: how long any other launch that failed isn't
    repeated. After so many rounds of `refusals` a run ends that has no instances to train a single
    trial on. `cleanup`: how often a release is repeated that the
    cloud has not confirmed, `patience` times at most. `losses`: how often a trial's workers may
    vanish without an epoch in between. `join`: how long an instance may take to join before it is
    given back; as many as `refusals` that never do, and a run that can't train ends as failed.
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


@dataclass(frozen=True)
class Metric:
    """The name of the metric that decides, and whether more of it is better."""

    name: str
    mode: Mode


class Books:
    """The trials and the instances of a run, kept up to date event by event."""

    def __init__(
        self,
        *,
        trials: Iterable[Trial],
        metric: Metric,
        limits: Limits,
        brakes: Brakes | None = None,
        charges: Charges | None = None,
        zones: Sequence[str] = (),
    ) -> None:
        """`zones` are those that an offer without one is asked for in, where any won't do."""
        self.zones = tuple(zones)
        self.metric = metric
        self.limits = limits
        self.brakes = brakes or Brakes()
        self.charges = charges or Charges()
        self.now = 0.0
        self.began: float | None = None
        self.fleet = FleetBook()
        self.trials = {trial.id: TrialProgress(trial) for trial in trials}
        self.record = Record(metric.mode)
        self.ending: EndReason | None = None
        self.winding_down = False
        self.ended = False
        self.troubles: dict[Offer, Trouble] = {}
        self.disturbed = False
        self.trouble = ""
        self.cleanups = 0

    # ---- what others may look at ---------------------------------------------------------

    @property
    def best(self) -> Best | None:
        """The best epoch so far."""
        return self.record.best

    def spent(self, at: float) -> float:
        """Return the bill if everything were given back at that time."""
        charges = self.charges
        until = min(at, self.over_at) if self.ended else at
        running = 0.0 if self.began is None else max(0.0, until - self.began)
        launches = self.fleet.launches * charges.usd_per_launch
        return self.fleet.dollars(at) + launches + running * charges.usd_per_second

    @property
    def over_at(self) -> float:
        """When the last instance stopped billing; now where one still does, or none ever was."""
        gone = [rented.gone_at for rented in self.fleet if rented.launched]
        return max((self.now if at is None else at for at in gone), default=self.now)

    def ranking(self) -> list[TrialProgress]:
        """Return all trials, the furthest and then the best first."""
        mode = self.metric.mode
        return sorted(
            self.trials.values(), key=lambda t: (-t.epoch, rank_key(mode, t.metric), t.id)
        )

    def first_error(self) -> TrialProgress | None:
        """Return the failed trial that a person should look at first."""
        return next((t for t in self.trials.values() if t.error), None)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self._check_rooms()
        alive = Counter(rented.offer for rented in self.fleet.alive())
        assert self._admits(alive), f"{alive.total()} instances at once: {alive}"
        for trial in self.trials.values():
            assert trial.checkpoint_epoch <= trial.epoch, f"{trial.id}: checkpoint from the future"
            assert trial.live == bool(trial.placement), f"{trial.id}: {trial.status} on a slot"
        if self.ended:
            assert not self.fleet.alive() or self.cleanups > self.brakes.patience

    def _check_rooms(self) -> dict[str, Room]:
        """Return what is free on instances of which something is kept: no GPU has too much."""
        kept = self._kept()
        names = {piece.instance for piece in kept}
        has = {r.instance: r.offer.gpus for r in self.fleet if r.instance in names}
        found = rooms(has, kept)
        assert found.keys() == names, f"{names - found.keys()} were never rented"
        for name, room in found.items():
            assert not room.overfull(), f"{name} holds more trials than fit: {room.shared}"
        return found

    # ---- what each policy says for itself ------------------------------------------------

    def _admits(self, alive: Counter[Offer]) -> bool:
        """Whether so many instances may be alive at once."""
        raise NotImplementedError

    def _rung_of(self, trial: TrialProgress) -> int:
        """Return the epoch up to which a trial is to train for now."""
        raise NotImplementedError

    def _note_begin(self) -> list[Command]:
        """Take note of the begin of the run."""
        return self._next_tick()

    def _next_tick(self) -> list[Command]:
        """Look again in a while."""
        return [SetTimer("tick", self.now + self.brakes.tick)]

    # ---- what both halves use ------------------------------------------------------------

    def _taken(self) -> Sequence[Slice]:
        return [piece for trial in self.trials.values() for piece in trial.placement]

    def _kept(self) -> Sequence[Slice]:
        """Return what is taken, and what is reserved besides."""
        return self._taken()

    def _end(self, reason: EndReason) -> None:
        if self.ending is None:
            self.ending = reason

    def _stop(self, trial: TrialProgress, after: Status) -> Command:
        trial.status, trial.after = "stopping", after
        if after == "waiting":
            trial.offer = None
        return StopTrial(trial.session)

    # ---- events --------------------------------------------------------------------------

    def _note(self, event: Event) -> Iterable[Command]:  # noqa: C901, PLR0912  one flat match
        match event:
            case RunStarted():
                self.began = event.at
                return self._note_begin()
            case InstanceLaunched():
                rented = self.fleet[event.intent]
                rented.instance, rented.launched_at = event.instance, event.launched_at
                self._trouble(rented.offer).refusals = 0
            case NodeJoined():
                self.fleet[event.intent].joined = True
                self._trouble(self.fleet[event.intent].offer).no_shows = 0
            case NodeLost():
                self.fleet[event.intent].surplus = True
                return self._drop_sessions_on(event.intent, event.reason)
            case InterruptionNotice():
                self._note_notice(event)
            case InstanceGone():
                self._note_gone(event)
                return self._drop_sessions_on(event.intent, event.reason)
            case LaunchFailed():
                self._note_refusal(event)
            case TrialStarted():
                self._note_started(event.session)
            case EpochDone():
                return self._note_epoch(event)
            case TrialStopped():
                self._note_stopped(event.session)
            case TrialFailed():
                self._note_failed(event)
            case TrialLost():
                self._note_lost(event.session, event.reason, blameless=event.blameless)
            case TimerFired():
                return self._note_timer(event)
            case Interrupted():
                self._end(EndReason.INTERRUPTED)
            case RunResumed():
                pass  # what its controller missed comes as any other event
            case _:
                assert_never(event)
        return []

    # ---- … of instances

    def _drop_sessions_on(self, intent: str, reason: str) -> Iterable[Command]:
        """Stop what stood on a vanished instance; other slices of it may live elsewhere."""
        instance = self.fleet[intent].instance
        for trial in self.trials.values():
            if trial.live and any(piece.instance == instance for piece in trial.placement):
                if trial.status != "stopping":
                    yield StopTrial(trial.session)
                self._note_lost(trial.session, reason, by_cloud=True)

    def _zones(self, offer: Offer) -> tuple[str, ...]:
        """Return where an offer can be asked for; "" leaves it to the cloud."""
        return (offer.zone,) if offer.zone else ("", *self.zones)

    def avoided(self, offer: Offer) -> bool:
        """Whether an offer isn't asked for now: it was refused everywhere a short while ago."""
        trouble = self.troubles.get(offer)
        return trouble is not None and (trouble.for_good or self.now < trouble.relaunch_at)

    def _trouble(self, offer: Offer) -> Trouble:
        return self.troubles.setdefault(offer, Trouble())

    def _note_refusal(self, event: LaunchFailed) -> None:
        rented = self.fleet[event.intent]
        rented.gone_at = event.at
        if rented.released:
            return
        trouble, self.disturbed = self._trouble(rented.offer), True
        among = self._zones(rented.offer)
        if event.code in NO_CAPACITY:
            refusing = among if event.code in QUOTA else (rented.zone,)
            trouble.refuse(refusing, among, event.at, self.brakes.avoid)
        else:
            trouble.refuse(among, among, event.at, self.brakes.relaunch)
        if event.permanent:
            trouble.for_good = True
            self.trouble = f"{event.code}: {event.message}"

    def _note_notice(self, event: InterruptionNotice) -> None:
        """Start nothing more there; another one may take its place."""
        self.fleet[event.intent].surplus = self.disturbed = True

    def _note_gone(self, event: InstanceGone) -> None:
        """Take note of an end; one that comes before the instance joined may come again."""
        rented = self.fleet[event.intent]
        rented.gone_at = event.gone_at
        if rented.released:
            return
        self.disturbed = True
        if not rented.joined:
            self._trouble(rented.offer).note_end(event.at, self.brakes.relaunch)
            self.trouble = f"{rented.instance} ended before it joined: {event.reason}"

    def _note_timer(self, event: TimerFired) -> Iterable[Command]:
        if event.name == "tick":
            self._note_no_shows()
            again = [] if self.winding_down else self._release_again()
            return [*again, *self._next_tick()]
        assert event.name == "cleanup", f"nobody set a timer named {event.name!r}"
        self.cleanups += 1
        again = [Release(rented.intent) for rented in self.fleet.alive()]
        return [*again, SetTimer("cleanup", event.at + self.brakes.cleanup)]

    def _release_again(self) -> list[Release]:
        """Return what was given back a while ago, and hasn't been confirmed to be gone."""
        late = [
            rented
            for rented in self.fleet.alive()
            if rented.released and self.now >= rented.released_at + self.brakes.cleanup
        ]
        for rented in late:
            rented.released_at = self.now
        return [Release(rented.intent) for rented in late]

    def _note_no_shows(self) -> None:
        """Give up on instances that should have joined by now."""
        for rented in self.fleet.wanted():
            if not rented.joined and self.now > rented.requested_at + self.brakes.join:
                rented.surplus, self.disturbed = True, True
                self._trouble(rented.offer).no_shows += 1
                self.trouble = f"{rented.instance} never joined the cluster"

    # ---- … of trials

    def _session(self, session: str) -> TrialProgress | None:
        """Return the trial whose current session that is; None for a session of the past."""
        trial = self.trials[session.rpartition(".")[0]]
        return trial if trial.live and trial.session == session else None

    def _note_started(self, session: str) -> None:
        trial = self._session(session)
        if trial is not None and trial.status == "starting":
            trial.status = "training"

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        trial = self._session(event.session)
        if trial is None or event.epoch <= trial.epoch:
            return []  # of a session that is over, or told a second time
        metric = event.metrics.get(self.metric.name, math.nan)
        if trial.status == "stopping":
            # Nobody waits for it any more, but a result that is saved is a result.
            if event.checkpoint is not None and not math.isnan(metric):
                self.record.offer(Best(trial.id, event.epoch, metric, event.checkpoint))
            return []
        trial.record(event, metric)
        if math.isnan(metric):
            trial.error = f"{self.metric.name} was nan at epoch {event.epoch}"
            return [self._stop(trial, "failed")]
        self.record.offer(Best(trial.id, event.epoch, metric, event.checkpoint))
        # "training" already now: the last worker may say that it is set up after the first epoch.
        at_rung = event.epoch >= self._rung_of(trial)
        trial.status = "at rung" if at_rung else "training"
        return []

    def _note_stopped(self, session: str) -> None:
        trial = self._session(session)
        if trial is not None:
            self._leave(trial, trial.after)

    def _note_failed(self, event: TrialFailed) -> None:
        trial = self._session(event.session)
        if trial is None:
            return
        if trial.status == "stopping" and trial.after in OVER:
            self._leave(trial, trial.after)  # it was over already; how it ended doesn't matter
            return
        if event.out_of_memory and trial.width < 1:
            # Its share of the GPU was too small for it; that says nothing against the script.
            trial.least_width = min(1.0, 2 * trial.width)
            self._leave(trial, "waiting")
            return
        self._leave(trial, "failed")
        trial.error, trial.traceback = event.error, event.traceback

    def _note_lost(
        self, session: str, reason: str, *, by_cloud: bool = False, blameless: bool = False
    ) -> None:
        trial = self._session(session)
        if trial is None:
            return
        if trial.status == "stopping":
            self._leave(trial, trial.after)
            return
        # What the cloud takes says little about the script; but it can't go on for ever either.
        trial.losses += not (by_cloud or blameless)
        trial.taken += by_cloud
        if trial.losses > self.brakes.losses or trial.taken > 10 * self.brakes.losses:
            self._leave(trial, "failed")
            trial.error = f"lost {trial.losses + trial.taken} times: {reason}"
        else:
            self._leave(trial, "waiting")

    def _leave(self, trial: TrialProgress, status: Status) -> None:
        """Take a trial off its GPUs; one that is to go on falls back to its last checkpoint."""
        trial.status, trial.placement = status, ()
        if status == "waiting":
            trial.rewind()
            if trial.epoch >= self._rung_of(trial):
                trial.status = "parked"  # nothing is left to train before the rung
            else:
                trial.offer = None
