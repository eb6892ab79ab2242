"""How a plan is carried out: a strategy, an allocator and a fleet rule that read it.

The three share an `Itinerary`: the plan, and how far the run has come in it. Strategy, allocator
and fleet rule can each be replaced by another: the stages of a plan on a constant fleet, another
allocator's widths on the plan's instances.

A stage ends when all its trials have reached the rung or failed. Then the schedule says which go
on, the instances that the next stage doesn't need are emptied, and trials with another width there
stop and start again. Where the world isn't what the plan says, the rest may be replanned
(`planned.replanner.Replanner`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from cloudtune.model.placement import enough, open_groups
from cloudtune.model.plans import Estimate
from cloudtune.model.progress import OVER, Roster
from cloudtune.model.trial import EndReason
from cloudtune.strategies.base import Go, Shape, Task, TrialGroup, Verdict
from cloudtune.strategies.rungs import capped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.model.catalog import Offer
    from cloudtune.model.commands import PlanAnew
    from cloudtune.model.plans import Group, Plan, StagePlan
    from cloudtune.model.progress import TrialProgress
    from cloudtune.model.trial import Trial, TrialId, Width
    from cloudtune.strategies.base import Decision, View


class Itinerary:
    """A plan, and where a run is in it.

    `trials` are those of the first stage, in the order in which they start. `plan` may change as
    the run goes on; `stage` counts from 0, `members` are its trials.
    """

    def __init__(self, plan: Plan, trials: Sequence[Trial]) -> None:
        self.first_plan = self.plan = plan
        self.trials = {trial.id: trial for trial in trials}
        self.stage = 0
        self.stage_began: list[float] = []
        self.members: tuple[TrialId, ...] = tuple(self.trials)
        self.replanned = 0
        self.planned_at = 0.0
        self.stuck = False  # nothing of the stage is available, and no other plan
        self.restless = False  # an epoch has shown that the rest may need another plan
        self.heard: dict[TrialId, float] = {}  # when each reported its last epoch
        self.changes: list[tuple[float, PlanAnew]] = []
        self.unrecorded: list[PlanAnew] = []
        self.leaving: frozenset[str] = frozenset()
        self.probes: Counter[Offer] = Counter()  # asked for besides the plan: it may go there
        self.waiting: dict[TrialId, int] = {}  # that join at a later stage, and where it ends
        self._disturbances = 0
        self._roster: Roster | None = None
        self._tasks: dict[TrialId, Task] = {}  # of the roster's trials

    @property
    def stage_plan(self) -> StagePlan:
        return self.plan.stages[self.stage]

    def rung_of(self, trial: Trial) -> int:
        """Return the epoch at which the stage ends for a trial: the rung, or its own last one."""
        return capped(trial, self.stage_plan.stage.end_epoch)

    def check(self, view: View) -> None:
        """Raise AssertionError if what was counted trial by trial isn't what there is."""
        fresh = Roster(
            self.members, self.stage_plan.stage.end_epoch, view.trials, view.running.changes
        )
        assert vars(self.roster(view)) == vars(fresh), "a trial changed without being counted"

    def complete(self, trial: TrialProgress) -> bool:
        """Whether a trial has trained to a last epoch of its own."""
        last = trial.trial.epochs
        return last is not None and trial.epoch >= last

    def started(self, view: View) -> list[TrialProgress]:
        return [view.trials[name] for name in self.members if name in view.trials]

    def roster(self, view: View) -> Roster:
        """Return how far the trials of the stage are."""
        roster = self._roster
        end_epoch = self.stage_plan.stage.end_epoch
        if roster is None or roster.members is not self.members or roster.end_epoch != end_epoch:
            roster = Roster(self.members, end_epoch, view.trials, view.running.changes)
            self._roster = roster
            self._tasks = {}
        return roster.follow()

    def task(self, name: TrialId) -> Task:
        """Return what a trial is to train in the stage; what waits is asked for at every event."""
        task = self._tasks.get(name)
        if task is None:
            trial = self.trials[name]
            task = self._tasks[name] = Task(trial, self.rung_of(trial))
        return task

    def disturbed(self, view: View) -> bool:
        """Whether an instance was refused, lost or taken back in this stage."""
        return view.disturbances > self._disturbances

    def begin(self, view: View) -> None:
        """Begin the first stage, if none has begun."""
        if not self.stage_began:
            self.stage_began.append(view.now)

    def next_stage(self, view: View, chosen: tuple[TrialId, ...]) -> None:
        self.stage += 1
        self.stage_began.append(view.now)
        self.members = chosen
        self.waiting = {name: end for name, end in self.waiting.items() if name not in chosen}
        self._disturbances = view.disturbances

    def join(
        self,
        view: View,
        newcomers: Sequence[Trial],
        rest: Plan,
        members: tuple[TrialId, ...],
        waiting: Mapping[TrialId, int],
    ) -> None:
        """End the present stage now, and go on by a plan that begins now, with newcomers.

        `members` begin, and those that are `waiting` join at the stage that ends at their epoch.
        """
        self.begin(view)
        self.trials.update((trial.id, trial) for trial in newcomers)
        self.splice(rest, self.stage + 1, view)
        self.first_plan = self.plan
        self.next_stage(view, members)
        self.waiting = dict(waiting)
        self.leaving = frozenset()
        self.restless = False
        self.probes.clear()

    def splice(self, rest: Plan, kept: int, view: View) -> None:
        """Put a plan that begins now behind the first `kept` stages of the present one."""
        later = (replace(stage, begin=stage.begin + view.now) for stage in rest.stages)
        estimate = Estimate(
            view.now + rest.estimate.seconds, view.committed + rest.estimate.dollars
        )
        self.plan = replace(rest, stages=(*self.plan.stages[:kept], *later), estimate=estimate)
        self.planned_at = view.now
        self.replanned += 1

    def pop_changes(self) -> list[PlanAnew]:
        """Return the changes of the plan that aren't on record yet, each once."""
        changes = self.unrecorded
        self.unrecorded = []
        return changes

    # ---- instances ---------------------------------------------------------------------------

    def missing(self, view: View) -> Counter[Offer]:
        """Return the instances of the stage that are neither held nor asked for, by offer."""
        needed = self.needed(view)
        held = view.held
        return Counter() if needed.items() == held.items() else needed - held

    def needed(self, view: View) -> Counter[Offer]:
        """Return the instances that the stage is to have, by offer.

        As many as were planned; where trials have failed, or instances were refused or lost, only
        as many as the trials need that still have to train.
        """
        plan = self.stage_plan
        roster = self.roster(view)
        if not self.disturbed(view) and len(self.members) - roster.over >= plan.stage.trials:
            return plan.fleet
        return self._needed_for(roster, view)

    def _needed_for(self, roster: Roster, view: View) -> Counter[Offer]:
        """Return the instances for what has to train: where it sits, or a group has room."""
        placed = roster.placed_to_train
        needed: Counter[Offer] = Counter()
        # A trial on an offer that has no group any more waits for a place as well.
        waiting = roster.to_train - sum(placed[group.offer] for group in self.stage_plan.groups)
        for group in self.stage_plan.groups:
            joining = max(0, min(group.trials - placed[group.offer], waiting))
            waiting -= joining
            trials = placed[group.offer] + joining
            needed[group.offer] = enough(group, trials, view.held.get(group.offer, 0))
        return needed

    def held_back(self, view: View) -> bool:
        """Whether missing instances have to wait, under the cap, until others are gone."""
        if len(view.fleet.alive()) == len(view.fleet.wanted()):
            return False
        alive = Counter(rented.offer for rented in view.fleet.alive())
        return not view.admits(alive + self.missing(view))

    def expected(self, view: View) -> Counter[Offer]:
        """Return the instances that the stage has, or will have unless the cloud refuses."""
        missing = self.missing(view)
        if not self.held_back(view):
            missing = Counter({o: n for o, n in missing.items() if not view.avoided(o)})
        return view.held + missing if missing else view.held

    # ---- where trials sit ---------------------------------------------------------------------

    def groups(self, view: View) -> list[Group]:
        """Return the groups that a waiting trial may join, in order."""
        placed = self.roster(view).placed
        return open_groups(self.stage_plan.groups, placed, self.expected(view))

    def fits(self, trial: TrialProgress) -> bool:
        """Whether a trial has the width that its offer has in this stage."""
        group = self.stage_plan.group(trial.offer) if trial.offer else None
        return group is not None and trial.width_for(group.width) == trial.width


