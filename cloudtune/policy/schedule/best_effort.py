"""What a run does when no plan keeps its limits any more: the best that they allow.

It continues with fewer trials, as many as still leave the last one a full training; if not even
that fits, with one trial for as many epochs as possible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cloudtune.model.plans import Plan, Stage
from cloudtune.model.text import count_noun
from cloudtune.model.trial import TrialId, rank_key
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.explore import explore, plan_within
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.reserve import NOISE
from cloudtune.policy.schedule.situation import Situation

# Finds how many trials fit. Each number tried takes a planning, so this planner must be quick.
_QUICK = GreedyPlanner()


@dataclass(frozen=True)
class BestEffort:
    """A plan for fewer trials, or fewer epochs of the last: what the limits still allow.

    `members` train on, `next_trials` of them beyond the rung at most, the last to epoch `epochs`
    of the `full` ones requested.
    """

    plan: Plan
    members: tuple[TrialId, ...]
    next_trials: int
    epochs: int
    full: int

    def describe(self, situation: Situation) -> str:
        """Return in words what the limits allow."""
        parts = []
        before = len(situation.members)
        if len(self.members) < before:
            parts.append(f"{count_noun(len(self.members), 'trial')} instead of {before}")
        elif situation.later and self.next_trials < situation.later[0].trials:
            parts.append(f"{self.next_trials} instead of {situation.later[0].trials} to go on")
        if self.epochs < self.full:
            parts.append(f"the last one to about epoch {self.epochs} of {self.full}")
        return ", ".join(parts)


def find_best_effort(situation: Situation) -> BestEffort | None:
    """Return the most trials of which one can still be trained in full; or else one trial.

    It trains as many epochs as possible. None if that isn't more than going on achieves.

    In the middle of a stage all its trials train on to the rung if that leaves time and money for a
    full training; otherwise the worst are cut now.
    """
    best = None if situation.fresh else _cut_at_rung(situation)
    if best is None or best.epochs < best.full:
        now = _cut_now(situation)
        if best is None or (now is not None and now.epochs > best.epochs):
            best = now
    if best is None or best.epochs == best.full or situation.going_on is None:
        return best
    enough = _furthest_epoch(situation) + max(1.0, NOISE * best.full)
    return best if best.epochs > enough else None


def _cut_at_rung(situation: Situation) -> BestEffort | None:
    now, *later = situation.work
    return _explore(situation, (now,), later, situation.members) if later else None


def _cut_now(situation: Situation) -> BestEffort | None:
    ranked = _rank(situation)
    trials = situation.view.trials
    trained = any(trials[name].history for name in ranked if name in trials)
    now, *later = situation.work
    # Without later stages the best may have no more to train.
    if not (situation.fresh or trained) or not (later or ranked[0] in situation.training):
        return None
    return _explore(situation, (), [replace(now, trials=len(ranked)), *later], ranked)


def _explore(
    situation: Situation,
    sure: tuple[Stage, ...],
    stages: Sequence[Stage],
    ranked: tuple[TrialId, ...],
) -> BestEffort | None:
    """Return the best effort that trains the `sure` stages, and as much as fits of the others."""
    first = stages[0].start_epoch
    last = stages[-1].end_epoch

    def choose(count: int) -> tuple[TrialId, ...]:
        return ranked if sure else ranked[:count]

    def ask(count: int, epochs: int) -> PlanRequest:
        work = (*sure, *_scale_stages(stages, count, first + epochs))
        return situation.best_effort_problem(work, choose(count))

    most = stages[0].trials
    try:
        quick = explore(_QUICK, ask, max_trials=most, max_epochs=max(1, last - first))
    except InfeasibleError:
        return None
    trials = quick.trials
    plan = quick.plan
    # The run's own planner finds a better plan, and from epoch 0 on room for one more trial.
    more = min(most, trials + (first == 0))
    for count in range(more, quick.trials - 1, -1):
        found = plan_within(situation.planner, ask(count, quick.epochs))
        if found is not None:
            trials = count
            plan = found
            break
    # What is planned for fewer epochs continues in the same way.
    request = ask(trials, last - first)
    choices = list(plan.choices)
    choices += [choices[-1]] * (len(request.work) - len(choices))
    plan = price(request, choices, situation.planner.name)
    return BestEffort(plan, choose(trials), trials, first + quick.epochs, last)


def _scale_stages(stages: Sequence[Stage], trials: int, end: int) -> tuple[Stage, ...]:
    """Return the stages to an epoch, with `trials` in the first and as large a share in others."""
    share = trials / stages[0].trials
    scaled = (
        replace(
            stage,
            trials=max(1, math.ceil(stage.trials * share - 1e-9)),
            end_epoch=min(stage.end_epoch, end),
        )
        for stage in stages
        if stage.start_epoch < end
    )
    return tuple(scaled)


def _rank(situation: Situation) -> tuple[TrialId, ...]:
    """Return the trials of the stage, best first, by the last epoch that all have reported.

    Right after a rung they are in order already. Trials that have yet to begin come last.
    """
    members = situation.members
    if situation.fresh:
        return members
    trials = situation.view.trials
    histories = {n: trials[n].history for n in members if n in trials and trials[n].history}
    epoch = min(map(max, histories.values()), default=0)
    mode = situation.view.mode
    ranked = sorted(histories, key=lambda n: (rank_key(mode, histories[n].get(epoch)), n))
    return (*ranked, *(n for n in members if n not in histories))


def _furthest_epoch(situation: Situation) -> float:
    """Return the epoch that the last trial reaches by the present plan before a limit ends it."""
    remaining = situation.remaining.after(situation.reserve.seconds + situation.delay)
    time = math.inf if remaining.seconds is None else remaining.seconds
    money = math.inf if remaining.dollars is None else remaining.dollars
    stages = situation.present.stages
    for stage in stages:
        rate = max(stage.dollars / stage.seconds, 1e-12) if stage.seconds > 0 else 1e-12
        lasts = min(time, money / rate)
        if lasts < stage.seconds:
            training = max(stage.seconds - stage.overhead, 1e-9)
            part = max(0.0, lasts - stage.overhead) / training
            return stage.stage.start_epoch + part * stage.stage.epochs
        time -= stage.seconds
        money -= stage.dollars
    return stages[-1].stage.end_epoch
