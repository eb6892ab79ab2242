"""The state machine of a run: carries a plan out, within a deadline and a budget.

Pure: it knows no cloud, no clock and no files. Time enters as `event.at`, randomness not at all,
so the simulator, the real run and the replay of a recorded run drive this same object.

One event goes in, commands come out:

    handle(event)  = take note of the event (`bookkeeping`), then `_advance` (`renting`)
    _advance       = wind down, if the run is to end
                     else close the stage, if all its trials have reached the rung
                     then fit the fleet to the stage, then start what waits and fits
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from cloudtune.bookkeeping import Brakes, Metric
from cloudtune.commands import Command, ExtendTrial, Launch, SetTimer, StartTrial
from cloudtune.fleet import Trouble
from cloudtune.placement import can_train, enough, open_groups, place, rooms
from cloudtune.progress import OVER
from cloudtune.renting import Renter
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.events import EpochDone, Event, TimerFired
    from cloudtune.plan import Group, Limits, Plan, StagePlan
    from cloudtune.progress import Status, TrialProgress
    from cloudtune.strategies.base import StagedStrategy
    from cloudtune.trial import Slice, Trial, TrialId, Width

__all__ = ["Brakes", "Metric", "Policy", "RunPolicy"]


class Policy(Protocol):
    """What a world is driven by."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        ...


