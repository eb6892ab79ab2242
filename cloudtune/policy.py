"""The state machine of a run: carries a plan out, within a deadline and a budget.

Pure: it knows no cloud, no clock and no files. Time enters as `event.at`, randomness not at all,
so the simulator, the real run and the replay of a recorded run drive this same object.

One event goes in, commands come out:

    handle(event)  = take note of the event, then `_advance`
    _advance       = wind down, if the run is to end
                     else close the stage, if all its trials have reached the rung
                     then fit the fleet to the stage, then start what waits and fits
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, assert_never

from cloudtune.commands import (
    Command,
    EndRun,
    ExtendTrial,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.events import (
    EpochDone,
    Event,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)
from cloudtune.fleet import FleetBook, Rented
from cloudtune.placement import free_gpus, place
from cloudtune.progress import OVER, Best, Record, TrialProgress
from cloudtune.trial import EndReason, rank_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.plan import Limits, Plan, StagePlan
    from cloudtune.progress import Status
    from cloudtune.strategies.base import Strategy
    from cloudtune.trial import Mode, Slice, Trial, TrialId


class Policy(Protocol):
    """What a world is driven by."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        ...


@dataclass(frozen=True)
class Brakes:
    """How the policy keeps the limits, in seconds.

    `tick`: how often it looks. `drain`: what giving an instance back may take; so much before
    the deadline, or before the budget's last cent, the run winds down. `relaunch`: how long a
    refused launch is not tried again, and after how many `refusals` in a row a run with no instance
    ends. `cleanup`: how often a release is repeated that the cloud has not confirmed, `patience`
    times at most. `losses`: how often a trial's workers may vanish without an epoch in between.
    `join`: how long an instance may take to join before it is given back.
    """

    tick: float = 1.0
    drain: float = 6.0
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


