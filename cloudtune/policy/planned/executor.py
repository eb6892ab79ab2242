"""How a plan is carried out: a strategy, an allocator and a fleet rule that read it.

The three share an `Itinerary`: the plan, and how far the run has come in it. Strategy, allocator
and fleet rule can each be replaced by another: the stages of a plan on a constant fleet, another
allocator's widths on the plan's instances.

A stage ends when all its trials have reached the rung or failed. Then the schedule says which go
on, the instances that the next stage doesn't need are emptied, and trials with another width there
stop and start again. Where the world isn't what the plan says, the rest may be replanned
(`Replanner`).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import can_train
from cloudtune.model.progress import OVER, TrialProgress
from cloudtune.model.trial import EndReason, TrialId, Width
from cloudtune.policy.planned.itinerary import Itinerary
from cloudtune.policy.planned.remaining_work import HalvingSchedule, SeerSchedule
from cloudtune.policy.planned.replanner import Replanner
from cloudtune.strategies.base import Decision, Go, Shape, Task, TrialGroup, Verdict, View

Schedule: TypeAlias = HalvingSchedule | SeerSchedule
Joining: TypeAlias = Callable[[View, Itinerary, int], Schedule | str]


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
        reacting: Replanner | None = None,
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
        places = [
            (view.width_for(trial, group.width, group.offer), group.offer)
            for group in self.itinerary.groups(view)
        ]
        widths = {width for width, offer in places if view.fits(width, offer)}
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

    def _react(self, reacting: Replanner, view: View) -> Mapping[TrialId, Verdict]:
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
            if trial.live
            and (trial.unsaved or itinerary.fits(view, trial) or not self._planned_widths)
            for piece in trial.placement
        )
        for offer, count in view.held.items():
            group = itinerary.stage_plan.group(offer)
            extra = count - (group.instances if group else 0) - self.itinerary.probes[offer]
            # Of equal worth the oldest go: they have paid their minimum charge.
            held = [rented for rented in view.fleet.wanted() if rented.offer == offer]
            held.sort(key=lambda r: (not r.at_risk, r.joined, staying[r.instance or ""]))
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
                    and itinerary.fits(view, trial)
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
        schedule = self._joining(view, self.itinerary, trials)
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


def _going(view: View) -> float:
    """Return the GPUs of trials that stop, or sit on instances that are to go."""
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
        """Return the GPUs of the stage, of what else is held, and those about to be free.

        Trials that stop for the new stage, or sit on instances that are to go, count besides the
        stage's own GPUs: the next trials are asked for now, and take over as soon as those are
        gone.
        """
        fleet = self._itinerary.stage_plan.fleet
        held = view.held
        expected = held if fleet.items() == held.items() else fleet | held
        return sum([offer.gpus * n for offer, n in expected.items()]) + math.ceil(_going(view))

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the stage's instances, or only those held, while the rest waits for room.

        Besides them those that are asked for while the plan goes on without (`probes`).
        """
        itinerary = self._itinerary
        wanted = itinerary.needed(view)
        if itinerary.held_back(view):
            return wanted & view.held
        return wanted + itinerary.probes if itinerary.probes else wanted

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return all that can be rented, as long as there may be another plan; else the stage's."""
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

    def dollars_to_come(self, view: View, at: float) -> float | None:
        itinerary = self._itinerary
        if not itinerary.stage_began:
            return 0.0
        now = itinerary.stage_plan
        left = max(0.0, 1 - (at - itinerary.stage_began[-1]) / now.seconds)
        return left * now.dollars + sum(
            stage.dollars for stage in itinerary.plan.stages[itinerary.stage + 1 :]
        )
