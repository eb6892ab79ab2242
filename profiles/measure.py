"""Measuring how a script scales: a run like any other, driven by a policy of its own.

One instance is rented and filled with trials at each width in turn, so that what the trials of one
machine take from each other is in the figures. Pure, as every policy is: all that it learns comes
from events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from cloudtune.commands import EndRun, Launch, Release, SetTimer, StartTrial, StopTrial
from cloudtune.errors import CloudtuneError, NoCapacityError
from cloudtune.events import (
    EpochDone,
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
from cloudtune.fleet import FleetBook
from cloudtune.placement import free_gpus, place, slots
from cloudtune.scaling import Measurement, ScalingProfile
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.fleet import Rented
    from cloudtune.plan import Limits
    from cloudtune.trial import Slice, Trial, Width

_TICK = 1.0
_CLEANUP, _PATIENCE = 30.0, 10
"""Seconds until an unconfirmed release is repeated, and how often that is done."""


def widths_of(gpus: int) -> tuple[Width, ...]:
    """Return the widths worth measuring on one instance: 1, 2, 4 … and all its GPUs."""
    powers = [float(2**k) for k in range(gpus.bit_length()) if 2**k <= gpus]
    return tuple(sorted({*powers, float(gpus)}))


@dataclass
class _Session:
    """One trial at one width: when it was asked for, and what its epochs took."""

    trial: Trial
    width: Width
    asked_at: float
    resumed: bool
    placement: tuple[Slice, ...]
    first_at: float | None = None
    first_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    live: bool = True
    stopping: bool = False


@dataclass
class Figures:
    """Everything measured so far, in seconds."""

    launch: list[float] = field(default_factory=list)
    boot: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    resize: list[float] = field(default_factory=list)
    release: list[float] = field(default_factory=list)
    epoch: dict[Width, list[float]] = field(default_factory=dict)

    def profile(
        self, instance_type: str, script_hash: str, measured_at: str, source: str
    ) -> ScalingProfile:
        """Return the figures as a profile.

        Raises:
            ValueError: something was never measured.
        """
        return ScalingProfile(
            instance_type=instance_type,
            epoch={width: Measurement.of(found) for width, found in self.epoch.items()},
            launch=Measurement.of(self.launch),
            boot=Measurement.of(self.boot),
            start=Measurement.of(self.start),
            resize=Measurement.of(self.resize),
            release=Measurement.of(self.release),
            script_hash=script_hash,
            measured_at=measured_at,
            source=source,
        )


class MeasureError(CloudtuneError):
    """A measurement ended early; its exit code is that of the reason."""

    def __init__(self, message: str, reason: EndReason | None) -> None:
        super().__init__(message)
        self.reason = reason
        self.exit_code = reason.exit_code if reason else 1  # type: ignore[misc]


class MeasurePolicy:
    """Rents one instance, trains a few epochs at each width on it, and gives it back.

    `epochs` at each width, at least 2: the first of a session is reckoned to starting it as far
    as it is slower than the others (a GPU warms up). The last phase resumes from checkpoints in
    any case, so that a resize is measured even where there is one width.
    """

    def __init__(
        self,
        *,
        trials: Sequence[Trial],
        offer: Offer,
        limits: Limits,
        widths: Sequence[Width] | None = None,
        epochs: int = 4,
        drain: float = 6.0,
    ) -> None:
        assert epochs >= 2, "one epoch can't tell start from training"
        self.figures = Figures()
        self.ending: EndReason | None = None
        self.error: tuple[str, str] | None = None
        self.fleet = FleetBook()
        self._trials = trials
        self.offer = offer
        self._limits = limits
        self._drain = drain
        self._epochs = epochs
        measured = tuple(widths or widths_of(offer.gpus))
        self.phases: tuple[Width, ...] = measured if len(measured) > 1 else measured * 2
        self._phase = -1
        self._sessions: dict[str, _Session] = {}
        self._checkpoints: dict[str, str] = {}
        self._asked_at = 0.0
        self._phase_began = 0.0
        self._released_at: float | None = None
        self._cleanups = 0
        self._joined = False
        self._over = False

    @property
    def last_epoch(self) -> int:
        """The epoch that every trial ends at."""
        return self._epochs * len(self.phases)

    def raise_if_failed(self) -> None:
        """Raise what kept the measurement from being finished.

        Raises:
            NoCapacityError: the cloud has no such instance now.
            CloudtuneError: anything else; the message says what.
        """
        if self.ending is EndReason.DONE:
            return
        error, traceback = self.error or (f"stopped: {self.ending and self.ending.value}", "")
        message = f"could not measure the script: {error}\n{traceback}".strip()
        if self.ending is EndReason.NO_CAPACITY:
            raise NoCapacityError(message)
        raise MeasureError(message, self.ending)

    def safe_until(self) -> float:
        """Return when the instance must be gone if nothing more is decided: at the deadline."""
        deadline = self._limits.deadline
        return math.inf if deadline is None else deadline

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        if self._over:
            return ()
        commands = [*self._note(event), *self._advance(event.at)]
        return tuple(commands)

    # ---- events --------------------------------------------------------------------------

    def _note(self, event: Event) -> Iterable[Command]:  # noqa: C901, PLR0912  one flat match
        match event:
            case RunStarted():
                return self._begin(event.at)
            case InstanceLaunched():
                rented = self.fleet[event.intent]
                rented.instance, rented.launched_at = event.instance, event.launched_at
                self.figures.launch.append(event.launched_at - self._asked_at)
            case NodeJoined():
                self._joined = True
                self.figures.boot.append(event.at - (self._rented.launched_at or 0.0))
            case NodeLost():
                self._fail("the node left the cluster", event.reason)
            case InstanceGone():
                self._note_gone(event)
            case LaunchFailed():
                self._rented.gone_at = event.at
                reason = EndReason.FAILED if event.permanent else EndReason.NO_CAPACITY
                self._fail(f"{event.code}: {event.message}", "", reason)
            case EpochDone():
                return self._note_epoch(event)
            case TrialStarted() | InterruptionNotice() | RunResumed():
                pass
            case TrialStopped():
                self._sessions[event.session].live = False
            case TrialFailed():
                self._sessions[event.session].live = False
                self._fail(event.error, event.traceback)
            case TrialLost():
                self._sessions[event.session].live = False
                self._fail(f"a worker was lost: {event.reason}", "")
            case TimerFired():
                return self._note_tick(event.at)
            case Interrupted():
                self.ending = self.ending or EndReason.INTERRUPTED
            case _:
                assert_never(event)
        return []

    @property
    def _rented(self) -> Rented:
        return next(iter(self.fleet))

    def _begin(self, at: float) -> Iterable[Command]:
        self._brake(at, self.offer.charge(_TICK + self._drain))
        if self.ending is not None:
            return []
        self._asked_at = at
        rented = self.fleet.request(self.offer, at)
        offer = self.offer
        launch = Launch(rented.intent, offer.instance_type.name, offer.market, offer.zone)
        return [SetTimer("tick", at + _TICK), launch]

    def _fail(self, error: str, traceback: str, reason: EndReason = EndReason.FAILED) -> None:
        if self.ending is None:
            self.ending, self.error = reason, (error, traceback)

    def _note_gone(self, event: InstanceGone) -> None:
        self._rented.gone_at = event.gone_at
        if self._released_at is None:
            self._fail("the instance went away", event.reason)
        else:
            self.figures.release.append(max(0.0, event.gone_at - self._released_at))

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        session = self._sessions[event.session]
        if event.checkpoint:
            self._checkpoints[session.trial.id] = event.checkpoint
        if session.first_at is None:
            session.first_at, session.first_seconds = event.at, event.seconds
            return []
        session.seconds.append(event.seconds)
        return []

    def _note_tick(self, at: float) -> Iterable[Command]:
        self._brake(at)
        return [SetTimer("tick", at + _TICK)]

    def _brake(self, at: float, fresh: float = 0.0) -> None:
        """End it while all can be given back within the limits; `fresh` is about to be spent."""
        ahead = at + _TICK + self._drain
        if self._limits.deadline is not None and ahead >= self._limits.deadline:
            self.ending = self.ending or EndReason.DEADLINE
        dollars = self.fleet.dollars(ahead) + fresh
        if self._limits.budget is not None and dollars > self._limits.budget:
            self.ending = self.ending or EndReason.BUDGET

    # ---- decisions -----------------------------------------------------------------------

    def _advance(self, at: float) -> Iterable[Command]:
        if self.ending is not None:
            return self._wind_down(at)
        if not self._joined:
            return []
        live = [session for session in self._sessions.values() if session.live]
        if not live:
            return self._next_phase(at)
        trained = all(len(session.seconds) == self._epochs - 1 for session in live)
        if trained and not any(session.stopping for session in live):
            self._phase_began = at
            return self._stop_all()
        return []

    def _next_phase(self, at: float) -> Iterable[Command]:
        self._phase += 1
        if self._phase == len(self.phases):
            self._summarise()
            self.ending = EndReason.DONE
            return self._wind_down(at)
        width = self.phases[self._phase]
        count = min(len(self._trials), slots(width, self.offer.gpus, 1))
        return [self._start(trial, width, at) for trial in self._trials[:count]]

    def _start(self, trial: Trial, width: Width, at: float) -> Command:
        instance = self._rented.instance or ""
        taken = [p for s in self._sessions.values() if s.live for p in s.placement]
        placement = place(width, self.offer.gpus, free_gpus({instance: self.offer.gpus}, taken))
        assert placement is not None, "a phase never asks for more than the instance has"
        session = f"{trial.id}.{self._phase + 1}"
        asked_at = self._phase_began if self._phase else at
        self._sessions[session] = _Session(trial, width, asked_at, self._phase > 0, placement)
        checkpoint = self._checkpoints.get(trial.id)
        start = self._phase * self._epochs if checkpoint else 0
        until = start + self._epochs
        return StartTrial(
            session, trial.id, trial.config, width, placement, checkpoint, start, until
        )

    def _stop_all(self) -> Iterable[Command]:
        """End what is live, and is not being ended already."""
        ending = {n: s for n, s in self._sessions.items() if s.live and not s.stopping}
        for session in ending.values():
            session.stopping = True
        return [StopTrial(name) for name in ending]

    def _summarise(self) -> None:
        """Split what each session took into training and getting there."""
        for session in self._sessions.values():
            epochs = self.figures.epoch.setdefault(session.width, [])
            epochs.extend(session.seconds)
            assert session.first_at is not None
            steady = min(session.first_seconds, sum(session.seconds) / len(session.seconds))
            overhead = session.first_at - steady - session.asked_at
            (self.figures.resize if session.resumed else self.figures.start).append(overhead)

    def _wind_down(self, at: float) -> Iterable[Command]:
        commands: list[Command] = []
        if self._released_at is None:
            self._released_at = at
            commands += self._stop_all()
            commands += [Release(rented.intent) for rented in self.fleet.alive()]
        elif at >= self._released_at + _CLEANUP * (self._cleanups + 1):
            self._cleanups += 1
            commands += [Release(rented.intent) for rented in self.fleet.alive()]
        if not self.fleet.alive() or self._cleanups > _PATIENCE:
            self._over = True
            assert self.ending is not None
            commands.append(EndRun(self.ending))
        return commands