class RunPolicy:
    """Runs the stages of a strategy on the fleets of a plan."""

    def __init__(
        self,
        *,
        trials: Sequence[Trial],
        strategy: Strategy,
        plan: Plan,
        metric: Metric,
        limits: Limits,
        brakes: Brakes | None = None,
    ) -> None:
        self.strategy = strategy
        self.plan = plan
        self.metric = metric
        self.limits = limits
        self.brakes = brakes or Brakes()
        self.now = 0.0
        self.fleet = FleetBook()
        self.trials = {trial.id: TrialProgress(trial) for trial in trials}
        self.stage = 0
        self.stage_began: list[float] = []
        self.members: tuple[TrialId, ...] = tuple(self.trials)
        self.record = Record(metric.mode)
        self.ending: EndReason | None = None
        self.ended = False
        self.refusals = 0
        self.relaunch_at = 0.0
        self.cleanups = 0

    # ---- what others may look at ---------------------------------------------------------

    @property
    def best(self) -> Best | None:
        """The best epoch so far."""
        return self.record.best

    @property
    def stage_plan(self) -> StagePlan:
        """The plan of the current stage."""
        return self.plan.stages[self.stage]

    def spent(self, at: float) -> float:
        """Return the bill if everything were given back at that time."""
        return self.fleet.dollars(at)

    # ---- the one door --------------------------------------------------------------------

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        if self.ended:
            return ()
        self.now = event.at
        commands = [*self._note(event), *self._advance()]
        self.check_invariants()
        return tuple(commands)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        taken: dict[str, float] = {}
        for piece in self._taken():
            taken[piece.instance] = taken.get(piece.instance, 0.0) + piece.gpus
        for name, gpus in taken.items():
            assert gpus <= self.plan.offer.gpus + 1e-6, f"{name} holds {gpus} GPUs of trials"
        for trial in self.trials.values():
            assert trial.checkpoint_epoch <= trial.epoch, f"{trial.id}: checkpoint from the future"
            assert trial.live == bool(trial.placement), f"{trial.id}: {trial.status} on a slot"
        if self.ended:
            assert not self.fleet.alive() or self.cleanups > self.brakes.patience

    # ---- events --------------------------------------------------------------------------

    def _note(self, event: Event) -> Iterable[Command]:  # noqa: C901, PLR0912  one flat match
        match event:
            case RunStarted():
                self.stage_began.append(event.at)
                return [SetTimer("tick", event.at + self.brakes.tick)]
            case InstanceLaunched():
                rented = self.fleet[event.intent]
                rented.instance, rented.launched_at = event.instance, event.launched_at
                self.refusals = 0
            case NodeJoined():
                self.fleet[event.intent].joined = True
            case NodeLost():
                self.fleet[event.intent].surplus = True
                return self._drop_sessions_on(event.intent, event.reason)
            case InstanceGone():
                self.fleet[event.intent].gone_at = event.gone_at
                return self._drop_sessions_on(event.intent, event.reason)
            case LaunchFailed():
                self._note_refusal(event)
            case TrialStarted():
                self._in_session(event.session, "training")
            case EpochDone():
                return self._note_epoch(event)
            case TrialStopped():
                self._note_stopped(event.session)
            case TrialFailed():
                self._note_failed(event)
            case TrialLost():
                self._note_lost(event.session, event.reason)
            case TimerFired():
                return self._note_timer(event)
            case Interrupted():
                self._end(EndReason.INTERRUPTED)
            case _:
                assert_never(event)
        return []

    def _drop_sessions_on(self, intent: str, reason: str) -> Iterable[Command]:
        """Stop what stood on a vanished instance; other slices of it may live elsewhere."""
        instance = self.fleet[intent].instance
        for trial in self.trials.values():
            if trial.live and any(piece.instance == instance for piece in trial.placement):
                session = trial.session
                self._note_lost(session, reason)
                yield StopTrial(session)

    def _note_refusal(self, event: LaunchFailed) -> None:
        rented = self.fleet[event.intent]
        rented.gone_at = event.at
        if rented.released:
            return
        self.refusals += 1
        self.relaunch_at = event.at + self.brakes.relaunch
        if self.refusals >= self.brakes.refusals and not self.fleet.wanted():
            self._end(EndReason.NO_CAPACITY)

    def _session(self, session: str) -> TrialProgress | None:
        """Return the trial whose current session that is; None for a session of the past."""
        trial = self.trials[session.rpartition(".")[0]]
        return trial if trial.live and trial.session == session else None

    def _in_session(self, session: str, status: Status) -> None:
        trial = self._session(session)
        if trial is not None and trial.status != "stopping":
            trial.status = status

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        trial = self._session(event.session)
        if trial is None or trial.status == "stopping":
            return []
        metric = event.metrics.get(self.metric.name, math.nan)
        trial.record(event, metric)
        if math.isnan(metric):
            trial.error = f"{self.metric.name} was nan at epoch {event.epoch}"
            return [self._stop(trial, "failed")]
        self.record.offer(Best(trial.id, event.epoch, metric, event.checkpoint))
        if event.epoch >= self.stage_plan.stage.end_epoch:
            trial.status = "at rung"
        return []

    def _note_stopped(self, session: str) -> None:
        trial = self._session(session)
        if trial is not None:
            trial.status, trial.placement = trial.after, ()
            if trial.status == "waiting":
                trial.rewind()

    def _note_failed(self, event: TrialFailed) -> None:
        trial = self._session(event.session)
        if trial is not None:
            trial.status, trial.placement = "failed", ()
            trial.error, trial.traceback = event.error, event.traceback

    def _note_lost(self, session: str, reason: str) -> None:
        trial = self._session(session)
        if trial is None:
            return
        trial.placement = ()
        trial.losses += 1
        if trial.status == "stopping":
            trial.status = trial.after
        else:
            trial.status = "waiting"
        if trial.losses > self.brakes.losses:
            trial.status, trial.error = "failed", f"lost {trial.losses} times: {reason}"
        if trial.status == "waiting":
            trial.rewind()

    def _note_timer(self, event: TimerFired) -> Iterable[Command]:
        if event.name == "tick":
            for rented in self.fleet.alive():
                late = not rented.joined and event.at > rented.requested_at + self.brakes.join
                rented.surplus = rented.surplus or late
            return [SetTimer("tick", event.at + self.brakes.tick)]
        assert event.name == "cleanup", f"nobody set a timer named {event.name!r}"
        self.cleanups += 1
        again = [Release(rented.intent) for rented in self.fleet.alive()]
        return [*again, SetTimer("cleanup", event.at + self.brakes.cleanup)]

    # ---- decisions -----------------------------------------------------------------------

    def _advance(self) -> Iterable[Command]:
        if self.ending is None:
            self._brake()
        commands: list[Command] = []
        if self.ending is None:
            commands += self._close_stage()
        if self.ending is None:
            commands += self._fit_fleet()
            commands += self._fill_slots()
        if self.ending is not None:
            commands += self._wind_down()
        return commands

    def _end(self, reason: EndReason) -> None:
        if self.ending is None:
            self.ending = reason

    def _brake(self) -> None:
        """End the run while what it holds can still be given back within both limits."""
        ahead = self.now + self.brakes.tick + self.brakes.drain
        if self.limits.deadline is not None and ahead >= self.limits.deadline:
            self._end(EndReason.DEADLINE)
        elif self.limits.budget is not None and self.fleet.dollars(ahead) > self.limits.budget:
            self._end(EndReason.BUDGET)

    def _close_stage(self) -> Iterable[Command]:
        """At the rung: choose who goes on; at the last one, end the run."""
        members = [self.trials[name] for name in self.members]
        rung = self.stage_plan.stage.end_epoch
        if any(trial.status not in OVER and not self._at_rung(trial, rung) for trial in members):
            return []
        results = {t.id: t.history.get(rung) for t in members if t.status not in OVER}
        chosen = self.strategy.promote(self.stage, results)
        if not chosen:
            return self._finish(results)
        self.stage += 1
        self.stage_began.append(self.now)
        self.members = chosen
        cut = [self.trials[name] for name in results if name not in chosen]
        retired = [self._retire(trial, "cut") for trial in cut]
        return [*(c for c in retired if c), *self._choose_surplus(), *self._carry_on()]

    @staticmethod
    def _at_rung(trial: TrialProgress, rung: int) -> bool:
        return trial.epoch >= rung and trial.status in {"at rung", "parked"}

    def _finish(self, results: Iterable[TrialId]) -> Iterable[Command]:
        stops = [self._retire(self.trials[name], "finished") for name in results]
        self._end(EndReason.DONE if self.best else EndReason.FAILED)
        return [stop for stop in stops if stop]

    def _retire(self, trial: TrialProgress, after: Status) -> Command | None:
        if trial.live:
            return self._stop(trial, after)
        trial.status = after
        return None

    def _stop(self, trial: TrialProgress, after: Status) -> Command:
        trial.status, trial.after = "stopping", after
        return StopTrial(trial.session)

    def _choose_surplus(self) -> Iterable[Command]:
        """Mark the instances that the new stage doesn't need, those with fewest survivors first."""
        wanted = self.fleet.wanted()
        extra = len(wanted) - self.stage_plan.instances
        if extra <= 0:
            return []
        for rented in sorted(wanted, key=self._worth)[:extra]:
            rented.surplus = True
        return []

    def _worth(self, rented: Rented) -> tuple[bool, int, str]:
        """Order instances by what keeping them saves: joined, then survivors, then age."""
        width = self.stage_plan.width
        staying = [
            name
            for name in self.members
            if self.trials[name].live
            and self.trials[name].width == width
            and any(piece.instance == rented.instance for piece in self.trials[name].placement)
        ]
        return (rented.joined, len(staying), rented.intent)

    def _carry_on(self) -> Iterable[Command]:
        """Let survivors train on where they are, if the new stage has them there, or move them."""
        usable = {r.instance for r in self.fleet.usable()}
        commands: list[Command] = []
        for name in self.members:
            trial = self.trials[name]
            stays = all(piece.instance in usable for piece in trial.placement)
            if trial.status == "parked":
                trial.status = "waiting"
                trial.rewind()
            elif stays and trial.width == self.stage_plan.width:
                trial.status = "training"
                commands.append(ExtendTrial(trial.session, self.stage_plan.stage.end_epoch))
            else:
                commands.append(self._stop(trial, "waiting"))
        return commands

    def _fit_fleet(self) -> Iterable[Command]:
        """Give back what is surplus and empty; request what is missing and affordable."""
        commands: list[Command] = []
        busy = {piece.instance for piece in self._taken()}
        for rented in self.fleet.alive():
            if rented.surplus and not rented.released and rented.instance not in busy:
                rented.released = True
                commands.append(Release(rented.intent))
        missing = self._wanted_instances() - len(self.fleet.wanted())
        for _ in range(missing if self.now >= self.relaunch_at else 0):
            if not self._affordable():
                break
            rented = self.fleet.request(self.plan.offer, self.now)
            offer = rented.offer
            commands.append(Launch(rented.intent, offer.instance_type.name, offer.market))
        if not self.fleet.wanted() and not commands and self.now >= self.relaunch_at:
            self._end(EndReason.BUDGET)
        return commands

    def _wanted_instances(self) -> int:
        """What the stage's plan says, but never more than the trials that are left can use."""
        plan, gpus = self.stage_plan, self.plan.offer.gpus
        left = sum(self.trials[name].status not in OVER for name in self.members)
        if plan.width > gpus:
            useful = left * math.ceil(plan.width / gpus)
        else:
            useful = math.ceil(left / math.floor(gpus / plan.width + 1e-6))
        return min(plan.instances, max(useful, len(self.fleet.wanted())))

    def _affordable(self) -> bool:
        """Whether one more instance's minimum charge still fits the budget."""
        if self.limits.budget is None:
            return True
        ahead = self.now + self.brakes.tick + self.brakes.drain
        return self.fleet.dollars(ahead) + self.plan.offer.charge(0.0) <= self.limits.budget

    def _taken(self) -> Iterable[Slice]:
        return [piece for trial in self.trials.values() for piece in trial.placement]

    def _fill_slots(self) -> Iterable[Command]:
        """Start waiting trials where they fit; let those at the rung make room for the rest."""
        gpus = {r.instance: r.offer.gpus for r in self.fleet.usable() if r.instance}
        waiting = [t for name in self.members if (t := self.trials[name]).status == "waiting"]
        commands: list[Command] = []
        for trial in waiting:
            placement = self._place(gpus)
            if placement is None:
                return [*commands, *self._make_room()]
            commands.append(self._start(trial, placement))
        return commands

    def _place(self, gpus: dict[str, int]) -> tuple[Slice, ...] | None:
        free = free_gpus(gpus, self._taken())
        return place(self.stage_plan.width, self.plan.offer.gpus, free)

    def _make_room(self) -> Iterable[Command]:
        idle = [t for name in self.members if (t := self.trials[name]).status == "at rung"]
        return [self._stop(trial, "parked") for trial in idle]

    def _start(self, trial: TrialProgress, placement: tuple[Slice, ...]) -> Command:
        trial.sessions += 1
        trial.status = "starting"
        trial.width, trial.placement = self.stage_plan.width, placement
        return StartTrial(
            session=trial.session,
            trial=trial.id,
            config=trial.trial.config,
            width=trial.width,
            placement=placement,
            checkpoint=trial.checkpoint,
            start_epoch=trial.epoch,
            until_epoch=self.stage_plan.stage.end_epoch,
        )

    def _wind_down(self) -> Iterable[Command]:
        """Stop every session and give every instance back, then end; repeat until confirmed."""
        commands: list[Command] = [
            self._stop(trial, "parked")
            for trial in self.trials.values()
            if trial.live and trial.status != "stopping"
        ]
        for rented in self.fleet.alive():
            if not rented.released:
                rented.released = True
                commands.append(Release(rented.intent))
        if any(isinstance(command, Release) for command in commands) and self.cleanups == 0:
            commands.append(SetTimer("cleanup", self.now + self.brakes.cleanup))
        if not self.fleet.alive() or self.cleanups > self.brakes.patience:
            self.ended = True
            assert self.ending is not None
            commands.append(EndRun(self.ending))
        return commands

    def ranking(self) -> list[TrialProgress]:
        """Return all trials, the furthest and then the best first."""
        mode = self.metric.mode
        return sorted(
            self.trials.values(), key=lambda t: (-t.epoch, rank_key(mode, t.metric), t.id)
        )

    def first_error(self) -> TrialProgress | None:
        """Return the failed trial that a person should look at first."""
        return next((t for t in self.trials.values() if t.error), None)