class Schedule(Protocol):
    """Says which trials go on from a rung; it may change the rest of the plan for that."""

    @property
    def name(self) -> str:
        """The name of the strategy in an experiment file."""
        ...

    def promote(
        self, view: View, itinerary: Itinerary, results: Mapping[TrialId, float | None]
    ) -> tuple[TrialId, ...] | EndReason:
        """Return the trials of the next stage, chosen from `results`; none ends the run.

        `results` has the metric at the rung of each trial that can train on. Returns an `EndReason`
        where nothing can go on within the limits.
        """
        ...


class Reacting(Protocol):
    """Replans the rest of a job where the world isn't what the plan says."""

    def react(self, view: View, itinerary: Itinerary) -> Mapping[TrialId, Verdict]:
        """Change the plan if what has happened asks for it; returns the trials that stop."""
        ...

    def unsettled(self, view: View, itinerary: Itinerary) -> bool:
        """Whether an epoch has shown something that may call for another plan."""
        ...

    def wake_at(self, view: View) -> float | None:
        """Return the run second at which to look again though nothing has happened."""
        ...


class Joining(Protocol):
    """Takes newcomers into a planned run that goes on after its end."""

    def join(self, view: View, itinerary: Itinerary, trials: int) -> Schedule | str:
        """Replan the rest with more trials; returns the schedule from then on, or why not."""
        ...


