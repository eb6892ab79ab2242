"""Measuring how a script scales: a run like any other, driven by a policy of its own.

A single instance is rented and filled with trials at each width in turn, so that what the trials of
one machine take from each other is in the figures; whole GPUs first, then, if wanted, shares of
one, from wide to narrow. Pure, as every policy is: all that it learns comes from events.
"""

from __future__ import annotations

import itertools
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
from cloudtune.placement import place, rooms, slots
from cloudtune.plan import Charges
from cloudtune.policy.base import Brakes
from cloudtune.policy.limits import LimitKeeper
from cloudtune.profiles.measurements import Figures, packed_widths, widths_of
from cloudtune.trial import EndReason, Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.fleet import Rented
    from cloudtune.plan import Limits
    from cloudtune.trial import Slice, Width


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
    memory: float | None = None
    live: bool = True
    stopping: bool = False


class MeasureError(CloudtuneError):
    """A measurement ended early; its exit code is that of the reason."""

    def __init__(self, message: str, reason: EndReason | None) -> None:
        super().__init__(message)
        self.reason = reason
        self.exit_code = reason.exit_code if reason else 1  # type: ignore[misc]


class MeasurePolicy:
    """Rents one instance, trains a few epochs at each width on it, and gives it back.

    `epochs` at each width, at least 2: the first of a session is reckoned to starting it as far
    as it is slower than the others (a GPU warms up). The last phase of whole GPUs resumes from
    checkpoints in any case, so that a resize is measured even where there is one width.

    Up to `pack` trials share a GPU. A share at which a trial runs out of memory, or which the
    limits leave no room for, is left out with all narrower ones (`left_out` says so); of whole
    GPUs nothing is. How long a trial takes to start is measured on whole GPUs alone.
    """

    def __init__(
        self,
        *,
        trials: Sequence[Trial],
        offer: Offer,
        limits: Limits,
        widths: Sequence[Width] | None = None,
        epochs: int = 4,
        pack: int = 1,
        brakes: Brakes | None = None,
        charges: Charges | None = None,
    ) -> None:
        assert epochs >= 2, "one epoch can't tell start from training"
        self.figures = Figures()
        self.ending: EndReason | None = None
        self.error: tuple[str, str] | None = None
        self.fleet = FleetBook()
        self.limits = limits
        self.brakes = brakes or Brakes()
        self.charges = charges or Charges()
        self.now = 0.0
        self._limits = LimitKeeper(self)
        self._trials = trials
        self.offer = offer
        self._epochs = epochs
        measured = tuple(widths or widths_of(offer.gpus))
        whole = measured if len(measured) > 1 else measured * 2
        self.phases: tuple[Width, ...] = (*whole, *packed_widths(pack))
        self.left_out = ""
        self._phase = -1
        self._sessions: dict[str, _Session] = {}
        self._checkpoints: dict[str, tuple[int, str]] = {}
        self._asked_at = 0.0
        self._phase_began = 0.0
        self._released_at: float | None = None
        self._cleanups = 0
        self._joined = False
        self._over = False

    @property
    def last_epoch(self) -> int:
        """The epoch that no trial trains beyond."""
        return sum(map(self._epochs_at, self.phases))

    def _epochs_at(self, width: Width) -> int:
        """Return the epochs of a phase, with one to spare for trials that share GPUs.

        In it those that are ready first go on training beside the others, which would else be
        measured on a GPU that they have to themselves in the end.
        """
        return self._epochs + (width < 1)

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

    def spent(self, at: float) -> float:
        """Return the bill in dollars if the instance were given back at that time (run second)."""
        launches = self.fleet.launches * self.charges.usd_per_launch
        return self.fleet.dollars(at) + launches + at * self.charges.usd_per_second

    def safe_until(self) -> float:
        """Return when the instance must be gone if nothing more is decided; inf: never."""
        return self._limits.safe_until()

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        if self._over:
            return ()
        self.now = event.at
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
                self._note_failed(event)
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
        offer, reached = self.offer, self._limits.reached()
        if reached is None and not self._limits.affordable([offer]):
            reached = EndReason.BUDGET
        if reached is not None:
            self._run_out(reached)
            return []
        self._asked_at = at
        rented = self.fleet.request(offer, at)
        launch = Launch(rented.intent, offer.instance_type.name, offer.market, offer.zone)
        return [SetTimer("tick", at + self.brakes.tick), launch]

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
            self._checkpoints[session.trial.id] = (event.epoch, event.checkpoint)
        if event.memory_mib is not None:
            session.memory = max(event.memory_mib, session.memory or 0.0)
        if session.first_at is None:
            session.first_at, session.first_seconds = event.at, event.seconds
        elif len(session.seconds) < self._epochs - 1:
            session.seconds.append(event.seconds)
        return []

    def _note_failed(self, event: TrialFailed) -> None:
        session = self._sessions[event.session]
        session.live = False
        if event.out_of_memory and session.width < 1:
            self._leave_out("a trial ran out of memory")
        else:
            self._fail(event.error, event.traceback)

    def _leave_out(self, why: str) -> None:
        """End it with what was measured before this share of a GPU."""
        if self.ending is None:
            trials = round(1 / self.phases[self._phase])
            self.left_out = f"{trials} or more trials on a GPU left out: {why}"
            self.ending = EndReason.DONE

    def _note_tick(self, at: float) -> Iterable[Command]:
        """End it while all can be given back within the limits."""
        if (reached := self._limits.reached()) is not None:
            self._run_out(reached)
        return [SetTimer("tick", at + self.brakes.tick)]

    def _run_out(self, reason: EndReason) -> None:
        if self._phase >= 0 and self.phases[self._phase] < 1:
            self._leave_out(f"the {reason.value} was reached")
        self.ending = self.ending or reason

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
            self._summarise(live)
            return self._stop_all()
        return []

    def _next_phase(self, at: float) -> Iterable[Command]:
        self._phase += 1
        if self._phase == len(self.phases):
            self.ending = EndReason.DONE
            return self._wind_down(at)
        width = self.phases[self._phase]
        crew = itertools.islice(self._crew(width), slots(width, self.offer.gpus, 1))
        return [self._start(trial, width, at) for trial in crew]

    def _crew(self, width: Width) -> Iterable[Trial]:
        """Yield the trials; where GPUs are shared, more of the same follow, to fill them all."""
        yield from self._trials
        for again in itertools.count(2) if width < 1 else ():
            for trial in self._trials:
                yield Trial(f"{trial.id}-{again}", trial.config)

    def _start(self, trial: Trial, width: Width, at: float) -> Command:
        instance = self._rented.instance or ""
        taken = [p for s in self._sessions.values() if s.live for p in s.placement]
        placement = place(width, self.offer.gpus, rooms({instance: self.offer.gpus}, taken))
        assert placement is not None, "a phase never asks for more than the instance has"
        session = f"{trial.id}.{self._phase + 1}"
        asked_at = self._phase_began if self._phase else at
        self._sessions[session] = _Session(trial, width, asked_at, self._phase > 0, placement)
        start, checkpoint = self._checkpoints.get(trial.id, (0, None))
        until = start + self._epochs_at(width)
        return StartTrial(
            session, trial.id, trial.config, width, placement, checkpoint, start, until
        )

    def _stop_all(self) -> Iterable[Command]:
        """End what is live, and is not being ended already."""
        ending = {n: s for n, s in self._sessions.items() if s.live and not s.stopping}
        for session in ending.values():
            session.stopping = True
        return [StopTrial(name) for name in ending]

    def _summarise(self, trained: Iterable[_Session]) -> None:
        """Split what each session took into training and getting there."""
        for session in trained:
            self.figures.add_epochs(session.width, session.seconds, session.memory)
            if session.width < 1:
                continue
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
        elif at >= self._released_at + self.brakes.cleanup * (self._cleanups + 1):
            self._cleanups += 1
            commands += [Release(rented.intent) for rented in self.fleet.alive()]
        if not self.fleet.alive() or self._cleanups > self.brakes.patience:
            self._over = True
            assert self.ending is not None
            commands.append(EndRun(self.ending))
        return commands
