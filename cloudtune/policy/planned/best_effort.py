"""What a run does when no plan keeps its limits any more: the best that they allow.

It continues with fewer trials, as many as still leave the last one a full training; if not even
that fits, with one trial for as many epochs as possible.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cloudtune.model.plans import Plan, Stage
from cloudtune.model.trial import TrialId, rank_key
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.explore import Explored, explore, plan_within
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.policy.planned.remaining_work import Rest

# Finds how many trials fit. Each number tried takes a planning, so this planner must be quick.
_QUICK = GreedyPlanner()


@dataclass(frozen=True)
class BestEffort:
    """A plan for fewer trials, or fewer epochs of the last: what the limits still allow.

    `members` train on, to epoch `epochs` of the `full` ones requested.
    """

    plan: Plan
    members: tuple[TrialId, ...]
    next_trials: int
    epochs: int
    full: int


class Effort:
    """The search for the best that the limits allow of the rest of a run."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def best(self) -> BestEffort | None:
        """Return the most trials of which one can still be trained in full.

        If not even one can, return one trial for as many epochs as possible. In the middle of a
        stage all its trials train on to the rung if that leaves time and money for a full training;
        otherwise the worst are cut now.
        """
        whole = None if self._rest.fresh else self._most_after_the_rung()
        if whole is not None and whole.epochs == whole.full:
            return whole
        fewer = self._most_from_now()
        if fewer is None or (whole is not None and whole.epochs >= fewer.epochs):
            return whole
        return fewer

    def _most_after_the_rung(self) -> BestEffort | None:
        work = self._rest.work
        if len(work) == 1:
            return None
        most = work[1].trials
        first = self._rest.rung

        def stages(count: int, epochs: int) -> tuple[Stage, ...]:
            return (work[0], *_cut_off(_scale_stages(work[1:], count), first + epochs))

        return self._explore(stages, most, first, lambda _count: self._rest.members)

    def _most_from_now(self) -> BestEffort | None:
        ranked = self._rank()
        if not self._rest.fresh and not any(
            self._rest.view.trials[n].history for n in ranked if n in self._rest.view.trials
        ):
            return None
        work = self._rest.work
        training = set(self._rest.training)
        first = work[0].start_epoch
        now = replace(work[0], trials=len(ranked))

        def stages(count: int, epochs: int) -> tuple[Stage, ...]:
            return _cut_off(_scale_stages((now, *work[1:]), count), first + epochs)

        if not training & set(ranked[:1]) and len(work) == 1:
            return None  # the best has no more to train
        return self._explore(stages, len(ranked), first, lambda count: ranked[:count])

    def _explore(
        self,
        stages: Callable[[int, int], tuple[Stage, ...]],
        most: int,
        first: int,
        members: Callable[[int], tuple[TrialId, ...]],
    ) -> BestEffort | None:
        last = (self._rest.later or (self._rest.itinerary.stage_plan.stage,))[-1].end_epoch
        tight = self._rest.tight

        def ask(count: int, epochs: int) -> PlanRequest:
            return self._rest.request(
                stages(count, epochs), members(count), self._rest.not_now, tight
            )

        try:
            quick = explore(_QUICK, ask, max_trials=most, max_epochs=max(1, last - first))
        except InfeasibleError:
            return None
        explored = self._improve(quick, ask, most)
        work = stages(explored.trials, last - first)
        choices = list(explored.plan.choices)
        choices += [choices[-1]] * (len(work) - len(choices))
        whole = self._rest.request(work, members(explored.trials), self._rest.not_now, tight)
        plan = price(whole, choices, self._rest.planner.name)
        kept = members(explored.trials)
        return BestEffort(plan, kept, explored.trials, first + explored.epochs, last)

    def _improve(
        self, quick: Explored, ask: Callable[[int, int], PlanRequest], most: int
    ) -> Explored:
        """Return what the run's own planner adds: one more trial, or a better plan."""
        if (
            quick.epochs == ask(quick.trials, quick.epochs).work[-1].end_epoch
            and quick.trials < most
        ):
            more = plan_within(self._rest.planner, ask(quick.trials + 1, quick.epochs))
            if more is not None:
                return Explored(quick.trials + 1, quick.epochs, more)
        plan = plan_within(self._rest.planner, ask(quick.trials, quick.epochs))
        return quick if plan is None else replace(quick, plan=plan)

    def _rank(self) -> tuple[TrialId, ...]:
        """Return the trials of the stage, best first, by the last epoch that all have reported.

        Right after a rung they are in order already. Trials that have yet to begin come last.
        """
        members = self._rest.members
        trials = self._rest.view.trials
        if self._rest.fresh:
            return members
        reported = [trials[n] for n in members if n in trials and trials[n].history]
        epoch = min((max(t.history) for t in reported), default=0)
        keys = {
            t.id: (rank_key(self._rest.view.mode, t.history.get(epoch)), t.id) for t in reported
        }
        return (*sorted(keys, key=lambda n: keys[n]), *(n for n in members if n not in keys))


def _scale_stages(stages: Sequence[Stage], trials: int) -> tuple[Stage, ...]:
    """Return the stages with `trials` in the first, and proportionally fewer in the others."""
    most = stages[0].trials
    share = trials / most if most else 1.0
    return tuple(
        replace(stage, trials=max(1, math.ceil(stage.trials * share - 1e-9))) for stage in stages
    )


def _cut_off(stages: Sequence[Stage], end: int) -> tuple[Stage, ...]:
    return tuple(
        replace(stage, end_epoch=min(stage.end_epoch, end))
        for stage in stages
        if stage.start_epoch < end
    )
