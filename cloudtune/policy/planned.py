"""Strategies with stages that are planned beforehand, by their names.

How each of them is planned, and what carries its plan out: the same in `plan`, `run` and
`simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.errors import UsageError
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import explore
from cloudtune.planners.fleets import PlannedFleet
from cloudtune.planners.following import Itinerary, PlannedStages, PlannedWidths
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.reacting import Replanner
from cloudtune.planners.replanning import HalvingSchedule, SeerSchedule
from cloudtune.planners.reserve import Reserve
from cloudtune.planners.static import StaticPlanner
from cloudtune.plans import Charges, Limits
from cloudtune.strategies.seer_barrier import SeerBarrier
from cloudtune.strategies.successive_halving import SuccessiveHalving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.planners.base import Planner
    from cloudtune.planners.following import Schedule
    from cloudtune.planners.reacting import Heeds
    from cloudtune.plans import Plan, Stage
    from cloudtune.policy.base import Brakes
    from cloudtune.policy.context import BuildContext
    from cloudtune.trial import Trial


@dataclass(frozen=True)
class Planning:
    """How the stages of a strategy are planned.

    `planner` by its name. With `in_time` alone the plan is the cheapest within the deadline and the
    budget ends the run; where no plan keeps the deadline, the fastest is followed as far as that
    lets it. With `explores` the planner also finds how many trials the limits pay for.
    """

    planner: str
    in_time: bool = False
    explores: bool = False

    @property
    def plans_anew(self) -> bool:
        """Whether the rest is planned anew when speeds aren't the profile's."""
        return not (self.in_time or self.explores)


PLANNED: Mapping[str, Planning] = {
    "sha": Planning("exact"),
    "rubberband": Planning("greedy", in_time=True),
    "rubberband-exact": Planning("exact", in_time=True),
    "sha-static": Planning("static", in_time=True),
    "seer-barrier": Planning("exact", explores=True),
}
"""Strategies with stages. All are successive halving, but for SEER's reconstruction."""

PLANNERS: Mapping[str, Planner] = {
    planner.name: planner
    for planner in (ExactPlanner(), GreedyPlanner(), NaivePlanner(), StaticPlanner())
}
"""Planners that are quick enough to plan the rest of a job while it runs."""


def stages(name: str, context: BuildContext, trials: int) -> tuple[Stage, ...]:
    """Return the stages of a strategy for so many trials: the work that is to be planned."""
    if PLANNED[name].explores:
        return _seer(context, trials).stages()
    return _halving(context, trials).stages()


def _halving(context: BuildContext, trials: int) -> SuccessiveHalving:
    return SuccessiveHalving(
        trials, context.min_epochs, context.max_epochs, context.eta, context.mode
    )


def _seer(context: BuildContext, trials: int) -> SeerBarrier:
    return SeerBarrier(trials, context.min_epochs, context.max_epochs, context.eta, context.mode)


def reserve_of(brakes: Brakes) -> Reserve:
    """Return what a plan leaves of the limits for a run with these brakes."""
    return Reserve(brakes.tick + brakes.drain)


def plan_stages(
    name: str,
    context: BuildContext,
    brakes: Brakes,
    *,
    trials: int,
    charges: Charges | None = None,
    vcpu_quotas: Mapping[str, int] | None = None,
) -> Plan:
    """Return the plan of a strategy for up to so many trials, within the context's limits.

    Raises:
        UsageError: there is no trial.
        InfeasibleError: no offer can train a trial, or no plan keeps the limits that it is for.
    """
    if trials < 1:
        raise UsageError(f"{name}: there is no trial to run; give it one or more")
    planning, reserve = PLANNED[name], reserve_of(brakes)

    def request(work: tuple[Stage, ...], limits: Limits) -> PlanRequest:
        deadline = None if limits.deadline is None else limits.deadline - reserve.seconds
        return PlanRequest(
            work=work,
            rentables=reserve.rentables(context.rentables),
            limits=reserve.limits(Limits(deadline, limits.budget)),
            max_instances=context.max_instances,
            charges=charges or Charges(),
            vcpu_quotas=vcpu_quotas or {},
        )

    if planning.explores:
        schedule = _seer(context, trials)
        found = explore(
            PLANNERS[planning.planner],
            lambda count, epochs: request(schedule.rest(count, 0, epochs), context.limits),
            max_trials=trials,
            max_epochs=context.max_epochs,
        )
        return found.plan
    work, planner = stages(name, context, trials), PLANNERS[planning.planner]
    if not planning.in_time:
        return planner.plan(request(work, context.limits))
    return in_time_or_fastest(planner, request(work, Limits(context.limits.deadline, None)))


def in_time_or_fastest(planner: Planner, request: PlanRequest) -> Plan:
    """Return the plan, or the fastest that there is where none keeps the limits.

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
class Follower:
    """The parts of a run by a plan; each may be put together with others."""

    itinerary: Itinerary
    stages: PlannedStages
    widths: PlannedWidths
    fleet: PlannedFleet


def follow(
    name: str,
    context: BuildContext,
    plan: Plan,
    trials: Sequence[Trial],
    brakes: Brakes,
    *,
    planned_widths: bool = True,
    planned_fleet: bool = True,
) -> Follower:
    """Return what carries a plan of a strategy out; the first of the trials are trained.

    With `planned_fleet` the rest is planned anew where the world isn't what the plan says; of a
    run whose widths are another allocator's, where the cloud refuses an offer or takes an instance
    back. Strategies that are planned for their deadline alone (`in_time`) keep their first plan, as
    published, and SEER's reconstruction plans at its rungs: both do otherwise only where nothing of
    what a stage takes can be had any more.
    """
    itinerary = Itinerary(plan, trials[: plan.stages[0].stage.trials])
    reserve = reserve_of(brakes)
    schedule: Schedule
    if PLANNED[name].explores:
        schedule = SeerSchedule(_seer(context, len(itinerary.trials)), reserve)
    else:
        schedule = HalvingSchedule(_halving(context, len(itinerary.trials)), name)
    heeds: Heeds = "all" if planned_widths else "shocks"
    if PLANNED[name].in_time or PLANNED[name].explores:
        heeds = "refusals"
    planner = PLANNERS.get(plan.planner, PLANNERS["exact"])
    reacting = Replanner(planner, reserve, heeds) if planned_fleet else None
    made = PlannedStages(
        schedule,
        itinerary,
        reacting=reacting,
        planned_widths=planned_widths,
        planned_fleet=planned_fleet,
    )
    widths = PlannedWidths(itinerary, planned_fleet=planned_fleet)
    return Follower(itinerary, made, widths, PlannedFleet(itinerary))
