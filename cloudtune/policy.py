"""The state machine of a run: carries a plan out, within a deadline and a budget.

Pure: it knows no cloud, no clock and no files. Time enters as `event.at`, randomness not at all,
so the simulator, the real run and the replay of a recorded run drive this same object.

One event goes in, commands come out:

    handle(event)  = take note of the event (`bookkeeping`), then `_advance`
    _advance       = wind down, if the run is to end
                     else close the stage, if all its trials have reached the rung
                     then fit the fleet to the stage, then start what waits and fits
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cloudtune.bookkeeping import Books, Brakes, Metric
from cloudtune.commands import Command, EndRun, ExtendTrial, Launch, Release, SetTimer, StartTrial
from cloudtune.placement import free_gpus, place, slots
from cloudtune.progress import OVER
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtune.events import Event
    from cloudtune.fleet import Rented
    from cloudtune.progress import Status, TrialProgress
    from cloudtune.trial import Slice, TrialId

__all__ = ["Brakes", "Metric", "Policy", "RunPolicy"]


class Policy(Protocol):
    """What a world is driven by."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        ...


class RunPolicy(Books):
    """Runs the stages of a strategy on the fleets of a plan."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        if self.ended:
            return ()
        self.now = event.at
        commands = [*self._note(event), *self._advance()]
        self.check_invariants()
        return tuple(commands)

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

    @property
    def _ahead(self) -> float:
        """By when all could be given back, if that were decided only at the next tick."""
        return self.now + self.brakes.tick + self.brakes.drain

    def _brake(self) -> None:
        """End the run while what it holds can still be given back within both limits."""
        if self.limits.deadline is not None and self._ahead >= self.limits.deadline:
            self._end(EndReason.DEADLINE)
        elif not self._affordable(0):
            self._end(EndReason.BUDGET)

    def _affordable(self, more: int) -> bool:
        """Whether so many more instances could be rented, and all given back, on the budget."""
        if self.limits.budget is None:
            return True
        fresh = more * self.plan.offer.charge(self._ahead - self.now)
        return self.fleet.dollars(self._ahead) + fresh <= self.limits.budget

    # ---- the stage -----------------------------------------------------------------------

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
        self._choose_surplus()
        return [*(c for c in retired if c), *self._carry_on()]

    @staticmethod
    def _at_rung(trial: TrialProgress, rung: int) -> bool:
        return trial.epoch >= rung and trial.status in {"at rung", "parked"}

    def _finish(self, results: Iterable[TrialId]) -> Iterable[Command]:
        """End the run; it has failed if no trial reached the last rung that there was."""
        self._end(EndReason.DONE if results else EndReason.FAILED)
        stops = [self._retire(self.trials[name], "finished") for name in results]
        return [stop for stop in stops if stop]

    def _retire(self, trial: TrialProgress, after: Status) -> Command | None:
        if trial.live:
            return self._stop(trial, after)
        trial.status = after
        return None

    def _choose_surplus(self) -> None:
        """Mark the instances that the new stage doesn't need, those with fewest survivors first."""
        wanted = self.fleet.wanted()
        extra = max(0, len(wanted) - self.stage_plan.instances)
        for rented in sorted(wanted, key=self._worth)[:extra]:
            rented.surplus = True

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

    # ---- the fleet -----------------------------------------------------------------------

    def _fit_fleet(self) -> Iterable[Command]:
        """Give back what is surplus and empty; request what is missing and affordable."""
        busy = {piece.instance for piece in self._taken()}
        commands: list[Command] = [
            self._release(rented)
            for rented in self.fleet.alive()
            if rented.surplus and not rented.released and rented.instance not in busy
        ]
        missing = self._instances_needed() - len(self.fleet.wanted())
        if missing > 0 and self.now >= self.relaunch_at:
            commands += self._rent(missing)
        return commands

    def _instances_needed(self) -> int:
        """What the stage's plan says; where trials have failed, no more than the others can use."""
        plan, gpus = self.stage_plan, self.plan.offer.gpus
        left = sum(self.trials[name].status not in OVER for name in self.members)
        if left == plan.stage.trials:
            return plan.instances
        sizes = range(len(self.fleet.wanted()), plan.instances)
        enough = (size for size in sizes if slots(plan.width, gpus, size) >= left)
        return next(enough, plan.instances)

    def _rent(self, missing: int) -> Iterable[Command]:
        """Request as many as the budget allows; end the run if they can't train a single trial."""
        count = next((n for n in range(missing, 0, -1) if self._affordable(n)), 0)
        if not self._can_train(count):
            self._end(EndReason.BUDGET)
            return []
        offer = self.plan.offer
        intents = [self.fleet.request(offer, self.now).intent for _ in range(count)]
        return [Launch(intent, offer.instance_type.name, offer.market) for intent in intents]

    def _release(self, rented: Rented) -> Command:
        rented.released = True
        return Release(rented.intent)

    # ---- the slots -----------------------------------------------------------------------

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

    # ---- the end -------------------------------------------------------------------------

    def _wind_down(self) -> Iterable[Command]:
        """Stop every session and give every instance back, then end; repeat until confirmed."""
        commands: list[Command] = [
            self._stop(trial, "parked")
            for trial in self.trials.values()
            if trial.live and trial.status != "stopping"
        ]
        commands += [self._release(r) for r in self.fleet.alive() if not r.released]
        if not self.fleet.alive() or self.cleanups > self.brakes.patience:
            self.ended = True
            assert self.ending is not None
            commands.append(EndRun(self.ending))
        elif not self.winding_down:
            commands.append(SetTimer("cleanup", self.now + self.brakes.cleanup))
        self.winding_down = True
        return commands
