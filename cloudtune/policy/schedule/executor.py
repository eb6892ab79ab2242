"""How a plan is carried out: a strategy, an allocator and a fleet rule that read it.

The three share an `Itinerary`: the plan, and the run's position in it. Each can be replaced by
another: a plan's stages on a constant fleet, or another allocator's widths on the plan's instances.

A stage ends when all its trials have reached the rung or failed. Then the schedule chooses the
survivors, the instances that the next stage doesn't need are emptied, and trials whose width
changes stop and restart. If reality differs from the plan, the rest may be replanned (`Replanner`).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import can_train
from cloudtune.model.progress import OVER, TrialProgress
from cloudtune.model.trial import EndReason, TrialId, Width
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.policy.schedule.replanner import Replanner
from cloudtune.strategies.base import (
    Decision,
    Go,
    Shape,
    StagedStrategy,
    Task,
    TrialGroup,
    Verdict,
    View,
)


class Schedule(Protocol):
    """Decides at the end of a stage which trials continue."""

    def promote(
        self, view: View, itinerary: Itinerary, results: Mapping[TrialId, float | None]
    ) -> tuple[TrialId, ...] | EndReason:
        """Return the trials that continue, best first, or why the run ends here."""


class HalvingSchedule:
    """Successive halving by its own stages: the results never change the plan.

    Its first stage is the itinerary's stage `begins`.
    """

    def __init__(self, strategy: StagedStrategy, begins: int = 0) -> None:
        self._strategy = strategy
        self._begins = begins

    def promote(
        self, view: View, itinerary: Itinerary, results: Mapping[TrialId, float | None]
    ) -> tuple[TrialId, ...]:
        """Return the best of the rung, as many as the next stage takes."""
        return self._strategy.promote(itinerary.stage - self._begins, results)


Joining: TypeAlias = Callable[[View, Itinerary, int], Schedule | str]


class PlannedStages:
    """The strategy of a planned run: stages with a barrier at each rung.

    With `planned_widths`, a trial whose width changes in the new stage stops at the rung and
    restarts; without, another allocator resizes it.
    """

    anytime = False

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        itinerary: Itinerary,
        *,
        replanner: Replanner | None = None,
        joining: Joining | None = None,
        planned_widths: bool = True,
        planned_fleet: bool = True,
    ) -> None:
        self.name = name
        self.itinerary = itinerary
        self.reason: EndReason | None = None
        itinerary.stuck = replanner is None
        self._schedule = schedule
        self._replanner = replanner
        self._joining = joining
        self._planned_widths = planned_widths
        self._planned_fleet = planned_fleet

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return the trials that have yet to train in the stage, those that stay in place first."""
        itinerary = self.itinerary
        if itinerary.stage:
            room = max(room, view.lookahead)
        tasks = tuple([itinerary.task(name) for name in itinerary.roster(view).next(room)])
        return (TrialGroup(f"stage {itinerary.stage + 1}", tasks),) if tasks else ()

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Let a trial train to the rung, and wait there for the others."""
        itinerary = self.itinerary
        rung = itinerary.rung_epoch(trial.trial)
        itinerary.heard[trial.id] = view.now
        if self._replanner is not None and self._replanner.has_new_speed(view):
            itinerary.restless = True
        if trial.epoch >= rung:  # it must not wait on an instance that is about to go
            return Verdict.PAUSE if self._leaves(view, trial) else Verdict.HOLD
        return Verdict.PAUSE if self._goes_elsewhere(view, trial) else Go(rung)

    def _leaves(self, view: View, trial: TrialProgress) -> bool:
        """Whether a trial has saved its last epoch, and one of its instances is about to go."""
        leaving = self.itinerary.leaving
        return trial.checkpoint_epoch >= trial.epoch and any(
            piece.instance in leaving or not view.fleet.of(piece.instance).usable
            for piece in trial.placement
        )

    def _goes_elsewhere(self, view: View, trial: TrialProgress) -> bool:
        """Whether a trial on an instance about to go finds room only in groups of another width.

        Or, under the cap, in none before that instance is gone. Such a trial pauses and restarts;
        if its own width had room it would move at once (`_resize`).
        """
        if not (self._planned_widths and self._leaves(view, trial)):
            return False
        if self.itinerary.held_back(view):
            return True
        widths = set()
        for group in self.itinerary.groups(view):
            width = view.width_for(trial, group.width, group.offer)
            if view.fits(width, group.offer):
                widths.add(width)
        return bool(widths) and trial.width not in widths

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Do nothing: the stage doesn't wait for failed trials."""

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Do nothing: nor for those that have ended."""

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        """Close the stage if all its trials have reached the rung; return those that stop."""
        self.itinerary.begin(view)
        roster = self.itinerary.roster(view)
        # The barrier: every member has begun once, and all that didn't fail have reached the rung.
        if roster.over + roster.arrived >= len(self.itinerary.members):
            return self._close_stage(view)
        return {} if self._replanner is None else self._review(self._replanner, view)

    def _review(self, replanner: Replanner, view: View) -> Mapping[TrialId, Verdict]:
        """Review the plan in the middle of a stage; return trials that a new plan stops."""
        itinerary = self.itinerary
        before = itinerary.replanned
        cut = dict.fromkeys(replanner.react(view), Verdict.CUT)
        if itinerary.replanned == before or not self._planned_fleet:
            return cut
        itinerary.leaving = frozenset(self._too_many(view))
        started = itinerary.started_trials(view)
        waiting = [t.id for t in started if t.status == "at rung" and self._leaves(view, t)]
        return {**dict.fromkeys(waiting, Verdict.PAUSE), **cut}

    def _close_stage(self, view: View) -> Mapping[TrialId, Verdict]:
        """Begin the next stage with the survivors, or end the run; return trials that stop."""
        itinerary = self.itinerary
        arrived = [trial for trial in itinerary.started_trials(view) if trial.status not in OVER]
        results = {t.id: t.history.get(itinerary.rung_epoch(t.trial)) for t in arrived}
        able = {t.id: results[t.id] for t in arrived if not itinerary.complete(t)}
        chosen = self._schedule.promote(view, itinerary, able)
        if isinstance(chosen, EndReason):
            self.reason = chosen
            return {}
        if not chosen:
            # It failed if no trial reached the last rung.
            finished = any(trial.status == "finished" for trial in view.trials.values())
            self.reason = EndReason.DONE if results or finished else EndReason.FAILED
            return dict.fromkeys(results, Verdict.FINISH)
        itinerary.next_stage(view, chosen)
        # Before any trial is moved: a plan that has just changed says where to.
        if self._replanner is not None:
            self._replanner.react(view)
        stopped = {
            t.id: Verdict.FINISH if itinerary.complete(t) else Verdict.CUT
            for t in arrived
            if t.id not in itinerary.members
        }
        if self._planned_fleet:
            itinerary.leaving = frozenset(self._too_many(view))
        return {**stopped, **dict.fromkeys(self._movers(view), Verdict.PAUSE)}

    def _too_many(self, view: View) -> Iterator[str]:
        """Yield instances that the new stage doesn't need, those with fewest survivors first."""
        itinerary = self.itinerary
        staying = Counter(
            piece.instance
            for trial in itinerary.started_trials(view)
            if trial.live
            and (trial.unsaved or itinerary.fits(view, trial) or not self._planned_widths)
            for piece in trial.placement
        )
        for offer, extra in (view.held - itinerary.stage_plan.fleet - itinerary.probes).items():
            # Ties go to the oldest: they have paid their minimum charge.
            held = [rented for rented in view.fleet.staying() if rented.offer == offer]
            held.sort(key=lambda r: (not r.at_risk, r.joined, staying[r.instance or ""]))
            yield from (r.instance for r in held[:extra] if r.instance is not None)

    def _movers(self, view: View) -> Iterator[TrialId]:
        """Yield trials that can't stay where they are: their group's width changed or it is full.

        Never one that has saved nothing: after a restart it would repeat all its epochs.
        """
        itinerary = self.itinerary
        usable = {r.instance for r in view.fleet.usable()} - itinerary.leaving
        room = Counter[Offer | None]()
        room.update({group.offer: group.trials for group in itinerary.stage_plan.groups})
        for trial in itinerary.started_trials(view):
            if not trial.live:
                continue
            stays = all(piece.instance in usable for piece in trial.placement)
            if self._planned_widths:
                stays = stays and itinerary.fits(view, trial) and room[trial.offer] > 0
            if stays or trial.unsaved:
                room[trial.offer] -= 1
            else:
                yield trial.id

    def wake_at(self, view: View) -> float | None:
        """Return when to review the plan, besides at results."""
        return None if self._replanner is None else self._replanner.wake_at(view)

    def done(self, view: View) -> bool:
        return self.reason is not None

    def more(self, view: View, trials: int) -> str:
        """Replan the rest with new trials; return why that isn't possible, "" if it is."""
        if self._joining is None:
            return f"{self.name} takes only as many trials as its limits pay for"
        schedule = self._joining(view, self.itinerary, trials)
        if isinstance(schedule, str):
            return schedule
        self._schedule = schedule
        self.reason = None
        self.itinerary.stuck = self._replanner is None
        return ""