class PlannedStages:
    """The strategy of a planned run: stages with a barrier at each rung.

    With `planned_widths` a trial whose width in the new stage is another one stops at the rung and
    starts again; without, another allocator resizes it.
    """

    anytime = False

    def __init__(
        self,
        schedule: Schedule,
        itinerary: Itinerary,
        *,
        reacting: Reacting | None = None,
        joining: Joining | None = None,
        planned_widths: bool = True,
        planned_fleet: bool = True,
    ) -> None:
        self.name = schedule.name
        self._joining = joining
        self.itinerary = itinerary
        itinerary.stuck = reacting is None
        self.reason: EndReason | None = None
        self._schedule = schedule
        self._reacting = reacting
        self._planned_widths = planned_widths
        self._planned_fleet = planned_fleet

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return the trials that have yet to train in the stage; those that stay come first."""
        itinerary = self.itinerary
        if itinerary.stage:
            room = max(room, view.lookahead)
        tasks = tuple([itinerary.task(name) for name in itinerary.roster(view).next(room)])
        return (TrialGroup(f"stage {itinerary.stage + 1}", tasks),) if tasks else ()

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Let a trial train to the rung, and wait there for the others."""
        itinerary = self.itinerary
        rung = itinerary.rung_of(trial.trial)
        itinerary.heard[trial.id] = view.now
        if self._reacting is not None and self._reacting.unsettled(view, itinerary):
            itinerary.restless = True
        if trial.epoch >= rung:  # on an instance that is to go it must not wait
            return Verdict.PAUSE if self._leaves(view, trial) else Verdict.HOLD
        return Verdict.PAUSE if self._goes_elsewhere(view, trial) else Go(rung)

    def _leaves(self, view: View, trial: TrialProgress) -> bool:
        """Whether a trial has saved its last epoch, and an instance that it sits on is to go."""
        if trial.checkpoint_epoch < trial.epoch:
            return False
        instances = {piece.instance for piece in trial.placement}
        leaving = self.itinerary.leaving
        return any(name in leaving or not view.fleet.of(name).usable for name in instances)

    def _goes_elsewhere(self, view: View, trial: TrialProgress) -> bool:
        """Whether a trial's instance is to go, and only groups of another width have room for it.

        Or none before that instance is gone, under the cap. Such a trial pauses, and starts
        again; at its own width it would move at once (`_resized`).
        """
        if not (self._planned_widths and self._leaves(view, trial)):
            return False
        if self.itinerary.held_back(view):
            return True
        widths = {
            trial.width_for(group.width)
            for group in self.itinerary.groups(view)
            if view.fits(trial.width_for(group.width), group.offer)
        }
        return bool(widths) and trial.width not in widths

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Do nothing: the stage doesn't wait for a trial that is over."""

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        """Close the stage if all its trials have reached the rung; return those that stop."""
        itinerary = self.itinerary
        itinerary.begin(view)
        verdicts = self._closed(view)
        if self.reason is None and verdicts is None and self._reacting is not None:
            return self._react(self._reacting, view)
        return verdicts or {}

    def _react(self, reacting: Reacting, view: View) -> Mapping[TrialId, Verdict]:
        """Review the plan in the midst of a stage; instances that a new one doesn't need go."""
        itinerary = self.itinerary
        before = itinerary.replanned
        cut = reacting.react(view, itinerary)
        if itinerary.replanned == before or not self._planned_fleet:
            return cut
        itinerary.leaving = frozenset(self._too_many(view))
        there = [
            t for t in itinerary.started(view) if t.status == "at rung" and self._leaves(view, t)
        ]
        return {**{t.id: Verdict.PAUSE for t in there}, **cut}

    def _closed(self, view: View) -> Mapping[TrialId, Verdict] | None:
        """Return the trials that stop at the rung; None where the stage goes on."""
        itinerary = self.itinerary
        roster = itinerary.roster(view)
        # The barrier: every member has begun once, and all that didn't fail have reached the rung.
        if roster.over + roster.arrived < len(itinerary.members):
            return None
        left = [trial for trial in itinerary.started(view) if trial.status not in OVER]
        results = {t.id: t.history.get(itinerary.rung_of(t.trial)) for t in left}
        able = {t.id: results[t.id] for t in left if not itinerary.complete(t)}
        chosen = self._schedule.promote(view, itinerary, able)
        if isinstance(chosen, EndReason):
            self.reason = chosen
            return {}
        if not chosen:
            return self._finish(view, results)
        itinerary.next_stage(view, chosen)
        # Before any trial is sent elsewhere: a plan that has just changed says where to.
        if self._reacting is not None:
            self._reacting.react(view, itinerary)
        out = {
            t.id: Verdict.FINISH if itinerary.complete(t) else Verdict.CUT
            for t in left
            if t.id not in itinerary.members
        }
        if self._planned_fleet:
            itinerary.leaving = frozenset(self._too_many(view))
        return {**out, **dict.fromkeys(self._movers(view), Verdict.PAUSE)}

    def _finish(
        self, view: View, results: Mapping[TrialId, float | None]
    ) -> Mapping[TrialId, Verdict]:
        """End the run; it has failed if no trial reached the last rung that there was."""
        finished = any(trial.status == "finished" for trial in view.trials.values())
        self.reason = EndReason.DONE if results or finished else EndReason.FAILED
        return dict.fromkeys(results, Verdict.FINISH)

    def _too_many(self, view: View) -> Iterator[str]:
        """Yield instances that the new stage doesn't need, those with fewest survivors first."""
        itinerary = self.itinerary
        staying = Counter(
            piece.instance
            for trial in itinerary.started(view)
            if trial.live and (trial.unsaved or itinerary.fits(trial) or not self._planned_widths)
            for piece in trial.placement
        )
        for offer, count in view.held.items():
            group = itinerary.stage_plan.group(offer)
            extra = count - (group.instances if group else 0) - self.itinerary.probes[offer]
            # Of equal worth the oldest go: they have paid their minimum charge.
            held = [rented for rented in view.fleet.wanted() if rented.offer == offer]
            held.sort(key=lambda rented: (rented.joined, staying[rented.instance or ""]))
            yield from (r.instance for r in held[: max(0, extra)] if r.instance is not None)

    def _movers(self, view: View) -> Iterator[TrialId]:
        """Yield trials that can't train on where they are; a group keeps no more than it takes.

        Never one that has saved nothing: started again, it would train all its epochs again.
        """
        itinerary = self.itinerary
        usable = {r.instance for r in view.fleet.usable()} - itinerary.leaving
        room = Counter({group.offer: group.trials for group in itinerary.stage_plan.groups})
        for trial in itinerary.started(view):
            if not trial.live:
                continue
            stays = all(piece.instance in usable for piece in trial.placement)
            if self._planned_widths:
                stays = (
                    stays
                    and itinerary.fits(trial)
                    and trial.offer is not None
                    and room[trial.offer] > 0
                )
            if not stays and not trial.unsaved:
                yield trial.id
            elif trial.offer is not None:
                room[trial.offer] -= 1

    def wake_at(self, view: View) -> float | None:
        """Return when to look at the plan again: else a planned strategy decides at results."""
        return None if self._reacting is None else self._reacting.wake_at(view)

    def done(self, view: View) -> bool:
        return self.reason is not None

    def more(self, view: View, trials: int) -> str:
        """Replan the rest with newcomers; returns why that can't be, "" if it can."""
        if self._joining is None:
            return f"{self.name} takes only as many trials as its limits pay for"
        schedule = self._joining.join(view, self.itinerary, trials)
        if isinstance(schedule, str):
            return schedule
        self._schedule = schedule
        self.reason = None
        self.itinerary.stuck = self._reacting is None
        return ""


