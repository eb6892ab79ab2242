"""The state machine of every run: a strategy, an allocator and a fleet rule within two limits.

Pure: it knows no cloud, no clock and no files. Time enters as `event.at` and there is no
randomness, so the simulator, the real run and the replay of a ledger drive this same object. One
event goes in, commands come out:

    handle(event)
        state.note        record it: trials, instances, GPUs, speeds              policy/state.py
        limits            does a limit end the run now?                          policy/limits.py
        strategy          what becomes of the trial that reported                 strategies/
        sessions          which trials stop, continue, start, where, how wide  policy/sessions.py
        fleet             what to return, what to rent                   policy/fleet_manager.py
        wind down         at the end: stop all, return all, until the cloud confirms it

A planned run uses the same machine: its strategy, allocator and fleet rule read a plan
(policy/schedule/executor.py).
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from cloudtune.errors import UnsavedError
from cloudtune.model.commands import Command, EndRun, SetTimer, StopTrial
from cloudtune.model.events import EpochDone, Event, RunContinued, TimerFired, TrialFailed
from cloudtune.model.fleet import FleetBook
from cloudtune.model.plans import Limits
from cloudtune.model.progress import OVER, BestResult, TrialProgress
from cloudtune.model.trial import EndReason, TrialId, better, rank_key
from cloudtune.policy.base import Components, Noted, TrialRules
from cloudtune.policy.failed_instance import TIMER as KEPT
from cloudtune.policy.failed_instance import FailedInstance
from cloudtune.policy.fleet_manager import CLEANUP, FleetKeeper, Returns
from cloudtune.policy.invariants import check
from cloudtune.policy.limits import LimitKeeper
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.policy.sessions import SessionKeeper
from cloudtune.policy.stalls import TIMER, StallWatch
from cloudtune.policy.state import RunState
from cloudtune.policy.widths import unsynced_text
from cloudtune.strategies.base import (
    Allocator,
    Breeds,
    Decision,
    FleetRule,
    Go,
    Shape,
    Strategy,
    Task,
)

_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")
_LIMITS = frozenset({EndReason.DEADLINE, EndReason.BUDGET})
_WITH_RESULT = _LIMITS | {EndReason.DONE}


class RunPolicy:
    """Carries a strategy out on an elastic fleet.

    `max_concurrent` caps the trials that run at once; reaching the `target` metric ends the run.
    With `heartbeat` the policy looks at the clock every tick, otherwise only when something is due.
    `checked` verifies the state after every event. Large simulations turn both off.
    """

    def __init__(
        self,
        state: RunState,
        components: Components,
        *,
        max_concurrent: int | None = None,
        target: float | None = None,
        rules: TrialRules | None = None,
        heartbeat: bool = True,
        checked: bool = True,
    ) -> None:
        self.state = state
        self.state.lookahead = components.allocator.lookahead
        self.components = components
        self.target = target
        self.ending: EndReason | None = None
        self._errors: Counter[str] = Counter()
        self.failed_alike = 0  # trials whose common error has ended the run
        self._limits = LimitKeeper(state)
        self._sessions = SessionKeeper(state, components.allocator, max_concurrent)
        self._fleet = FleetKeeper(state, self._limits, components.fleet_rule)
        self._rules = rules or TrialRules()
        self._stalls = StallWatch(state, self._rules)
        self._failed_instance = FailedInstance(state, self._rules.keep_failed)
        self._heartbeat = heartbeat
        self._checked = checked
        self._changed = True
        self._news = 0  # of the state, as of the last round
        self._cut_short: set[TrialId] = set()
        self._heard_late = False
        self._returns = Returns(state)
        self._timers: dict[str, float] = {}
        self._unheard: dict[TrialId, Decision | None] = {}  # reports that came as the run ended

    # ---- what others may look at -------------------------------------------------------------

    @property
    def strategy(self) -> Strategy:
        """Decides which trials train, and how far."""
        return self.components.strategy

    @property
    def allocator(self) -> Allocator:
        """Decides how wide each trial is."""
        return self.components.allocator

    @property
    def fleet_rule(self) -> FleetRule:
        """Decides how many instances of which offers there should be."""
        return self.components.fleet_rule

    @property
    def trials(self) -> Mapping[TrialId, TrialProgress]:
        return self.state.trials

    @property
    def fleet(self) -> FleetBook:
        """Every instance ever requested."""
        return self.state.fleet

    @property
    def best(self) -> BestResult | None:
        return self.state.best

    @property
    def best_lost(self) -> BestResult | None:
        """An epoch better than `best` that has no checkpoint; None if there is none."""
        best = self.state.record.best
        seen = self.state.record.seen
        lost = best is not None and seen is not None and seen.metric != best.metric
        return seen if lost else None

    @property
    def exit_code(self) -> int | None:
        """The run's documented exit code; None before its end.

        A run with a result whose best epoch could not be saved has its own code.
        """
        if self.ending is None:
            return None
        best = self.state.record.best
        seen = self.state.record.seen
        kept = best is not None and best.checkpoint is not None and self.best_lost is None
        if seen is not None and seen.unsaved and not kept and self.ending in _WITH_RESULT:
            return UnsavedError.exit_code
        return self.ending.exit_code

    @property
    def limits(self) -> Limits:
        return self.state.limits

    @property
    def now(self) -> float:
        """The time of the last event, in seconds of the run."""
        return self.state.now

    @property
    def ended(self) -> bool:
        """Whether the run is over and everything it rented was returned."""
        return self.state.ended

    @property
    def winding_down(self) -> bool:
        """Whether everything is being returned, or was."""
        return self._returns.began_at is not None

    @property
    def began(self) -> float | None:
        """When the run began; None before that."""
        return self.state.began

    @property
    def over_at(self) -> float:
        """When the last instance stopped billing; now if one still bills or none was rented."""
        return self.state.over_at

    @property
    def itinerary(self) -> Itinerary | None:
        """The plan that the run follows, and its position in it; None without a plan."""
        return self.components.itinerary

    def ranking(self) -> list[TrialProgress]:
        """Return all trials: those with the most epochs first, then by metric."""
        mode = self.state.mode
        trials = self.trials.values()
        return sorted(trials, key=lambda t: (-t.epoch, rank_key(mode, t.metric), t.id))

    def first_error(self) -> TrialProgress | None:
        """Return the first trial that failed; None if none did."""
        return next((trial for trial in self.trials.values() if trial.error), None)

    @property
    def trouble(self) -> str:
        """The last problem with an instance, in words; "" if there was none."""
        about, _, _ = self.state.trouble.partition(" ")
        return self.state.trouble + self.fleet.last_words(about)

    @property
    def resizes(self) -> int:
        """How often a trial was moved to other GPUs."""
        return self._sessions.resizes

    def spent(self, at: float) -> float:
        """Return the bill in dollars if everything were returned at that time."""
        return self.state.spent(at)

    def safe_until(self) -> float:
        return self._limits.safe_until()

    def dispensable(self) -> list[TrialId]:
        """Return the trials whose checkpoints can be deleted: over, and not needed by others."""
        strategy = self.strategy
        needed = set(strategy.parents(self.state)) if isinstance(strategy, Breeds) else set()
        if self.best is not None:
            needed.add(self.best.trial)
        over = [trial.id for trial in list(self.trials.values()) if trial.status in OVER]
        return [trial for trial in over if trial not in needed]

    def forecast(self, at: float) -> float:
        """Return the final bill in dollars: by the plan, or else if the run uses its limits."""
        spent = self.spent(at)
        if self.ending is not None:
            return spent
        to_come = self.fleet_rule.dollars_to_come(self.state, at)
        if to_come is not None:
            return spent + to_come
        budget = self.limits.budget
        deadline = self.limits.deadline
        if budget is None:
            return spent
        return max(spent, min(budget, self.spent(at if deadline is None else deadline)))

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself; large simulations leave it out."""
        check(self.state)
        if self.itinerary is not None:
            self.itinerary.check(self.state)
        if self.ended:
            assert self._returns.over

    # ---- deciding ----------------------------------------------------------------------------

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Handle one event; return the commands that follow from it, in order."""
        if isinstance(event, RunContinued):
            self._go_on(event)
        if self.ended:
            return ()
        # Record first, decide second: no decision sees a state that is one event old.
        noted = self.state.note(event)
        commands = [*self._react(event, noted), *self._decide(noted)]
        commands += self._stalls.follow(event, commands)
        # Most epochs lead to no command and leave the trials where they are: skip the check.
        if self._checked and (commands or not isinstance(event, EpochDone)):
            self.check_invariants()
        return tuple(commands)

    def _react(self, event: Event, noted: Noted) -> list[Command]:
        """Return what follows from an event regardless of the strategy."""
        # An epoch by itself frees no GPU and starts nothing, unless its verdict does (`_judge`).
        # So most epochs skip the expensive round in `_decide`.
        self._changed |= not isinstance(event, EpochDone) or self.state.news != self._news
        self._news = self.state.news
        if self.state.interrupted:
            self._end(EndReason.INTERRUPTED)
        for trial in noted.failed:
            self.strategy.on_failure(self.state, trial)
        if noted.finished is not None:
            self.strategy.on_finish(self.state, noted.finished)
        if isinstance(event, TrialFailed) and noted.failed:
            self._end(self._all_fail_alike(event))
        if isinstance(event, TrialFailed) and event.unsynced and self._rules.sync_required:
            self.state.trouble = unsynced_text(event)
            self._end(EndReason.FAILED)
        if isinstance(event, EpochDone) and noted.late is not None:
            self._hear_late(noted.late, event)
        commands: list[Command] = [StopTrial(session) for session in noted.orphans]
        commands += self._failed_instance.follow(noted)
        if noted.diverged is not None:
            commands.append(self._sessions.stop(noted.diverged, "diverged"))
        if isinstance(event, TimerFired):
            commands += self._react_to_timer(event)
        return commands

    def _all_fail_alike(self, event: TrialFailed) -> EndReason | None:
        """End the run if its first trials fail with the same error: the rest would fail too.

        Only errors of the script count, not diverged metrics or too little GPU memory.
        """
        if event.out_of_memory or event.unsynced:
            return None
        kind = _DIGITS.sub("#", event.error)
        self._errors[kind] += 1
        if any(trial.history for trial in self.trials.values()):
            return None
        if self._errors[kind] < self._rules.max_failures:
            return None
        self.failed_alike = self._errors[kind]
        return EndReason.FAILED

    def _decide(self, noted: Noted) -> list[Command]:
        """Return what the strategy, the allocator and the fleet rule want now."""
        # Limits come before the strategy: there may be no money left for what it would start.
        limit = self._limits.passed_limit()
        self._end(limit)
        if limit is not None or self.state.interrupted:
            self._failed_instance.let_go()
        commands: list[Command] = []
        if self.ending is not None and noted.reported is not None:
            self._unheard[noted.reported.id] = None
        if self.ending is None and noted.reported is not None:
            commands += self._judge(noted.reported)
            self._changed |= self.itinerary is not None and self.itinerary.restless
        if self.ending is None and self._changed:
            self._changed = False
            # Stops come before starts: a stage that closes here makes room for the next.
            preempted = self.strategy.preempt(self.state)
            commands += self._plan_changes()
            commands += self._sessions.preempt(preempted)
            if self.strategy.done(self.state):
                self._end(self.strategy.reason or self._success())
            else:
                commands += self._fill()
        if self.ending is not None:
            return [*commands, *self._wind_down()]
        return [*commands, *self._set_timers()]

    def _plan_changes(self) -> list[Command]:
        """Return the changes of the plan for the ledger; a new plan may need another fleet."""
        changes = [] if self.itinerary is None else self.itinerary.pop_changes()
        if changes:
            self._fleet.note_plan()
        return [*changes]

    def _judge(self, trial: TrialProgress) -> list[Command]:
        """Return what becomes of a trial that has finished an epoch."""
        best = self.best
        if best is not None and self._reaches_target(best.metric):
            self._end(EndReason.DONE)
            return []
        decision = self.strategy.on_result(self.state, trial)
        if not isinstance(decision, Go):
            stop = self._sessions.carry_out(trial, decision)
            self._changed |= stop is None
            return [] if stop is None else [stop]
        if max(decision.until, self.state.until(trial.id)) <= trial.epoch:
            raise AssertionError(
                f"{self.strategy.name} lets {trial.id} go on to epoch {decision.until}"
            )
        return self._sessions.go_on(trial, decision)

    def _reaches_target(self, metric: float) -> bool:
        return self.target is not None and not better(self.state.mode, self.target, metric)

    def _fill(self) -> list[Command]:
        """Start what the strategy wants and what fits; match the fleet to what runs and waits."""
        state = self.state
        sessions = self._sessions
        self._fleet.begin_round()  # first, so that nothing starts on an instance about to go
        commands = sessions.start_again()  # interrupted trials come before new ones
        min_width = self.allocator.min_width(state)
        tasks = self._next_tasks(sessions.room(self.fleet_rule.max_gpus(state), min_width))
        going_on = [task for task in tasks if self._goes_on(task)] if state.live.at_rung else []
        for task in going_on:  # record all before any starts: an allocator sees them as one group
            state.granted[task.trial.id] = task.until
        commands += [sessions.let_on(state.trials[task.trial.id]) for task in going_on]
        starting, waiting = sessions.start(tasks)
        commands += starting
        waiting += [[Shape(trial.width or min_width)] for trial in state.again.values()]
        commands += sessions.make_room(waiting)
        waiting_gpus = sum([shapes[0].width for shapes in waiting])
        commands += self._fleet.fit(
            state.live.gpus + waiting_gpus
        )  # last: only tasks that got no GPUs call for more
        commands += sessions.run_risks(tasks)  # after `fit`, which says which GPUs are coming
        self._end(self._fleet.hopeless())
        if self.ending is None and not state.live and self._fleet.is_quiet():
            commands += self._unstick(tasks)
        return commands

    def _next_tasks(self, room: int) -> list[Task]:
        """Return the tasks that the strategy wants to begin, up to `room`."""
        groups = self.strategy.requests(self.state, room) if room > 0 else ()
        ordered = (self.allocator.in_order(self.state, group.tasks) for group in groups)
        return list(itertools.islice(itertools.chain.from_iterable(ordered), max(0, room)))

    def _goes_on(self, task: Task) -> bool:
        """Whether a task's trial holds its GPUs at a rung and continues from there."""
        trial = self.trials.get(task.trial.id)
        return trial is not None and trial.status == "at rung" and task.until > trial.epoch

    def _unstick(self, tasks: Sequence[Task]) -> list[Command]:
        """Start waiting tasks at any width, or end the run, when it would otherwise hang.

        Called with no session, and no instance coming or going: no event would change that, except
        one that the strategy asked for (`wake_at`).
        """
        state = self.state
        commands = self._sessions.start_anyhow(tasks)
        waits = state.again or tasks or self.strategy.wake_at(state) is None
        if not commands and waits:
            refused = any(state.refused(offer) for offer in state.backoffs)
            # A run must say why it ends even if no instance ever failed.
            state.trouble = (
                state.trouble or "no trial that is left to train fits on the rented instances"
            )
            self._end(EndReason.NO_CAPACITY if refused else EndReason.FAILED)
        return commands

    # ---- the end -----------------------------------------------------------------------------

    def _success(self) -> EndReason:
        return EndReason.DONE if self.best is not None else EndReason.FAILED

    def _end(self, reason: EndReason | None) -> None:
        """Record why the run ends; a strategy that uses all it is given aims for a limit."""
        if reason is None or self.ending is not None:
            return  # the first reason counts, even if a limit is passed while winding down
        if reason is EndReason.DEADLINE and self._fleet.refused():
            reason = EndReason.NO_CAPACITY  # there was time left, but no capacity
        reached = reason in _LIMITS and self.strategy.anytime and self.best is not None
        self.ending = EndReason.DONE if reached else reason

    def _hear_late(self, trial: TrialProgress, event: EpochDone) -> None:
        """Count an epoch that ended before the run's stop reached its trial.

        The strategy gets it when the run is resumed; after a limit's stop, at once: a run resumed
        after its deadline would otherwise learn too late that its winner had finished.
        """
        if trial.id not in self._cut_short:
            return
        trial.record(event, event.metrics[self.state.metric.name])
        self.state.live.changes.append(trial)
        self._unheard[trial.id] = None
        if self.ending in _LIMITS:
            self._unheard[trial.id] = self.strategy.on_result(self.state, trial)
            self._heard_late = True

    def _end_after_all(self) -> None:
        """End as done if everything wanted was trained before the limit's stop."""
        if self._heard_late and self.ending in _LIMITS:
            verdicts = self.strategy.preempt(self.state)
            if self.strategy.done(self.state):
                self._sessions.preempt(verdicts)  # no session is left: this stops nothing
                self.ending = self.strategy.reason or self._success()

    def _wind_down(self) -> list[Command]:
        """Stop every session and return every instance, repeated until confirmed; then end."""
        state = self.state
        training = [trial for trial in state.live if trial.status != "stopping"]
        self._cut_short |= {trial.id for trial in training}
        commands: list[Command] = [self._sessions.stop(trial, "parked") for trial in training]
        commands += self._returns.give_back()
        if self._failed_instance.kept is not None:
            commands += self._timer("brake", self._limits.next_look())
        if self._returns.over:
            state.ended = True
            self._end_after_all()
            assert self.ending is not None
            commands.append(EndRun(self.ending))
        return commands

    # ---- going on after the end ---------------------------------------------------------------

    def why_over(self, *, more: bool = False) -> str:
        """Return why an ended run can't be resumed under any limits; "" if it can.

        `more`: whether trials are added to those that it was to try.
        """
        best = self.best
        if best is not None and self._reaches_target(best.metric):
            return "its target is reached"
        if self.began is None:
            return "it never began"
        if not more and self._trains_no_more():
            return "its strategy has trained everything"
        return ""

    def _trains_no_more(self) -> bool:
        """Whether the strategy would end without limits, too: a search ends where they do."""
        limits = self.state.limits
        self.state.limits = Limits()
        try:
            return self.strategy.done(self.state)
        finally:
            self.state.limits = limits

    def _go_on(self, event: RunContinued) -> None:
        """Take new limits; stopped trials continue from their last checkpoints."""
        state = self.state
        if self.ended:
            state.paused += event.at - state.over_at
        state.now = event.at
        state.limits = Limits(event.deadline, event.budget)
        state.ended = state.interrupted = self._heard_late = False
        state.trouble = ""
        self.ending = None
        self._changed = True
        self._returns = Returns(state)
        state.forget_refusals()
        self._timers.clear()
        self._limits.note_launch()
        state.disturbances += 1  # the fleet is gone: the plan needs another look
        state.shocks += 1
        self._fleet.note_plan()
        stopped = self._cut_short
        self._cut_short = set()
        unheard = self._unheard
        self._unheard = {}
        for name, decision in unheard.items():
            trial = state.trials[name]
            if trial.status == "parked":
                self._sessions.settle(trial, decision or self.strategy.on_result(state, trial))
        if event.trials:
            self._take_in(event.trials, stopped)
        for trial in state.trials.values():
            if trial.id in stopped and trial.status == "parked":
                self._sessions.take_up(trial)

    def _take_in(self, trials: int, stopped: set[TrialId]) -> None:
        """Let the strategy try more trials; in a planned run, stopped trials follow the plan."""
        if self.itinerary is not None:
            for trial in [*self.state.again.values(), *map(self.trials.__getitem__, stopped)]:
                self._sessions.park(trial)
            stopped.clear()
        if why := self.strategy.more(self.state, trials):
            self.state.trouble = why
            self._end(EndReason.FAILED)

    # ---- time --------------------------------------------------------------------------------

    def _react_to_timer(self, event: TimerFired) -> list[Command]:
        """Repeat the releases that the cloud hasn't confirmed."""
        self._timers.pop(event.name, None)
        if event.name == "tick":
            return [] if self.winding_down else self._fleet.release_late()
        if event.name == CLEANUP and self.winding_down:
            return self._returns.give_back(again=True)
        if event.name == TIMER:
            return [] if self.winding_down else self._stalls.end(self._sessions)
        if event.name == KEPT:
            self._failed_instance.let_go()
            return []
        assert event.name in {"brake", "wake", CLEANUP}, (
            f"no code sets a timer named {event.name!r}"
        )
        return []

    def _set_timers(self) -> list[Command]:
        """Wake up when a limit comes near, when the strategy asks for it, or for housekeeping."""
        timers = self._timer("brake", self._limits.next_look())
        wake = self.strategy.wake_at(self.state)
        asks = self._fleet.next_request()
        wake = asks if wake is None or wake <= self.now else min(wake, asks)
        timers += self._timer("wake", wake)
        if self._heartbeat or self._fleet.restless():
            quiet = self.now if self._heartbeat else self._fleet.quiet_until()
            due = max(quiet, self.now + self.state.brakes.tick)
            if due < self._timers.get("tick", math.inf):
                timers += self._timer("tick", due)
        return timers

    def _timer(self, name: str, at: float) -> list[Command]:
        """Return the command that sets a timer, unless it is set to that time already."""
        if at == math.inf or self._timers.get(name) == at:
            return []
        self._timers[name] = at
        return [SetTimer(name, at)]