class RunPolicy(Renter):
    """Runs the stages of a strategy on the fleets of a plan.

    With `heartbeat` it looks at the clock every tick, otherwise only when something is due; large
    simulations leave that out, and the check of the state at every event (`checked`).
    """

    def __init__(
        self,
        *,
        trials: Sequence[Trial],
        strategy: StagedStrategy,
        plan: Plan,
        metric: Metric,
        limits: Limits,
        brakes: Brakes | None = None,
        zones: Sequence[str] = (),
        heartbeat: bool = True,
        checked: bool = True,
    ) -> None:
        super().__init__(
            trials=trials,
            metric=metric,
            limits=limits,
            brakes=brakes,
            charges=plan.charges,
            zones=zones,
        )
        self.strategy = strategy
        self.plan = plan
        self.stage = 0
        self.stage_began: list[float] = []
        self.members: tuple[TrialId, ...] = tuple(self.trials)
        self.held_back: Counter[Offer] = Counter()  # launches that wait for others to be gone
        self._heartbeat, self._checked = heartbeat, checked
        self._ticking, self._brake_at = False, 0.0
        self._reported: TrialProgress | None = None

    @property
    def stage_plan(self) -> StagePlan:
        """The plan of the current stage."""
        return self.plan.stages[self.stage]

    def forecast(self, at: float) -> float:
        """Return what the run will have cost if the rest goes by the plan."""
        if self.ending is not None or not self.stage_began:
            return self.spent(at)
        now = self.stage_plan
        left = max(0.0, 1 - (at - self.stage_began[-1]) / now.seconds)
        later = self.plan.stages[self.stage + 1 :]
        return self.spent(at) + left * now.dollars + sum(stage.dollars for stage in later)

    def _admits(self, alive: Counter[Offer]) -> bool:
        return self.plan.admits(alive)

    def _rung_of(self, trial: TrialProgress) -> int:
        """Return the epoch at which the stage ends for a trial: the rung, or its own last one."""
        rung, last = self.stage_plan.stage.end_epoch, trial.trial.epochs
        return rung if last is None else min(rung, last)

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        commands = super()._note_epoch(event)
        self._reported = self._session(event.session)
        return commands

    def _note_begin(self) -> list[Command]:
        self.stage_began.append(self.now)
        return super()._note_begin()

    def _advance(self) -> Iterable[Command]:
        if self.ending is None:
            self._brake()
        commands: list[Command] = []
        if self.ending is None:
            commands += self._close_stage()
        if self.ending is None:
            commands += self._move_off()
            commands += self._fit_fleet()
            commands += self._fill_slots()
        if self.ending is not None:
            commands += self._wind_down()
        if not (self._heartbeat or self.ended):
            commands += self._set_timers(commands)
        return commands

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        if self._checked:
            super().check_invariants()

    # ---- time ----------------------------------------------------------------------------

    def _note_timer(self, event: TimerFired) -> Iterable[Command]:
        if event.name == "brake":
            return []
        self._ticking = self._ticking and event.name != "tick"
        return super()._note_timer(event)

    def _next_tick(self) -> list[Command]:
        return super()._next_tick() if self._heartbeat else []

    def _set_timers(self, commands: Sequence[Command]) -> list[Command]:
        """Be woken when a limit comes near, and every tick while something may be overdue."""
        timers: list[Command] = []
        if self.now >= self._brake_at or any(isinstance(c, Launch) for c in commands):
            self._brake_at = self._next_brake()
            if math.isfinite(self._brake_at):
                timers.append(SetTimer("brake", self._brake_at))
        if self._restless() and not self._ticking:
            self._ticking = True
            timers.append(SetTimer("tick", self.now + self.brakes.tick))
        return timers

    # ---- the stage -----------------------------------------------------------------------

    def _close_stage(self) -> Iterable[Command]:
        """At the rung: choose who goes on; at the last one, end the run."""
        members = [self.trials[name] for name in self.members]
        left = [trial for trial in members if trial.status not in OVER]
        if not all(map(self._at_rung, left)):
            return []
        results = {t.id: t.history.get(self._rung_of(t)) for t in left}
        chosen = self._promote({t.id: results[t.id] for t in left if not self._complete(t)})
        if self.ending is not None:
            return []
        if not chosen:
            return self._finish(results)
        self.stage += 1
        self.stage_began.append(self.now)
        self._begin_afresh()
        self.members = chosen
        out = [trial for trial in left if trial.id not in chosen]
        retired = [self._retire(t, "finished" if self._complete(t) else "cut") for t in out]
        self._choose_surplus()
        return [*(c for c in retired if c), *self._carry_on()]

    def _promote(self, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the trials of the next stage, of those that can train on; none ends the run."""
        return self.strategy.promote(self.stage, results)

    def _at_rung(self, trial: TrialProgress) -> bool:
        return trial.epoch >= self._rung_of(trial) and trial.status in {"at rung", "parked"}

    @staticmethod
    def _complete(trial: TrialProgress) -> bool:
        """Whether a trial has trained to a last epoch of its own."""
        last = trial.trial.epochs
        return last is not None and trial.epoch >= last

    def _finish(self, results: Iterable[TrialId]) -> Iterable[Command]:
        """End the run; it has failed if no trial reached the last rung that there was."""
        finished = any(trial.status == "finished" for trial in self.trials.values())
        self._end(EndReason.DONE if results or finished else EndReason.FAILED)
        stops = [self._retire(self.trials[name], "finished") for name in results]
        return [stop for stop in stops if stop]

    def _retire(self, trial: TrialProgress, after: Status) -> Command | None:
        if trial.live:
            return self._stop(trial, after)
        trial.status = after
        return None

    def _choose_surplus(self) -> None:
        """Mark what the new stage doesn't need of each offer, those with fewest survivors first."""
        staying = self._survivors()
        for offer, count in self.fleet.held().items():
            group = self.stage_plan.group(offer)
            extra = count - (group.instances if group else 0)
            # Of equal worth the oldest go: they have paid their minimum charge.
            held = [rented for rented in self.fleet.wanted() if rented.offer == offer]
            held.sort(key=lambda rented: (rented.joined, staying[rented.instance or ""]))
            for rented in held[: max(0, extra)]:
                rented.surplus = True

    def _survivors(self) -> Counter[str]:
        """Return how many trials could train on where they are, by instance."""
        trials = [self.trials[name] for name in self.members]
        pieces = (piece for t in trials if t.live and self._fits(t) for piece in t.placement)
        return Counter(piece.instance for piece in pieces)

    def _fits(self, trial: TrialProgress) -> bool:
        """Whether a trial has the width that its offer has in this stage."""
        group = self.stage_plan.group(trial.offer) if trial.offer else None
        return group is not None and self._width(group, trial) == trial.width

    def _carry_on(self) -> Iterable[Command]:
        """Let survivors train on where they are, if the new stage has them there, or move them."""
        usable = {r.instance for r in self.fleet.usable()}
        room = Counter({group.offer: group.trials for group in self.stage_plan.groups})
        commands: list[Command] = []
        for name in self.members:
            trial = self.trials[name]
            stays = all(piece.instance in usable for piece in trial.placement)
            if trial.status == "parked":
                trial.status, trial.offer = "waiting", None
                trial.rewind()
            elif stays and self._fits(trial) and trial.offer and room[trial.offer] > 0:
                room[trial.offer] -= 1
                trial.status = "training"
                commands.append(ExtendTrial(trial.session, self._rung_of(trial)))
            else:
                commands.append(self._stop(trial, "waiting"))
        return commands

    def _move_off(self) -> Iterable[Command]:
        """Stop who has just finished an epoch on an instance that is to go, if there is a seat."""
        trial, self._reported = self._reported, None
        if trial is None or trial.status != "training" or trial.checkpoint_epoch < trial.epoch:
            return []
        usable = {r.instance for r in self.fleet.usable()}
        if all(piece.instance in usable for piece in trial.placement):
            return []
        seats = (self._place(group, trial) for group in self.stage_plan.groups)
        return [self._stop(trial, "waiting")] if any(seats) else []

    def _seated(self) -> Counter[Offer]:
        """Return how many trials each group has in this stage, those that are done with it too."""
        members = (self.trials[name] for name in self.members)
        return Counter(t.offer for t in members if t.offer is not None and t.status not in OVER)

    def _can_train(self, more: Iterable[Offer] = ()) -> bool:
        """Whether what is rented, and these besides, are enough for a single trial anywhere."""
        instances = self.fleet.held() + Counter(more)
        return any(can_train(group, instances) for group in self.stage_plan.groups)

    # ---- the fleet -----------------------------------------------------------------------

    def _fit_fleet(self) -> Iterable[Command]:
        """Give back what is surplus and empty; request what is missing, as soon as it may be."""
        busy = {piece.instance for piece in self._taken()}
        commands: list[Command] = [
            self._release(rented)
            for rented in self.fleet.alive()
            if rented.surplus and not rented.released and rented.instance not in busy
        ]
        self._give_up_if_hopeless()
        if self.ending is not None:
            return commands
        missing = Counter({o: n for o, n in self._missing().items() if self._may_ask(o)})
        self.held_back = missing if self._must_wait(missing) else Counter()
        if missing and not self.held_back:
            commands += self._rent(missing)
        return commands

    def _must_wait(self, missing: Counter[Offer]) -> bool:
        """Whether these have no room yet, because others are still going."""
        alive = Counter(rented.offer for rented in self.fleet.alive())
        some_are_going = alive.total() > len(self.fleet.wanted())
        return some_are_going and not self.plan.admits(alive + missing)

    def _missing(self) -> Counter[Offer]:
        """Return what of the stage's plan isn't there or on its way, by offer.

        Where trials have failed, or instances were lost, no more than what still has to train.
        """
        plan, held = self.stage_plan, self.fleet.held()
        members = [self.trials[name] for name in self.members]
        left = sum(trial.status not in OVER for trial in members)
        needed = Counter({group.offer: group.instances for group in plan.groups})
        if self.disturbed or left < plan.stage.trials:
            needed = self._needed_for([trial for trial in members if trial.under_way], held)
        return needed - held

    def _needed_for(
        self, training: Sequence[TrialProgress], held: Counter[Offer]
    ) -> Counter[Offer]:
        """Return the instances that these trials need, where they sit and where they still fit."""
        left = len(training)
        seated = Counter(trial.offer for trial in training if trial.offer is not None)
        needed: Counter[Offer] = Counter()
        waiting = left - seated.total()
        for group in self.stage_plan.groups:
            joining = max(0, min(group.trials - seated[group.offer], waiting))
            waiting -= joining
            trials = seated[group.offer] + joining
            needed[group.offer] = enough(group, trials, held[group.offer])
        return needed

    def _rent(self, missing: Counter[Offer]) -> Iterable[Command]:
        """Request what the budget allows; end the run if that can't train a single trial."""
        room = self.plan.max_instances - len(self.fleet.alive())
        affordable = self._affordable([*missing.elements()][:room])
        if not self._can_train(affordable):
            self._end(EndReason.BUDGET)
            return []
        return [self._launch(offer) for offer in affordable]

    def _begin_afresh(self) -> None:
        """Forget what went wrong with the last stage's launches, but what is refused for good."""
        self.troubles = {
            offer: Trouble(for_good=True) for offer, t in self.troubles.items() if t.for_good
        }
        self.disturbed = False

    def _give_up_if_hopeless(self) -> None:
        """End the run if nothing trains, and no offer of the stage is worth asking for again."""
        offers = [group.offer for group in self.stage_plan.groups]
        found = [self._trouble(offer) for offer in offers]
        if self._can_train() or not all(t.used_up(self.brakes.refusals) for t in found):
            return
        # The cloud was willing where instances came and failed, but not where it takes them back.
        failed = all(
            trouble.for_good
            or (trouble.no_shows >= self.brakes.refusals and offer.market == "on-demand")
            for offer, trouble in zip(offers, found, strict=True)
        )
        self._end(EndReason.FAILED if failed else EndReason.NO_CAPACITY)

    # ---- the slots -----------------------------------------------------------------------

    def _fill_slots(self) -> Iterable[Command]:
        """Start waiting trials where they fit; let those at the rung make room for the rest."""
        waiting = [t for name in self.members if (t := self.trials[name]).status == "waiting"]
        seated, instances = self._seated(), self.fleet.held() + self.held_back
        commands: list[Command] = []
        for trial in waiting:
            groups = open_groups(self.stage_plan.groups, seated, instances)
            found = next(((g, at) for g in groups if (at := self._place(g, trial))), None)
            if found is None:
                return [*commands, *self._make_room(groups)]
            commands.append(self._start(trial, *found))
            seated[found[0].offer] += 1
        return commands

    def _width(self, group: Group, trial: TrialProgress) -> Width:
        return max(group.width, trial.least_width)

    def _place(self, group: Group, trial: TrialProgress) -> tuple[Slice, ...] | None:
        usable = (r for r in self.fleet.usable() if r.offer == group.offer)
        gpus = {r.instance: group.offer.gpus for r in usable if r.instance}
        width = self._width(group, trial)
        return place(width, group.offer.gpus, rooms(gpus, self._taken()))

    def _make_room(self, groups: Iterable[Group]) -> Iterable[Command]:
        offers = {group.offer for group in groups}
        members = (self.trials[name] for name in self.members)
        idle = [t for t in members if t.status == "at rung" and t.offer in offers]
        return [self._stop(trial, "parked") for trial in idle]

    def _start(self, trial: TrialProgress, group: Group, placement: tuple[Slice, ...]) -> Command:
        trial.sessions += 1
        trial.status, trial.offer = "starting", group.offer
        trial.width, trial.placement = self._width(group, trial), placement
        return StartTrial(
            session=trial.session,
            trial=trial.id,
            config=trial.trial.config,
            width=trial.width,
            placement=placement,
            checkpoint=trial.checkpoint,
            start_epoch=trial.epoch,
            until_epoch=self._rung_of(trial),
        )