class PlannedWidths:
    """The allocator of a planned run: a trial is as wide as its group of the stage is planned.

    On a fleet that isn't the plan's, a trial has its group's width wherever there is room for it.
    """

    name = "planned"
    lookahead = 0

    def __init__(self, itinerary: Itinerary, *, planned_fleet: bool = True) -> None:
        self._itinerary = itinerary
        self._planned_fleet = planned_fleet

    def min_width(self, view: View) -> Width:
        return min(group.width for group in self._itinerary.stage_plan.groups)

    def in_order(self, view: View, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks as planned."""
        return tasks

    def shapes(self, view: View, tasks: Sequence[Task]) -> Iterator[Sequence[Shape]]:
        """Yield for each task the groups that have room for one more when its turn comes."""
        itinerary = self._itinerary
        sessions = -1
        shapes = list[Shape]()
        for _ in tasks:
            if len(view.running) != sessions:  # else the last task waits, and nothing has changed
                sessions = len(view.running)
                groups = (
                    itinerary.groups(view) if self._planned_fleet else itinerary.stage_plan.groups
                )
                shapes = [Shape(g.width, g.offer if self._planned_fleet else None) for g in groups]
            yield shapes

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width of the trial's group; its own width where it sits in no group."""
        group = self._itinerary.stage_plan.group(trial.offer) if trial.offer else None
        return trial.width if group is None else group.width
