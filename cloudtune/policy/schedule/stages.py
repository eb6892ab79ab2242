"""How strategies with stages are planned, and what carries their plans out."""

import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudtune.model.plans import Allowance, Plan, Stage
from cloudtune.model.text import count_noun
from cloudtune.model.trial import Trial, TrialId
from cloudtune.planners.base import InfeasibleError, Planner, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.reserve import Reserve
from cloudtune.planners.static import StaticPlanner
from cloudtune.policy.base import Brakes, Components
from cloudtune.policy.context import BuildContext
from cloudtune.policy.schedule.executor import (
    HalvingSchedule,
    PlannedFleet,
    PlannedStages,
    PlannedWidths,
    Schedule,
)
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.policy.schedule.replanner import Heeds, Replanner
from cloudtune.policy.schedule.situation import Situation
from cloudtune.strategies.base import Sampler, View
from cloudtune.strategies.rungs import why_fewer
from cloudtune.strategies.successive_halving import JoinedHalving, SuccessiveHalving


@dataclass(frozen=True)
class Planning:
    """How the stages of a strategy are planned: those of `halving`, by the `planner` of that name.

    With `in_time` the plan is the cheapest within the deadline, or the fastest if no plan keeps it;
    the budget only ends the run. With a `schedule` the planner also finds how many trials the
    limits pay for, and the schedule decides at each rung how many continue.
    """

    planner: str
    in_time: bool = False
    halving: type[SuccessiveHalving] = SuccessiveHalving
    schedule: Callable[[SuccessiveHalving, Reserve], Schedule] | None = None

    @property
    def explores(self) -> bool:
        """Whether the number of trials is part of the plan."""
        return self.schedule is not None

    @property
    def replans(self) -> bool:
        """Whether the rest is replanned when speeds differ from the profile."""
        return not (self.in_time or self.explores)

    def stages(self, context: BuildContext, trials: int) -> tuple[Stage, ...]:
        """Return the stages of some trials: the work to plan."""
        return self.build_rungs(context, trials).stages()

    def build_rungs(self, context: BuildContext, trials: int) -> SuccessiveHalving:
        """Return the rungs of some trials."""
        return self.halving(
            trials, context.min_epochs, context.max_epochs, context.eta, context.mode
        )


# Planners quick enough to plan the rest of a job while it runs.
PLANNERS: Mapping[str, Planner] = {
    planner.name: planner
    for planner in (ExactPlanner(), GreedyPlanner(), NaivePlanner(), StaticPlanner())
}


def compute_reserve(brakes: Brakes) -> Reserve:
    """Return what a plan must leave of the limits for a run with these brakes."""
    return Reserve(brakes.tick + brakes.drain)


def in_time_or_fastest(planner: Planner, request: PlanRequest) -> Plan:
    """Return the plan, or the fastest one if none keeps the limits.

    Raises:
        InfeasibleError: no offer can train a trial.
    """
    try:
        return planner.plan(request)
    except InfeasibleError as error:
        if error.fastest is None:
            raise
        return error.fastest


@dataclass(frozen=True)
class Newcomers:
    """Adds trials to a planned run of successive halving that is resumed after its end.

    They begin at epoch 0 and compete among themselves at each rung, up to the one that the run's
    own trials were training to. From there on all compete. One plan covers both.
    """

    planning: Planning
    context: BuildContext
    sampler: Sampler
    reserve: Reserve

    def join(self, view: View, itinerary: Itinerary, trials: int) -> Schedule | str:
        """Replace the rest of the present plan by one that includes the new trials.

        It is the fastest plan if none keeps the limits. If there is none at all, return why.
        """
        if why := why_fewer(self.sampler.more(trials), trials):
            return why
        new = [trial for _ in range(trials) if (trial := self.sampler.ask()) is not None]
        halving = self.planning.build_rungs(self.context, len(new))
        rungs = [stage.end_epoch for stage in halving.stages()]
        # The run's own trials, by the stage at which they join the new ones.
        due = dict.fromkeys(itinerary.survivors(view), itinerary.stage_plan.stage.end_epoch)
        joining = defaultdict[int, tuple[TrialId, ...]](tuple)
        for name, rung in (due | itinerary.waiting).items():
            joining[bisect.bisect_left(rungs, rung)] += (name,)
        first = (*joining[0], *(trial.id for trial in new))
        waiting = {n: rungs[at] for at, names in joining.items() if at > 0 for n in names}
        joined = JoinedHalving(halving, joining)
        planner = _find_planner(itinerary.plan)
        situation = Situation(view, itinerary, planner, self.reserve)
        request = situation.problem(joined.stages(), (), view.barred)
        if self.planning.in_time:
            request = replace(request, allowance=Allowance(request.allowance.seconds, None))
        try:
            plan = in_time_or_fastest(planner, request)
        except InfeasibleError as error:
            return str(error)
        itinerary.join(view, new, plan, first, waiting)
        itinerary.record(count_noun(len(new), "more trial"), itinerary.describe())
        return HalvingSchedule(joined, itinerary.stage)


def _find_planner(plan: Plan) -> Planner:
    """Return the planner of a plan; the exact one instead of one that is too slow for a run."""
    return PLANNERS.get(plan.planner, PLANNERS["exact"])


def follow(
    name: str,
    planning: Planning,
    context: BuildContext,
    plan: Plan,
    trials: Sequence[Trial],
    *,
    brakes: Brakes,
    sampler: Sampler | None = None,
    planned_widths: bool = True,
    planned_fleet: bool = True,
) -> Components:
    """Return what carries out the plan of a strategy, for the first of the trials.

    The `sampler` provides the trials that may be added after the run's end.

    With `planned_fleet` the rest is replanned when reality differs from the plan; if another
    allocator sets the widths, only when the cloud refuses an offer or takes an instance. Strategies
    planned for their deadline alone (`in_time`) keep their first plan, and a `schedule` plans at
    its rungs: both deviate only if nothing that a stage needs is available.
    """
    itinerary = Itinerary(plan, trials[: plan.stages[0].stage.trials])
    reserve = compute_reserve(brakes)
    halving = planning.build_rungs(context, len(itinerary.trials))
    schedule: Schedule = HalvingSchedule(halving)
    joining = None
    if planning.schedule is not None:
        schedule = planning.schedule(halving, reserve)
    elif sampler is not None:
        joining = Newcomers(planning, context, sampler, reserve).join
    heeds: Heeds = "all" if planned_widths else "shocks"
    if not planning.replans:
        heeds = "refusals"
    replanner = Replanner(itinerary, _find_planner(plan), reserve, heeds)
    strategy = PlannedStages(
        name,
        schedule,
        itinerary,
        replanner=replanner if planned_fleet else None,
        joining=joining,
        planned_widths=planned_widths,
        planned_fleet=planned_fleet,
    )
    widths = PlannedWidths(itinerary, planned_fleet=planned_fleet)
    return Components(strategy, widths, PlannedFleet(itinerary), itinerary)
