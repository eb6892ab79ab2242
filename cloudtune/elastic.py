"""The state machine of a run whose strategy decides as results come in, on an elastic fleet.

Pure, as `RunPolicy` is: simulator, real run and replay drive this same object. Three choices are
put together here, and none knows of the others: the strategy (which trials, how far), the
allocator (how wide) and the fleet rule (how many instances).

    _advance = wind down, if the run is to end
               else let the strategy judge the trial that reported, and resize it if that pays
               then start what is wanted and fits, then fit the fleet to what runs and is wanted
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from cloudtune.commands import Command, ExtendTrial, SetTimer, StartTrial
from cloudtune.elastic_books import ElasticBooks, Move
from cloudtune.progress import TrialProgress
from cloudtune.strategies.base import Go, Task, Verdict
from cloudtune.trial import EndReason, better

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.events import TimerFired
    from cloudtune.progress import Status
    from cloudtune.seats import Seat
    from cloudtune.trial import Width

_AFTER: dict[Verdict, Status] = {
    Verdict.HOLD: "parked",
    Verdict.PAUSE: "parked",
    Verdict.CUT: "cut",
    Verdict.FINISH: "finished",
}
_LIMITS = frozenset({EndReason.DEADLINE, EndReason.BUDGET})


class ElasticPolicy(ElasticBooks):
    """Carries a strategy out.

    `most_concurrent` caps the trials that run at once; a `target` metric that is reached ends the
    run. With `heartbeat` it looks at the clock every tick, otherwise only when something is due.
    """

    # ---- deciding ------------------------------------------------------------------------

    def _advance(self) -> Iterable[Command]:
        if self.ending is None:
            self._brake()
        commands: list[Command] = []
        if self.ending is None and self._reported is not None:
            commands += self._judge(self._reported)
        if self.ending is None and self._changed:
            self._changed = False
            commands += self._retract()
            if self.strategy.done(self):
                self._end(EndReason.DONE if self.best is not None else EndReason.FAILED)
            else:
                commands += self._fill()
        if self.ending is not None:
            return [*commands, *self._wind_down()]
        return [*commands, *self._set_timers()]

    def _brake(self) -> None:
        """End the run while what it holds can still be given back within both limits."""
        if self.now >= self._brake_at:
            super()._brake()

    def _end(self, reason: EndReason) -> None:
        """Note why the run ends; for a strategy that uses all it is given a limit is its aim."""
        reached = reason in _LIMITS and self.strategy.anytime and self.best is not None
        super()._end(EndReason.DONE if reached else reason)

    def _judge(self, trial: TrialProgress) -> Iterable[Command]:
        best = self.best
        if self.target is not None and best is not None and self._reaches(best.metric):
            self._end(EndReason.DONE)
            return []
        decision = self.strategy.judge(self, trial)
        if not isinstance(decision, Go):
            return self._carry_out(trial, decision)
        until = max(decision.until, self._until[trial.id])
        if until <= trial.epoch:
            raise AssertionError(f"{self.strategy.name} lets {trial.id} go on to epoch {until}")
        granted, self._until[trial.id] = self._until[trial.id], until
        moved = self._resize(trial)
        if moved is not None:
            return [moved]
        trial.status = "training"
        return [ExtendTrial(trial.session, until)] if until > granted else []

    def _reaches(self, metric: float) -> bool:
        return self.target is not None and not better(self.mode, self.target, metric)

    def _carry_out(self, trial: TrialProgress, verdict: Verdict) -> Iterable[Command]:
        if verdict is Verdict.HOLD and trial.epoch >= self._until[trial.id]:
            self._changed = True
            return []
        return [self._stop(trial, _AFTER[verdict])]  # one that is to hold would train on

    def _retract(self) -> Iterable[Command]:
        """Stop what the strategy wants back."""
        commands = []
        for name, verdict in self.strategy.retract(self).items():
            trial = self.trials[name]
            if self._again.pop(name, None) is not None:
                self._drop_move(trial)
                trial.status = _AFTER[verdict]
            elif trial.status == "stopping" and trial.after == "waiting":
                self._drop_move(trial)
                trial.after = _AFTER[verdict]
            elif trial.live and trial.status != "stopping":
                commands.append(self._stop(trial, _AFTER[verdict]))
        return commands

    def _resize(self, trial: TrialProgress) -> Command | None:
        """Begin to move a trial to the width that it should have, if there is room for it now.

        One whose instance is to go moves as it is. None moves whose last epoch wasn't saved: it
        would train it again, and again after each move. Its own GPUs are its own until it has
        stopped; what it grows by is kept for it.
        """
        if trial.checkpoint_epoch < trial.epoch:
            return None
        width = max(self.allocator.resized(self, trial) or trial.width, trial.least_width)
        assert trial.offer is not None
        stays = all(piece.instance in self._seats.offers for piece in trial.placement)
        if width == trial.width and stays:
            return None
        found = self._seats.move(width, trial.offer, trial.placement)
        if found is None:
            return None
        seat, reserved = found
        self._moves[trial.id] = Move(seat[0], width, reserved)
        self.resizes += 1
        return self._stop(trial, "waiting")

    # ---- starting ------------------------------------------------------------------------

    def _fill(self) -> Iterable[Command]:
        """Start what is wanted and fits; fit the fleet to what runs and what is wanted."""
        commands = [self._start(*found) for found in self._seated_again()]
        least = self.allocator.least(self)
        tasks = self._wanted(least)
        going_on = [task for task in tasks if self._goes_on(task)]
        for task in going_on:  # all before any of them: an allocator sees them as one group
            self._until[task.trial.id] = task.until
        commands += [self._let_on(self.trials[task.trial.id]) for task in going_on]
        starting, waiting = self._seated_tasks(tasks)
        commands += starting
        missing = sum(waiting) + sum(t.width or least for t in self._again.values())
        commands += self._make_room(missing)
        needed = sum([trial.width for trial in self._live.values()]) + missing
        commands += self._fit_fleet(needed)
        if self.ending is None and not self._live and self._settled:
            commands += self._unstick(tasks)
        return commands

    @property
    def _settled(self) -> bool:
        """Whether no instance comes or goes, nor will: what is refused again and again won't."""
        paused = (o for o, trouble in self.troubles.items() if self.now < trouble.relaunch_at)
        return not self.fleet.unsettled() and all(self.refused(offer) for offer in paused)

    def _unstick(self, tasks: Sequence[Task]) -> list[Command]:
        """Where nothing trains or would ever: start what waits at any width, or end the run.

        What it pays for would stand idle to the end of the budget.
        """
        again = [Task(trial.trial, self._until[trial.id]) for trial in self._again.values()]
        commands: list[Command] = []
        for task in (*again, *tasks):
            found = self._any_seat(self._widths_for([task])[0])
            if found is not None and not self._full:
                self._again.pop(task.trial.id, None)
                commands.append(self._start(task, *found))
        if not commands and (again or tasks or self.strategy.wake_at(self) is None):
            refused = any(self.refused(offer) for offer in self.troubles)
            self.trouble = self.trouble or "nothing of what is left to train fits on what is rented"
            self._end(EndReason.NO_CAPACITY if refused else EndReason.FAILED)
        return commands

    def _any_seat(self, asked: Width) -> tuple[Seat, Width] | None:
        """Return a free seat of the width asked for, of a narrower one, or else of a wider one."""
        known = {width for each in self.rentables for width in each.profile.widths}
        for width in sorted(known, key=lambda width: (width > asked, abs(width - asked))):
            seat = self._seats.find(width)
            if seat is not None:
                return seat, width
        return None

    def _seated_again(self) -> Iterable[tuple[Task, Seat, Width]]:
        """Yield what was moved or lost, with its new seat: before anything new is started."""
        for trial in list(self._again.values()):
            task, move = Task(trial.trial, self._until[trial.id]), self._moves.get(trial.id)
            self._drop_move(trial)
            if move is not None:
                widths: Sequence[Width] = (move.width, trial.width)
            else:
                widths = self._widths_again(task)
            first = None if move is None else move.offer
            for width in widths:
                seat = self._seats.find(width, first) if width and not self._full else None
                if seat is not None:
                    del self._again[trial.id]
                    yield task, seat, width
                    break

    def _widths_again(self, task: Task) -> Sequence[Width]:
        """Return the widths at which a lost trial may go on, the best first.

        With what is left of its GPUs at once: a resize is soon done, another instance's boot isn't.
        """
        wanted = self._widths_for([task])[0]
        if not wanted:
            return []
        known = {width for each in self.rentables for width in each.profile.widths}
        least = self.trials[task.trial.id].least_width
        narrower = (width for width in known if max(least, 1e-9) <= width < wanted)
        return [wanted, *sorted(narrower, reverse=True)]

    def _widths_for(self, tasks: Sequence[Task]) -> list[Width]:
        """Return the allocator's widths, but none at which the trial ran out of memory before."""
        widths = self.allocator.widths(self, tasks)
        return [
            max(width, self.trials[task.trial.id].least_width)
            if width and task.trial.id in self.trials
            else width
            for task, width in zip(tasks, widths, strict=True)
        ]

    @property
    def _full(self) -> bool:
        """Whether as many trials hold GPUs as may; some of them may only wait at a rung."""
        return self.most_concurrent is not None and len(self._live) >= self.most_concurrent

    def _wanted(self, least: Width) -> list[Task]:
        """Return what the strategy wants to begin, no more than there is or might be room for."""
        busy = sum([t.width for t in self._live.values() if t.status != "at rung"])
        room = math.floor((self.fleet_rule.most_gpus(self) - busy) / least + 1e-6)
        if self.most_concurrent is not None:
            idle = sum(t.status == "at rung" for t in self._live.values())
            room = min(room, self.most_concurrent - len(self._live) + idle)
        # Where nothing trains, one is asked for, however wide: it may have to do with less.
        room = max(room, 1 if all(t.status == "at rung" for t in self._live.values()) else 0)
        room -= len(self._again)
        groups = self.strategy.requests(self, room) if room > 0 else ()
        return [task for group in groups for task in group.tasks]

    def _goes_on(self, task: Task) -> bool:
        """Whether it is to train on from the rung where it waits on its GPUs."""
        trial = self.trials.get(task.trial.id)
        return trial is not None and trial.status == "at rung" and task.until > trial.epoch

    def _let_on(self, trial: TrialProgress) -> Command:
        """Let a trial that waits at its rung train on where it is, or move to its new width."""
        moved = self._resize(trial)
        if moved is not None:
            return moved
        trial.status = "training"
        return ExtendTrial(trial.session, self._until[trial.id])

    def _seated_tasks(self, tasks: Sequence[Task]) -> tuple[list[Command], list[Width]]:
        """Start the tasks that fit, in order; returns the widths of those that have to wait."""
        known = self.trials
        ready = [t for t in tasks if t.trial.id not in known or not known[t.trial.id].live]
        commands: list[Command] = []
        waiting: list[Width] = []
        for task, width in zip(ready, self._widths_for(ready), strict=True):
            seat = self._seats.find(width) if width and not self._full else None
            if seat is None:
                waiting.append(width)
            else:
                commands.append(self._start(task, seat, width))
        return commands, waiting

    def _start(self, task: Task, seat: Seat, width: Width) -> Command:
        trial = self.trials.get(task.trial.id)
        if trial is None:
            trial = self.trials[task.trial.id] = self._new(task)
        elif trial.status == "parked":
            trial.rewind()
        self._until[trial.id], self._live[trial.id] = task.until, trial
        self._asked[trial.id] = self.now
        trial.sessions += 1
        trial.status, trial.width = "starting", width
        trial.offer, trial.placement = seat
        self._seats.take(trial.placement)
        return StartTrial(
            session=trial.session,
            trial=trial.id,
            config=trial.trial.config,
            width=width,
            placement=trial.placement,
            checkpoint=trial.checkpoint,
            start_epoch=trial.epoch,
            until_epoch=task.until,
        )

    def _new(self, task: Task) -> TrialProgress:
        trial = TrialProgress(task.trial)
        if task.clone_of is not None:
            parent = self.trials[task.clone_of]
            trial.checkpoint, trial.checkpoint_epoch = parent.checkpoint, parent.checkpoint_epoch
            trial.epoch = parent.checkpoint_epoch
        return trial

    def _make_room(self, waiting: float) -> Iterable[Command]:
        """Stop some of what only waits at a rung, where others wait for its GPUs."""
        if waiting <= 0:
            return []
        waiting -= sum(t.width for t in self._live.values() if t.status == "stopping")
        idle = [trial for trial in self._live.values() if trial.status == "at rung"]
        commands = []
        while waiting > 0 and idle:
            waiting -= idle[-1].width
            commands.append(self._stop(idle.pop(), "parked"))
        return commands

    # ---- the fleet -----------------------------------------------------------------------

    def _fit_fleet(self, needed: float) -> Iterable[Command]:
        """Give back what is empty and too much; request what is missing, as far as limits allow."""
        target = +Counter(dict(self.fleet_rule.target(self, needed)))
        if target.items() == self.fleet.held().items() and not self.fleet.returning():
            return []
        extra = self.fleet.held() - target
        commands = list(self._shrink(extra))
        if self.fleet_rule.repacks:
            self._drain(extra)
        missing = target - self.fleet.held()
        askable = Counter({offer: n for offer, n in missing.items() if self._may_ask(offer)})
        alive = Counter(rented.offer for rented in self.fleet.alive())
        for offer in self._affordable(askable.elements()):
            if self._admits(alive + Counter([offer])):
                alive[offer] += 1
                commands.append(self._launch(offer))
                self._brake_at = 0.0
        self._give_up_if_hopeless(target)
        return commands

    def _shrink(self, extra: Counter[Offer]) -> Iterable[Command]:
        """Give back empty instances: lost ones, and of the rest what boots still goes first."""
        reserved = (piece for move in self._moves.values() for piece in move.reserved)
        busy = {piece.instance for piece in (*self._taken(), *reserved)}
        empty = [r for r in self.fleet.alive() if not r.released and r.instance not in busy]
        for rented in sorted(empty, key=lambda r: r.joined):
            if not rented.surplus and extra[rented.offer] > 0:
                extra[rented.offer] -= 1
                rented.surplus = True
            if rented.surplus:
                yield self._release(rented)
        self._follow_fleet()

    def _drain(self, extra: Counter[Offer]) -> None:
        """Have the emptiest instances go once their trials have moved to free GPUs of others.

        They move when their next epoch is done (`_resize`); until then the instance stays.
        """
        for offer in [offer for offer, count in extra.items() if count > 0]:
            free = {name: room.free for name, room in self._seats.free.get(offer, {}).items()}
            elsewhere = sum(free.values())
            for instance in sorted(free, key=lambda name: (-free[name], name))[: extra[offer]]:
                elsewhere -= free[instance]
                load = offer.gpus - free[instance]
                if load > elsewhere:
                    break
                elsewhere -= load
                self.fleet.of(instance).surplus = True
        self._follow_fleet()

    def _give_up_if_hopeless(self, target: Counter[Offer]) -> None:
        """End the run if nothing is rented, and nothing that it wants can be."""
        if self.fleet.alive() or not target:
            return
        troubles = [self._trouble(offer) for offer in target]
        hopeless = [trouble.used_up(self.brakes.refusals) for trouble in troubles]
        if all(hopeless):
            failed = all(t.for_good or t.no_shows >= self.brakes.refusals for t in troubles)
            self._end(EndReason.FAILED if failed else EndReason.NO_CAPACITY)
        elif all(self.now >= trouble.relaunch_at for trouble in troubles):
            late = not any(self._would_join(offer) for offer in target)
            self._end(EndReason.DEADLINE if late else EndReason.BUDGET)  # none was asked for

    def _may_ask(self, offer: Offer) -> bool:
        """Whether to ask for one now: not for what is paid for, and won't come to train."""
        absent = self._trouble(offer).no_shows >= self.brakes.refusals
        boot = offer.charge(self._by_offer[offer].profile.boot.mean)
        paid = boot + self.charges.usd_per_launch <= self.dollars_left
        return super()._may_ask(offer) and not absent and paid and self._would_join(offer)

    def _would_join(self, offer: Offer) -> bool:
        """Whether one that is asked for now would join before the run must begin to give back."""
        profile = self._by_offer[offer].profile
        return profile.launch.mean + profile.boot.mean < self.seconds_left

    # ---- time ----------------------------------------------------------------------------

    def _note_timer(self, event: TimerFired) -> Iterable[Command]:
        self._timers.pop(event.name, None)
        if event.name in {"brake", "wake"}:
            return []
        return super()._note_timer(event)

    def _next_tick(self) -> list[Command]:
        return []  # `_set_timers` does it

    def _set_timers(self) -> Iterable[Command]:
        """Be woken when a limit comes near, when the strategy asks for it, or for housekeeping."""
        if self.now >= self._brake_at:
            self._brake_at = self._next_brake()
        timers = self._timer("brake", self._brake_at)
        wake = self.strategy.wake_at(self)
        if wake is not None and wake > self.now:
            timers += self._timer("wake", wake)
        if "tick" not in self._timers and (self._heartbeat or self._restless()):
            timers += self._timer("tick", self.now + self.brakes.tick)
        return timers

    def _timer(self, name: str, at: float) -> list[Command]:
        """Return what sets a timer, if it isn't set to that time already."""
        if at == math.inf or self._timers.get(name) == at:
            return []
        self._timers[name] = at
        return [SetTimer(name, at)]
