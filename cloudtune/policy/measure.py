"""Measuring how a script scales: a run like any other, driven by a policy of its own.

An instance is rented and filled with trials at each width in turn, so that what the trials of one
machine take from each other is in the figures; whole GPUs first, then, if wanted, shares of one,
from wide to narrow. Where a width is wider than an instance, as many are rented as it takes, and
all are filled. Pure, as every policy is: all that it learns comes from events.

A configuration that fails is reported and another tried; a width at which none trains is left out.
The first epoch decides how many are measured, by the time and money left. All measured is kept.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from cloudtune.errors import NoCapacityError
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import (
    Command,
    EndRun,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
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
from cloudtune.model.placement import place, rooms, slots
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.text import gpus_text
from cloudtune.model.trial import EndReason, Parallel, Trial, TrialId, Width
from cloudtune.model.units import format_seconds
from cloudtune.policy.base import Brakes, TrialRules
from cloudtune.policy.limits import LimitKeeper
from cloudtune.policy.widths import unsynced_text
from cloudtune.profiles.measurements import (
    TRIES,
    Failed,
    MeasuredFigures,
    MeasuredSession,
    MeasureError,
    MeasureWork,
    able_of,
    crew,
    instances_for,
    phases_of,
    seconds_for,
    unfinished,
    widths_of,
)

# Beyond three times what the rest should take: for starts, of which one is known.
_SLACK_SECONDS = 600.0
_NO_TIME = "the limits leave no time for it"
_NOT_LEFT = (
    "--parallel: the script says itself how its workers share a model; write cloudtune."
    'prepare_model(model, parallel_strategy="auto"), at any number of GPUs, or leave --parallel out'
)
_CUT_SHORT = frozenset({EndReason.DEADLINE, EndReason.BUDGET, EndReason.INTERRUPTED})


class MeasurePolicy:
    """Rents what the widest width takes, trains a few epochs at each width, and gives it back.

    `epochs` at each width, at least 2: the first of a session counts towards starting it as far
    as it is slower than the others (a GPU warms up). The last phase of whole GPUs resumes from
    checkpoints in any case, so that a resize is measured even where there is one width.

    Up to `pack` trials share a GPU. A share at which a trial fails, or which the limits leave no
    room for, or the GPU's memory, is left out with all narrower ones (`left_out` says so); with
    `only_known` also where the memory that a trial has is unknown. Of whole GPUs a width is left
    out at which every configuration tried failed; and all above one GPU where the workers of a
    trial don't train one model. How long a start takes is measured on whole GPUs only. Where not
    all instances are available, the widths that need them are left out.

    With `alone` a single trial is trained on one GPU before all that: `figures.alone`.

    Where no deadline is set, `patience` seconds may pass until the node has joined, as many until
    the first epoch, and then three times what the rest should take. Of the time and the money left
    then a `share` is planned for, with fewer epochs where need be. Once an epoch is known, it ends
    before it costs more than `enough_usd` dollars. One that meets a limit keeps single epochs too.

    With `max_epochs` no trial trains beyond that: each width gets fewer epochs, two at least, and
    a trial that would still pass it starts from scratch.

    Each width above one GPU is measured by each of the `parallel` strategies, if any are given; the
    script must leave them to the run.
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
        only_known: bool = False,
        alone: bool = False,
        brakes: Brakes | None = None,
        charges: Charges | None = None,
        rules: TrialRules | None = None,
        patience: float | None = None,
        share: float = 1.0,
        enough_usd: float = math.inf,
        max_epochs: int | None = None,
        parallel: Sequence[Parallel] = (),
    ) -> None:
        assert epochs >= 2, "one epoch can't tell start from training"
        self.figures = MeasuredFigures()
        self.ending: EndReason | None = None
        self.error: tuple[str, str] | None = None
        self.fleet = FleetBook()
        self._patience = patience if limits.deadline is None else None
        self.limits = replace(limits, deadline=patience) if self._patience else limits
        self._share = share
        self._enough_usd = enough_usd
        self._rules = rules or TrialRules()
        self.brakes = brakes or Brakes()
        self.charges = charges or Charges()
        self.now = 0.0
        self._limits = LimitKeeper(self)
        self._trials = trials
        self.offer = offer
        self._max_epochs = math.inf if max_epochs is None else max(2, max_epochs)
        self._epochs = int(min(epochs, max(2, self._max_epochs / 2)))
        self._parallel = tuple(parallel) or ("",)
        measured = tuple(widths or widths_of(offer.gpus))
        by_each = [w for w in measured for _ in self._parallel[: None if w > 1 else 1]]
        self._only_known = only_known
        self._single = alone
        self.phases = phases_of(by_each, pack, alone=alone)
        self.instances = instances_for(max(self.phases, default=1.0), offer.gpus)
        self.failed: list[Failed] = []
        self._left_out: list[str] = []
        self._alone = ""  # why no trial trains on several GPUs
        self._sized = False
        self._attempt = self._tries = self._cleanups = 0
        self._phase = -1
        self._sessions: dict[str, MeasuredSession] = {}
        self._checkpoints: dict[str, tuple[int, str]] = {}
        self._asked_at = 0.0
        self._phase_began = 0.0
        self._released_at: float | None = None
        self._joined: dict[str, str] = {}  # instances by intent, in the order of their coming
        self._over = False

    @property
    def last_epoch(self) -> int:
        return int(min(self._max_epochs, sum(map(self._epochs_at, self.phases))))

    def _epochs_at(self, width: Width) -> int:
        """Return the epochs of a phase, with one to spare for trials that share GPUs.

        In it those that are ready first go on training beside the others, which would else be
        measured on a GPU that they have to themselves in the end.
        """
        return int(min(self._max_epochs, self._epochs + (width < 1)))

    @property
    def left_out(self) -> str:
        """What isn't in the figures, and why; empty where all is."""
        return "; ".join(self._left_out)

    @property
    def cut_short(self) -> str:
        """Why the measurement ended before all was measured; empty where it didn't."""
        return f"stopped: {self.ending.value}" if self.ending in _CUT_SHORT else ""

    @property
    def saves(self) -> bool:
        """Whether the script has saved any checkpoint."""
        return bool(self._checkpoints)

    def raise_if_failed(self) -> None:
        """Raise what kept the measurement from being of use; one that was cut short may be.

        Raises:
            NoCapacityError: the cloud has no such instance now.
            CloudtuneError: anything else; the message says what.
        """
        if self.ending is EndReason.DONE or (self.cut_short and self.figures.enough):
            return
        error, trace = self.error or (f"stopped: {self.ending and self.ending.value}", "")
        message = f"could not measure the script: {error}{self.fleet.last_words()}\n{trace}".strip()
        if self.ending is EndReason.NO_CAPACITY:
            raise NoCapacityError(message)
        raise MeasureError(message, self.ending)

    def spent(self, at: float) -> float:
        """Return the bill in dollars if the instance were given back at that time (run second)."""
        return self.fleet.dollars(at) + self.charges.dollars(self.fleet.launches, at)

    def safe_until(self) -> float:
        """Return when the instance must be gone if nothing more is decided; inf: never."""
        return self._limits.safe_until()

    def dispensable(self) -> tuple[TrialId, ...]:
        """Return no trial: it is one that is measured."""
        return ()

    def handle(self, event: Event) -> tuple[Command, ...]:
        if self._over:
            return ()
        self.now = event.at
        return (*self._note(event), *self._advance(event.at))

    # ---- events --------------------------------------------------------------------------

    def _note(self, event: Event) -> Iterable[Command]:  # noqa: C901, PLR0912  one flat match
        match event:
            case RunStarted():
                return self._begin(event.at)
            case InstanceLaunched():
                rented = self.fleet[event.intent]
                rented.instance = event.instance
                rented.launched_at = event.launched_at
                self.figures.launch.append(event.launched_at - self._asked_at)
            case NodeJoined():
                rented = self.fleet[event.intent]
                self._joined[event.intent] = rented.instance or ""
                self._extend(event.at + (self._patience or 0.0))
                self.figures.boot.append(event.at - (rented.launched_at or 0.0))
            case NodeLost():
                self._fail("the node left the cluster", event.reason)
            case InstanceGone():
                self._note_gone(event)
            case LaunchFailed():
                self._note_refused(event)
            case EpochDone():
                return self._note_epoch(event)
            case TrialStarted():
                self._sessions[event.session].reported_at = event.at
            case InstanceBooting() | InterruptionNotice() | RunResumed() | RunContinued():
                pass
            case TrialStopped():
                self._sessions[event.session].live = False
            case TrialFailed():
                self._note_failed(event)
            case TrialLost(at, session, reason):
                self._note_failed(TrialFailed(at, session, f"a worker was lost: {reason}", ""))
            case TimerFired():
                return self._note_tick(event.at)
            case Interrupted():
                self.ending = self.ending or EndReason.INTERRUPTED
            case _:
                assert_never(event)
        return []

    def _note_refused(self, event: LaunchFailed) -> None:
        """Do without the widths that an instance was for, unless it is the only one."""
        self.fleet[event.intent].gone_at = event.at
        self.instances = len(self.fleet.alive())
        why = f"{event.code}: {event.message}"
        lost = [width for width in self.phases if width > self.instances * self.offer.gpus]
        if len(lost) == len(self.phases) or self._released_at is not None:
            self._fail(why, "", EndReason.FAILED if event.permanent else EndReason.NO_CAPACITY)
        self.phases = tuple(width for width in self.phases if width not in lost)
        self._left_out += [f"{gpus_text(width)} left out: {why}" for width in dict.fromkeys(lost)]

    def _begin(self, at: float) -> Iterable[Command]:
        offer = self.offer
        reached = self._limits.reached()
        wanted = [offer] * self.instances
        if reached is None and len(self._limits.affordable(wanted)) < len(wanted):
            reached = EndReason.BUDGET
        if reached is not None:
            self._run_out(reached)
            return []
        self._asked_at = at
        name = offer.instance_type.name
        asked = [self.fleet.request(offer, at) for _ in wanted]
        launches = [Launch(rented.intent, name, offer.market, offer.zone) for rented in asked]
        return [SetTimer("tick", at + self.brakes.tick), *launches]

    def _fail(self, error: str, traceback: str, reason: EndReason = EndReason.FAILED) -> None:
        if self.ending is None:
            self.ending = reason
            self.error = (error, traceback)

    def _note_gone(self, event: InstanceGone) -> None:
        rented = self.fleet[event.intent]
        rented.gone_at = event.gone_at
        rented.last_words = event.console
        if self._released_at is None:
            self._fail("the instance went away", event.reason)
        else:
            self.figures.release.append(max(0.0, event.gone_at - self._released_at))

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        session = self._sessions[event.session]
        if self._parallel[0] and not event.parallel:
            self._fail(_NOT_LEFT, "")
        if event.checkpoint:
            self._checkpoints[session.trial.id] = (event.epoch, event.checkpoint)
        session.note(event, self._epochs)
        if not self._sized:
            self._sized = True
            self._size(session, event)
        return []

    def _note_failed(self, event: TrialFailed) -> None:
        """Record a configuration that failed; one that was stopping was measured already."""
        session = self._sessions[event.session]
        session.live = False
        if session.stopping or self.ending is not None:
            return
        trial = session.trial
        width = session.width
        if event.unsynced:
            self._note_unsynced(trial, event)
        elif width < 1:
            crowded = "a trial ran out of memory"
            failed = f"{trial.id} failed: {event.error}"
            self._leave_out(crowded if event.out_of_memory else failed)
        else:
            why = (event.error, event.traceback, event.out_of_memory, session.parallel)
            self.failed.append(Failed(trial, width, *why))

    def _note_unsynced(self, trial: Trial, event: TrialFailed) -> None:
        """Measure no trial on several GPUs any more, or end it where that was asked for."""
        if self._rules.sync_required or not self.figures.epoch:
            self._fail(unsynced_text(event), "")
        elif not self._alone:
            self._alone = f"the workers of {trial.id} don't train one model: {event.error}"
            self._left_out.append(f"more than one GPU left out: {self._alone}")

    def _leave_out(self, why: str) -> None:
        """End it with what was measured before this share of a GPU."""
        if self.ending is None:
            trials = round(1 / self.phases[self._phase])
            self._left_out.append(f"{trials} or more trials on a GPU left out: {why}")
            self.ending = EndReason.DONE

    def _note_tick(self, at: float) -> Iterable[Command]:
        """End it while all can be given back within the limits, and what hangs at once."""
        self._run_out(self._limits.reached())
        return [*self._end_stalled(at), SetTimer("tick", at + self.brakes.tick)]

    def _end_stalled(self, at: float) -> Iterable[Command]:
        """Yield what ends the trials that have reported nothing for too long."""
        first_epochs = [s.first_seconds for s in self._sessions.values() if s.first_at is not None]
        if not first_epochs or self.ending is not None:
            return
        least = self._rules.stall_least
        factor = self._rules.stall_factor
        for name, session in self._sessions.items():
            silent = at - session.reported_at
            if (
                session.live
                and not session.stopping
                and silent > max(least, factor * max(first_epochs))
            ):
                session.stopping = True
                error = f"stalled: it reported nothing for {format_seconds(silent)}"
                self.failed.append(Failed(session.trial, session.width, error))
                yield StopTrial(name, stacks=True)

    def _run_out(self, reason: EndReason | None) -> None:
        if reason is None or self.ending is not None:
            return
        if self._phase >= 0 and self.phases[self._phase] < 1:
            self._leave_out(f"the {reason.value} was reached")
        self.ending = self.ending or reason

    # ---- how much there is time for ------------------------------------------------------

    def _size(self, first: MeasuredSession, event: EpochDone) -> None:
        """Let the first epoch decide how many are measured at each width.

        Nothing is known of other widths yet: more GPUs are taken to be no faster at all.
        """
        self._cap_dollars(event.at)
        setup = event.at - first.asked_at - event.seconds
        work = MeasureWork(self.phases, first.width, event.seconds, max(0.0, setup))
        self._extend(event.at + 3 * work.seconds(self._epochs) + _SLACK_SECONDS)
        left = self._share * self._seconds_left(event.at)
        self._epochs = work.fitting(self._epochs, left)

    def _cap_dollars(self, at: float) -> None:
        """Lower the budget to what is enough, or owed anyway: a minimum charge may be used up."""
        budget = max(self._enough_usd, self.spent(self.brakes.ahead(at)))
        if budget < (math.inf if self.limits.budget is None else self.limits.budget):
            self.limits = replace(self.limits, budget=budget)
            self._limits.note_launch()

    def _extend(self, deadline: float) -> None:
        """Set the deadline, where the user has set none."""
        if self._patience:
            self.limits = replace(self.limits, deadline=deadline)
            self._limits.note_launch()  # it may be nearer than it was

    def _seconds_left(self, at: float) -> float:
        """Return for how long the limits let the instance be, from a second of the run on."""
        return self.safe_until() - at - self.brakes.tick - self.brakes.drain

    def _has_time(self, width: Width, at: float) -> bool:
        """Whether the limits leave time for a width, as far as the widths before it show."""
        seconds = seconds_for(width, self._epochs, self._sessions.values())
        return seconds <= self._seconds_left(at)

    # ---- decisions -----------------------------------------------------------------------

    def _advance(self, at: float) -> Iterable[Command]:
        if self.ending is not None:
            return self._wind_down(at)
        if len(self._joined) < self.instances:
            return []
        live = [session for session in self._sessions.values() if session.live]
        if not live:
            return self._begin_next(at)
        if self._alone and self.phases[self._phase] > 1:
            return self._stop_all()
        trained = all(session.trained >= self._epochs for session in live)
        if trained and not any(session.stopping for session in live):
            self._phase_began = at
            self._summarise(live)
            return self._stop_all()
        return []

    def _begin_next(self, at: float) -> Iterable[Command]:
        """Begin the next width, or this one with other configurations where none could train."""
        here = [s for s in self._sessions.values() if s.phase == self._phase]
        if not here or any(s.counted for s in here):
            return self._next_phase(at)
        width = self.phases[self._phase]
        if self._alone and width > 1:
            return self._next_phase(at)
        self._tries += 1
        tried = {s.trial.id for s in here}
        fresh = [t for t in self._able() if t.id not in tried] if self._tries < TRIES else []
        if fresh:
            return self._start_all(fresh, width, at)
        if self._single:
            return self._next_phase(at)
        why = self.failed[-1]
        if why.out_of_memory or self.figures.epoch:
            self._left_out.append(f"{gpus_text(width, self._strategy(width))} left out: {why}")
            return self._next_phase(at)
        return self._give_up(at)

    def _strategy(self, width: Width) -> Parallel:
        """Return how the workers of this phase share a model: a width has a phase for each way."""
        earlier = self.phases[: self._phase].count(width) if width > 1 else 0
        return self._parallel[earlier % len(self._parallel)]

    def _give_up(self, at: float) -> Iterable[Command]:
        first = self.failed[0]
        others = len(self.failed) - 1
        more = f" (and {others} more)" * (others > 0)
        self._fail(f"every configuration that was tried failed: {first}{more}", first.traceback)
        return self._wind_down(at)

    def _next_phase(self, at: float) -> Iterable[Command]:
        self._single = self._single and self._phase < 0
        self._phase = self._phase + 1
        self._tries = 0
        if self._phase == len(self.phases):
            self._count_alone()
            self.ending = EndReason.DONE if self.figures.epoch else None
            return self._wind_down(at) if self.ending else self._give_up(at)
        width = self.phases[self._phase]
        if self._alone and width > 1:
            return self._next_phase(at)
        why = _NO_TIME if not self._has_time(width, at) else self._no_room(width)
        if not why:
            return self._start_all(crew(self._able(), width), width, at)
        if width < 1:
            self._leave_out(why)
            return self._wind_down(at)
        self._left_out.append(f"{gpus_text(width, self._strategy(width))} left out: {why}")
        return self._next_phase(at)

    def _no_room(self, width: Width) -> str:
        """Return why trials can't share a GPU, by the memory that one has had; "" if they may."""
        gpu = self.offer.instance_type.gpu_memory_mib
        mib = max((mib for shared, mib in self.figures.memory.items() if shared <= 1), default=None)
        if mib is None:
            return "what one has of its memory is unknown" if self._only_known and width < 1 else ""
        crowded = 0 < gpu < mib * round(1 / width)
        return f"one has {mib:,.0f} of its {gpu:,} MiB" if crowded and width < 1 else ""

    def _able(self) -> list[Trial]:
        failed = {failure.trial.id for failure in self.failed if not failure.out_of_memory}
        return able_of(self._trials, failed, self._checkpoints)

    def _start_all(self, trials: Iterable[Trial], width: Width, at: float) -> Iterable[Command]:
        self._attempt += 1
        room = 1 if self._single else slots(width, self.offer.gpus, self.instances)
        return [self._start(trial, width, at) for trial in itertools.islice(trials, room)]

    def _start(self, trial: Trial, width: Width, at: float) -> Command:
        taken = [p for s in self._sessions.values() if s.live for p in s.placement]
        there = dict.fromkeys(self._joined.values(), self.offer.gpus)
        placement = place(width, self.offer.gpus, rooms(there, taken))
        assert placement is not None, "a phase never asks for more than the instances have"
        session = f"{trial.id}.{self._attempt}"
        start, checkpoint = self._checkpoints.get(trial.id, (0, None))
        is_past = start + self._epochs_at(width) > self._max_epochs
        if is_past:
            start = 0
            checkpoint = None
        # A trial that starts from scratch here: then that is what a change of width takes.
        begun = any(earlier.counted for earlier in self._sessions.values())
        resumed = begun and (checkpoint is not None or is_past or not self.saves)
        asked_at = self._phase_began if resumed and not self._tries else at
        parallel = self._strategy(width)
        self._sessions[session] = MeasuredSession(
            trial, width, asked_at, resumed, placement, self._phase, at, parallel
        )
        until = start + self._epochs_at(width)
        return StartTrial(
            session, trial.id, trial.config, width, placement, checkpoint, start, until, parallel
        )

    def _stop_all(self) -> Iterable[Command]:
        """End what is live, and is not being ended already."""
        ending = {n: s for n, s in self._sessions.items() if s.live and not s.stopping}
        for session in ending.values():
            session.stopping = True
        return list(map(StopTrial, ending))

    def _summarise(self, trained: Iterable[MeasuredSession]) -> None:
        for session in trained:
            session.count(self.figures, alone=self._single)

    def _keep_unfinished(self) -> None:
        """Count what is there; where there is nothing else, a single epoch, or a trial alone."""
        self._summarise(unfinished(self._sessions.values(), self._phase, min(2, self._epochs)))
        if self.figures.epoch or self.ending is EndReason.INTERRUPTED:
            return
        self._summarise(unfinished(self._sessions.values(), self._phase, 1))
        self._count_alone()

    def _count_alone(self) -> None:
        """Take a trial by itself for one among others, where no other was measured."""
        if self.figures.alone and not self.figures.epoch:
            self.figures.add_epochs(1.0, self.figures.alone, None)

    def _wind_down(self, at: float) -> Iterable[Command]:
        commands: list[Command] = []
        if self._released_at is None:
            self._released_at = at
            if self.cut_short:
                self._keep_unfinished()
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
