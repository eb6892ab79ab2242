"""Measuring how a script scales: a run like any other, with its own policy.

It rents an instance and fills it with trials at each width in turn, so that the timings include
what trials on one machine cost each other: whole GPUs first, then, if wanted, shares of one, from
wide to narrow. A width beyond one instance takes as many as it needs, all of them filled. Pure, as
every policy is: it learns everything from events.

It isn't a strategy of `RunPolicy`: that would replace what is lost or refused and move trials,
which would distort the timings; and it decides by a profile, which doesn't exist yet.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from cloudtune.errors import NoCapacityError
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import Command, EndRun, Launch, SetTimer, StartTrial, StopTrial
from cloudtune.model.events import (
    EpochDone,
    Event,
    InstanceBooting,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    InterruptionNotice,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RebalanceRecommended,
    RunContinued,
    RunResumed,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.fleet import FleetBook
from cloudtune.model.placement import place, rooms
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.text import count_noun, gpus_text
from cloudtune.model.trial import EndReason, Parallel, Slice, Trial, TrialId, Width
from cloudtune.model.units import format_seconds
from cloudtune.policy.base import Brakes, TrialRules
from cloudtune.policy.fleet_manager import CLEANUP, Returns
from cloudtune.policy.limits import LimitKeeper
from cloudtune.policy.widths import unsynced_text
from cloudtune.profiles.measurements import (
    TRIES,
    Failed,
    MeasuredFigures,
    MeasuredSession,
    MeasureError,
    MeasureWork,
    Phase,
    allowed_seconds,
    count_instances,
    crew,
    plan_phases,
    widths_to_measure,
)

# Allowed on top of three times the expected rest: only one start has been timed by then.
_SLACK_SECONDS = 600.0
_NOT_LEFT = (
    "--parallel: the script says itself how its workers share a model; write cloudtune."
    'prepare_model(model, parallel_strategy="auto"), at any number of GPUs, or leave --parallel out'
)
_CUT_SHORT = frozenset({EndReason.DEADLINE, EndReason.BUDGET, EndReason.INTERRUPTED})


@dataclass(kw_only=True, eq=False)
class MeasurePolicy:
    """Rents what the widest width needs, trains a few epochs at each width, and returns it.

    Epochs: `epochs` per width, at least 2. As far as a session's first epoch is slower than the
    others (a GPU warms up), it counts towards its start. The last phase of whole GPUs resumes from
    checkpoints, so that a resize is measured even with a single width. No trial trains beyond
    `max_epochs`: each width then gets fewer epochs, at least two, and a trial that would still pass
    it starts from scratch. With `alone`, a single trial trains on one GPU before everything else
    (`figures.alone`).

    Widths: up to `pack` trials share a GPU. A share is left out, with all narrower ones, if a trial
    fails at it or if the limits or the GPU's memory leave no room for it; with `only_known` also if
    a trial's memory is unknown. A width of whole GPUs is left out if every configuration tried
    failed at it or if not enough instances are available; all above one GPU if the workers of a
    trial don't train one model. `left_out` says what and why. Starts are timed on whole GPUs only.
    Each width above one GPU is measured with each of the `parallel` strategies, if any are given;
    the script must leave the strategy to the run.

    Limits: without a deadline, the node has `patience` seconds to join, the first epoch has as many
    again, and the rest three times what it should take. The rest is planned for a `share` of the
    remaining time and money, with fewer epochs if necessary. Once an epoch has been timed, the
    measurement ends before it costs more than `enough_usd` dollars. If a limit ends it, sessions
    with a single epoch count too.
    """

    trials: Sequence[Trial]
    offer: Offer
    limits: Limits
    widths: Sequence[Width] = ()
    epochs: int = 4
    pack: int = 1
    only_known: bool = False
    alone: bool = False
    brakes: Brakes = field(default_factory=Brakes)
    charges: Charges = field(default_factory=Charges)
    rules: TrialRules = field(default_factory=TrialRules)
    patience: float = 0.0
    share: float = 1.0
    enough_usd: float = math.inf
    max_epochs: float | None = None
    parallel: Sequence[Parallel] = ()

    def __post_init__(self) -> None:
        assert self.epochs >= 2, "one epoch can't tell start from training"
        self.figures = MeasuredFigures()
        self.failed: list[Failed] = []
        self.ending: EndReason | None = None
        self.error: tuple[str, str] | None = None
        self.fleet = FleetBook()
        self.now = 0.0
        self._limits = LimitKeeper(self)
        self._returns = Returns(self)
        self._extends = self.limits.deadline is None and self.patience > 0
        self._allow(self.patience)
        self._max_epochs = math.inf if self.max_epochs is None else max(2, self.max_epochs)
        self._epochs = int(min(self.epochs, max(2, self._max_epochs / 2)))
        widths = self.widths or widths_to_measure(self.offer.gpus)
        self._phases = plan_phases(widths, self.pack, self.parallel, alone=self.alone)
        self._phase = self._phases[0]
        self._begun: list[Phase] = []
        self._left_out: list[str] = []
        self._narrow = False  # whether no trial trains on several GPUs any more
        self._attempt = self._tries = 0
        self._sessions: dict[str, MeasuredSession] = {}
        self._here: list[MeasuredSession] = []  # those of the present phase
        self._checkpoints: dict[str, tuple[int, str]] = {}
        self._phase_began = 0.0

    @property
    def last_epoch(self) -> int:
        """The last epoch that any trial will reach, before anything is measured."""
        epochs = sum(self._phase_epochs(phase.width) for phase in self._phases)
        return int(min(self._max_epochs, epochs))

    def _phase_epochs(self, width: Width) -> int:
        """Return the epochs of a phase, with one to spare for trials that share GPUs.

        During the spare one the first to finish keep training beside the others, which would
        otherwise be timed on a GPU that they have to themselves.
        """
        return int(min(self._max_epochs, self._epochs + (width < 1)))

    @property
    def left_out(self) -> str:
        """What isn't in the figures, and why; "" if nothing is missing."""
        return "; ".join(self._left_out)

    @property
    def cut_short(self) -> str:
        """Why the measurement ended early; "" if it didn't."""
        return f"stopped: {self.ending.value}" if self.ending in _CUT_SHORT else ""

    @property
    def saves(self) -> bool:
        """Whether the script has saved any checkpoint."""
        return bool(self._checkpoints)

    def raise_failure(self) -> None:
        """Raise an error if the measurement is of no use; one that was cut short may be.

        Raises:
            NoCapacityError: the cloud has no such instance now.
            CloudtuneError: anything else; the message says what.
        """
        if self.ending is EndReason.DONE or (self.cut_short and self.figures.enough):
            return
        error, trace = self.error or (f"stopped: {self.ending and self.ending.value}", "")
        error += self.fleet.last_words()
        if self._extends and self.ending is EndReason.DEADLINE:
            error += (
                f": no epoch in {format_seconds(self.patience)}, which is what it may take where "
                "no deadline is set; give it more time, as in --deadline 6h"
            )
        message = f"could not measure the script: {error}\n{trace}".strip()
        if self.ending is EndReason.NO_CAPACITY:
            raise NoCapacityError(message)
        raise MeasureError(message, self.ending, self.spent(self.now))

    def spent(self, at: float) -> float:
        """Return the bill in dollars if the instance were returned at that run second."""
        return self.fleet.dollars(at) + self.charges.dollars(self.fleet.launches, at)

    def safe_until(self) -> float:
        """Return when the instance must be gone if nothing more is decided; inf: never."""
        return self._limits.safe_until()

    def dispensable(self) -> tuple[TrialId, ...]:
        """Return none: all trials are still being measured."""
        return ()

    def handle(self, event: Event) -> tuple[Command, ...]:
        if self._returns.over:
            return ()
        self.now = event.at
        return (*self._note(event), *self._advance())

    # ---- events --------------------------------------------------------------------------

    def _note(self, event: Event) -> Iterable[Command]:  # noqa: C901, PLR0912  one flat match
        match event:
            case RunStarted():
                return self._begin(event.at)
            case InstanceLaunched():
                rented = self.fleet[event.intent]
                rented.instance = event.instance
                rented.launched_at = event.launched_at
                self.figures.launch.append(event.launched_at - rented.requested_at)
            case NodeJoined():
                rented = self.fleet[event.intent]
                rented.joined = True
                self._allow(self.patience)
                self.figures.boot.append(event.at - (rented.launched_at or 0.0))
            case NodeLost():
                self._fail("the node left the cluster", event.reason)
            case InstanceGone():
                self._note_gone(event)
            case LaunchFailed():
                self._note_refusal(event)
            case EpochDone():
                self._note_epoch(event)
            case TrialStarted():
                self._sessions[event.session].reported_at = event.at
            case InstanceBooting() | InterruptionNotice() | RebalanceRecommended():
                pass
            case RunResumed() | RunContinued():
                pass
            case TrialStopped():
                self._note_stop(event)
            case TrialFailed():
                self._note_failure(event)
            case TrialLost(at, session, reason):
                self._note_failure(TrialFailed(at, session, f"a worker was lost: {reason}", ""))
            case TimerFired():
                return self._note_timer(event)
            case Interrupted():
                self.ending = self.ending or EndReason.INTERRUPTED
            case _:
                assert_never(event)
        return []

    def _begin(self, at: float) -> Iterable[Command]:
        offer = self.offer
        widest = max(phase.width for phase in self._phases)
        wanted = [offer] * count_instances(widest, offer.gpus)
        self._run_out(self._limits.passed_limit())
        if len(self._limits.affordable(wanted)) < len(wanted):
            self._run_out(EndReason.BUDGET)
        if self.ending is not None:
            return []
        name = offer.instance_type.name
        intents = [self.fleet.request(offer, at).intent for _ in wanted]
        launches = [Launch(intent, name, offer.market, offer.zone) for intent in intents]
        return [SetTimer("tick", at + self.brakes.tick), *launches]

    def _fail(self, error: str, traceback: str, reason: EndReason = EndReason.FAILED) -> None:
        if self.ending is None:
            self.ending = reason
            self.error = (error, traceback)

    def _note_gone(self, event: InstanceGone) -> None:
        rented = self.fleet[event.intent]
        rented.gone_at = event.gone_at
        rented.last_words = event.console
        if self._returns.began_at is None:
            self._fail("the instance went away", event.reason)
        else:
            self.figures.release.append(max(0.0, event.gone_at - self._returns.began_at))

    def _note_refusal(self, event: LaunchFailed) -> None:
        """Drop the widths that needed the refused instance; fail if it was the only one."""
        self.fleet[event.intent].gone_at = event.at
        why = f"{event.code}: {event.message}"
        most = len(self.fleet.alive()) * self.offer.gpus
        lost = [phase.width for phase in self._phases if phase.width > most]
        if len(lost) == len(self._phases):
            self._fail(why, "", EndReason.FAILED if event.permanent else EndReason.NO_CAPACITY)
        self._phases = [phase for phase in self._phases if phase.width <= most]
        self._left_out += [f"{gpus_text(width)} left out: {why}" for width in dict.fromkeys(lost)]

    def _note_epoch(self, event: EpochDone) -> None:
        session = self._sessions[event.session]
        if self.parallel and not event.parallel:
            self._fail(_NOT_LEFT, "")
        if event.checkpoint:
            self._checkpoints[session.trial.id] = (event.epoch, event.checkpoint)
        is_first = not any(earlier.trained for earlier in self._sessions.values())
        session.note(event, self._epochs)
        if is_first:
            self._size(session, event)

    def _note_stop(self, event: TrialStopped) -> None:
        """Record that a session is over; one whose script ended early may have shown enough."""
        session = self._sessions[event.session]
        session.live = False
        if not event.by_itself or session.stopping or self.ending is not None:
            return
        if session.trained >= 2:
            session.count(self.figures)
        else:
            error = f"its script ended after {count_noun(session.trained, 'epoch')}"
            self.failed.append(Failed(session.trial, session.phase, error))

    def _note_failure(self, event: TrialFailed) -> None:
        """Record a configuration that failed; one being stopped was measured already."""
        session = self._sessions[event.session]
        session.live = False
        if session.stopping or self.ending is not None:
            return
        trial = session.trial
        if event.unsynced:
            self._note_missing_sync(trial, event)
        elif session.phase.width < 1:
            crowded = "a trial ran out of memory"
            failed = f"{trial.id} failed: {event.error}"
            self._leave_out(crowded if event.out_of_memory else failed)
        else:
            why = (event.error, event.traceback, event.out_of_memory)
            self.failed.append(Failed(trial, session.phase, *why))

    def _note_missing_sync(self, trial: Trial, event: TrialFailed) -> None:
        """Measure only single GPUs from now on, or end the measurement if sync is required."""
        if self.rules.sync_required or not self.figures.epoch:
            self._fail(unsynced_text(event), "")
        elif not self._narrow:
            self._narrow = True
            self._phases = [phase for phase in self._phases if phase.width <= 1]
            why = f"the workers of {trial.id} don't train one model: {event.error}"
            self._left_out.append(f"more than one GPU left out: {why}")

    def _leave_out(self, why: str) -> None:
        """End the measurement with what was measured before this share of a GPU."""
        if self.ending is None:
            trials = round(1 / self._phase.width)
            self._left_out.append(f"{trials} or more trials on a GPU left out: {why}")
            self.ending = EndReason.DONE

    def _note_timer(self, event: TimerFired) -> Iterable[Command]:
        """End while everything can be returned within the limits; end stalled trials at once."""
        if event.name == CLEANUP:
            return self._returns.give_back(again=True)
        self._run_out(self._limits.passed_limit())
        return [*self._end_stalls(), SetTimer("tick", self.now + self.brakes.tick)]

    def _end_stalls(self) -> Iterable[Command]:
        """Yield what ends the trials that have reported nothing for too long."""
        first_epochs = [s.first_seconds for s in self._sessions.values() if s.trained]
        if not first_epochs or self.ending is not None:
            return
        rules = self.rules
        longest = max(rules.stall_least, rules.stall_factor * max(first_epochs))
        for session in self._live:
            silent = self.now - session.reported_at
            if silent > longest and not session.stopping:
                session.stopping = True
                error = f"stalled: it reported nothing for {format_seconds(silent)}"
                self.failed.append(Failed(session.trial, session.phase, error))
                yield StopTrial(session.command.session, stacks=True)

    def _run_out(self, reason: EndReason | None) -> None:
        if reason is not None and self._phase.width < 1:
            self._leave_out(f"the {reason.value} was reached")
        self.ending = self.ending or reason

    # ---- how much there is time for ------------------------------------------------------

    def _size(self, first: MeasuredSession, event: EpochDone) -> None:
        """Set the number of epochs per width by the first epoch.

        Other widths are unknown yet: more GPUs are assumed to be no faster.
        """
        # Lower the budget to `enough_usd`, or to what is owed anyway (a minimum charge).
        enough = max(self.enough_usd, self.spent(self.brakes.ahead(event.at)))
        if enough < (math.inf if self.limits.budget is None else self.limits.budget):
            self._limit(budget=enough)
        setup = event.at - first.asked_at - event.seconds
        widths = [phase.width for phase in (*self._begun, *self._phases)]
        work = MeasureWork(widths, first.phase.width, event.seconds, max(0.0, setup))
        self._allow(3 * work.seconds(self._epochs) + _SLACK_SECONDS)
        self._epochs = work.fitting(self._epochs, self.share * self._seconds_left)

    def _allow(self, seconds: float) -> None:
        """Set the deadline that many seconds from now, unless the user has set one."""
        if self._extends:
            self._limit(deadline=self.now + seconds)

    def _limit(self, **limits: float) -> None:
        self.limits = replace(self.limits, **limits)
        self._limits.note_launch()  # one may be nearer than it was

    @property
    def _seconds_left(self) -> float:
        """The seconds for which the limits allow the instance."""
        return self.safe_until() - self.now - self.brakes.tick - self.brakes.drain

    # ---- decisions -----------------------------------------------------------------------

    @property
    def _counted(self) -> bool:
        """Whether this phase is in the figures."""
        return any(session.counted for session in self._here)

    @property
    def _live(self) -> list[MeasuredSession]:
        return [session for session in self._here if session.live]

    def _advance(self) -> Iterable[Command]:
        if self.ending is not None:
            return self._wind_down()
        if self.fleet.has_pending():
            return []
        live = self._live
        if self._narrow and self._phase.width > 1:
            return self._stop_all() if live else self._next_phase()
        if not live:
            return self._begin_next()
        trained = all(session.trained >= self._epochs for session in live)
        if trained and not any(session.stopping for session in live):
            self._phase_began = self.now
            for session in live:
                session.count(self.figures)
            return self._stop_all()
        return []

    def _begin_next(self) -> Iterable[Command]:
        """Begin the next phase, or repeat this one with other configurations if all failed."""
        if not self._here or self._counted:
            return self._next_phase()
        self._tries += 1
        tried = {session.trial.id for session in self._here}
        fresh = [trial for trial in self._able() if trial.id not in tried]
        if fresh and self._tries < TRIES:
            return self._start_all(fresh)
        if self._phase.alone:
            return self._next_phase()
        why = self.failed[-1]
        if why.out_of_memory or self.figures.epoch:
            self._left_out.append(f"{self._phase} left out: {why}")
            return self._next_phase()
        return self._give_up()

    def _give_up(self) -> Iterable[Command]:
        first = self.failed[0]
        others = len(self.failed) - 1
        more = f" (and {others} more)" * (others > 0)
        self._fail(f"every configuration that was tried failed: {first}{more}", first.traceback)
        return self._wind_down()

    def _next_phase(self) -> Iterable[Command]:
        self._here = []
        self._tries = 0
        while self._phases:
            self._phase = self._phases.pop(0)
            self._begun.append(self._phase)
            why = self._why_not(self._phase.width)
            if not why:
                return self._start_all(crew(self._able(), self._phase.width))
            if self._phase.width < 1:
                self._leave_out(why)
                return self._wind_down()
            self._left_out.append(f"{self._phase} left out: {why}")
        self._count_alone()
        if not self.figures.epoch:
            return self._give_up()
        self.ending = EndReason.DONE
        return self._wind_down()

    def _why_not(self, width: Width) -> str:
        """Return why a width isn't measured, by what earlier ones showed; "" if it is."""
        if allowed_seconds(width, self._epochs, self._sessions.values()) > self._seconds_left:
            return "the limits leave no time for it"
        if width >= 1:
            return ""
        gpu = self.offer.instance_type.gpu_memory_mib
        mib = max((mib for shared, mib in self.figures.memory.items() if shared <= 1), default=None)
        if mib is None:
            return "what one has of its memory is unknown" if self.only_known else ""
        return f"one has {mib:,.0f} of its {gpu:,} MiB" if 0 < gpu < mib * round(1 / width) else ""

    def _able(self) -> list[Trial]:
        """Return the trials that haven't failed, those with checkpoints first."""
        failed = {failure.trial.id for failure in self.failed if not failure.out_of_memory}
        able = [trial for trial in self.trials if trial.id not in failed]
        return sorted(able, key=lambda trial: trial.id not in self._checkpoints)

    def _start_all(self, trials: Iterable[Trial]) -> list[Command]:
        """Start trials, as many as fit; nothing else trains."""
        self._attempt += 1
        phase = self._phase
        gpus = self.offer.gpus
        free = rooms({rented.instance or "": gpus for rented in self.fleet.usable()}, ())
        commands: list[Command] = []
        for trial in trials:
            placement = place(phase.width, gpus, free)
            if placement is None or (phase.alone and commands):
                break
            for piece in placement:
                free[piece.instance].take(piece)
            commands.append(self._start(trial, placement))
        return commands

    def _start(self, trial: Trial, placement: tuple[Slice, ...]) -> Command:
        phase = self._phase
        start, checkpoint = self._checkpoints.get(trial.id, (0, None))
        epochs = self._phase_epochs(phase.width)
        is_past = start + epochs > self._max_epochs
        if is_past:
            start = 0
            checkpoint = None
        # A trial that starts from scratch here shows what a change of width takes.
        has_begun = any(session.counted for session in self._sessions.values())
        resumed = has_begun and (checkpoint is not None or is_past or not self.saves)
        command = StartTrial(
            session=f"{trial.id}.{self._attempt}",
            trial=trial.id,
            config=trial.config,
            width=phase.width,
            placement=placement,
            checkpoint=checkpoint,
            start_epoch=start,
            until_epoch=start + epochs,
            parallel=phase.parallel,
        )
        asked_at = self._phase_began if resumed and not self._tries else self.now
        session = MeasuredSession(command, trial, phase, asked_at, resumed, reported_at=self.now)
        self._sessions[command.session] = session
        self._here.append(session)
        return command

    def _stop_all(self) -> list[Command]:
        """Stop all live sessions that aren't being stopped already."""
        ending = [session for session in self._live if not session.stopping]
        for session in ending:
            session.stopping = True
        return [StopTrial(session.command.session) for session in ending]

    def _count_unfinished_sessions(self) -> None:
        """Count unfinished sessions: a single epoch, or a trial alone, if there is nothing else."""
        here = [] if self._phase.width < 1 or self._counted else self._here
        for least in (min(2, self._epochs), 1):
            for session in here:
                if session.trained >= least:
                    session.count(self.figures)
            if self._counted or self.figures.epoch or self.ending is EndReason.INTERRUPTED:
                break
        if self.ending is not EndReason.INTERRUPTED:
            self._count_alone()

    def _count_alone(self) -> None:
        """Count the trial that trained alone as one among others, if no other was measured."""
        if self.figures.alone and not self.figures.epoch:
            self.figures.add_epochs(1.0, self.figures.alone, None)

    def _wind_down(self) -> Iterable[Command]:
        if self.cut_short and self._returns.began_at is None:
            self._count_unfinished_sessions()
        commands = [*self._stop_all(), *self._returns.give_back()]
        if self._returns.over:
            assert self.ending is not None
            commands.append(EndRun(self.ending))
        return commands