class PlannedWidths:
    """The allocator of a planned run: a trial has the width of its group in the stage.

    On a fleet other than the plan's, it has that width wherever there is room.
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
            if len(view.running) != sessions:  # otherwise the last task waits: nothing changed
                sessions = len(view.running)
                groups = (
                    itinerary.groups(view) if self._planned_fleet else itinerary.stage_plan.groups
                )
                shapes = [Shape(g.width, g.offer if self._planned_fleet else None) for g in groups]
            yield shapes

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width of the trial's group; its own width if it is in no group."""
        group = self._itinerary.stage_plan.group(trial.offer) if trial.offer else None
        return trial.width if group is None else group.width


def _going(view: View) -> float:
    """Return the GPUs of trials that stop or are on instances about to go."""
    usable = view.fleet.usable()
    if not view.running.stopping and len(usable) == sum([r.joined for r in view.fleet.alive()]):
        return 0.0
    names = {rented.instance for rented in usable}
    return sum(
        trial.width
        for trial in view.running
        if (trial.status == "stopping" and trial.after != "waiting")
        or any(piece.instance not in names for piece in trial.placement)
    )


class PlannedFleet:
    """The instances of a plan, stage by stage."""

    name = "planned"

    def __init__(self, itinerary: Itinerary) -> None:
        self._itinerary = itinerary

    @property
    def stage(self) -> int:
        """The stage of the plan, from 0."""
        return self._itinerary.stage

    def max_gpus(self, view: View) -> int:
        """Return the GPUs of the stage, of other held instances, and those about to be free.

        Trials that stop for the new stage, or are on instances about to go, count on top of the
        stage's own GPUs: the next trials are requested now and take over as soon as they can.
        """
        expected = self._itinerary.stage_plan.fleet | view.held
        return sum([offer.gpus * n for offer, n in expected.items()]) + math.ceil(_going(view))

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the stage's instances, or only the held ones while the cap leaves no room.

        On top of them come `probes`: requested, while the plan does without them.
        """
        itinerary = self._itinerary
        instances = itinerary.needed_instances(view)
        if itinerary.held_back(view):
            return instances & view.held
        return instances + itinerary.probes

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return all offers as long as the run may replan; otherwise the stage's."""
        if self._itinerary.stuck:
            return tuple(group.offer for group in self._itinerary.stage_plan.groups)
        return tuple(rentable.offer for rentable in view.rentables)

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        """Whether a group of the stage could train a trial on these instances."""
        return any(can_train(group, instances) for group in self._itinerary.stage_plan.groups)

    def leaving(self, view: View, needed: float) -> Collection[str]:
        leaving = self._itinerary.leaving
        self._itinerary.leaving = frozenset()
        return leaving

    def grows_at(self, view: View) -> float:
        return math.inf

    def dollars_to_come(self, view: View, at: float) -> float | None:
        itinerary = self._itinerary
        if not itinerary.stage_began:
            return 0.0
        now = itinerary.stage_plan
        left = max(0.0, 1 - (at - itinerary.stage_began[-1]) / now.seconds)
        return left * now.dollars + sum(
            stage.dollars for stage in itinerary.plan.stages[itinerary.stage + 1 :]
        )
