"""Planning the rest of a job anew, from what a run has by then.

The work that is left, the instances that are held, the speeds that were measured, the time and the
money that are left, and the offers without those that the cloud refuses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.plan import Limits, Stage
from cloudtune.planners.base import InfeasibleError, Live, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import explore
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Rentable
    from cloudtune.planners.base import Planner
    from cloudtune.planners.following import Itinerary
    from cloudtune.planners.reserve import Reserve
    from cloudtune.strategies.base import StagedStrategy, View
    from cloudtune.strategies.seer_barrier import SeerBarrier
    from cloudtune.trial import TrialId

_EXACT = ExactPlanner()


def limits_left(view: View, reserve: Reserve) -> Limits:
    """Return the seconds and dollars that a plan for the rest may take, from now on."""
    deadline, budget = view.limits.deadline, view.limits.budget
    time = None if deadline is None else deadline - view.now - reserve.seconds
    money = None if budget is None else budget - view.committed
    return reserve.limits(Limits(time, money))


def request_for_rest(
    view: View,
    itinerary: Itinerary,
    reserve: Reserve,
    *,
    work: tuple[Stage, ...],
    trials: Sequence[TrialId],
    barred: Callable[[Offer], bool],
) -> PlanRequest:
    """Return the planning problem of the rest: `work` that these trials are to do from now on.

    A plan may use the held instances of an offer that is `barred`, and no more of them.
    """
    plan = itinerary.plan
    return PlanRequest(
        work=work,
        rentables=_rentables_for(view, reserve, trials, barred),
        limits=limits_left(view, reserve),
        max_instances=plan.max_instances,
        fleet=_held(view, itinerary, trials),
        charges=plan.charges,
        vcpu_quotas=plan.vcpu_quotas,
    )


def _held(view: View, itinerary: Itinerary, trials: Sequence[TrialId]) -> tuple[Live, ...]:
    """Return the instances that are to stay, with their ages in seconds.

    An instance carries the width of these trials only if every trial sits on GPUs. If some are
    parked to let others train, the plan mustn't count on anybody to train on where it is.
    """
    settled = all(name in view.trials and view.trials[name].live for name in trials)
    ages: dict[Offer, list[float]] = {}
    for rented in view.fleet.wanted():
        ages.setdefault(rented.offer, []).append(max(0.0, view.now - rented.began_at))
    widths = {group.offer: group.width for group in itinerary.stage_plan.groups if settled}
    return tuple(Live(o, tuple(sorted(each)), widths.get(o)) for o, each in ages.items())


def _rentables_for(
    view: View, reserve: Reserve, trials: Sequence[TrialId], barred: Callable[[Offer], bool]
) -> tuple[Rentable, ...]:
    """Return the rentables at these trials' speeds; of a barred offer only what is held."""
    found = []
    for rentable in reserve.rentables(view.rentables):
        most = view.held.get(rentable.offer, 0) if barred(rentable.offer) else rentable.most
        if most > 0:
            found.append(replace(view.corrected(rentable, trials), most=most))
    return tuple(found)


class Replanner:
    """Plans anew when the cloud refuses an offer of the plan, or takes an instance back.

    If no plan for the rest keeps the limits, the run keeps the plan that it has, and refused offers
    are asked for again after a while.
    """

    def __init__(self, planner: Planner, reserve: Reserve) -> None:
        self._planner = planner
        self._reserve = reserve
        self._shocks = 0

    def react(self, view: View, itinerary: Itinerary) -> None:
        """Follow another plan for the rest, if what is missing can't be had by this one."""
        if view.shocks == self._shocks:
            return  # solving takes long: nothing but a shock is worth another plan
        self._shocks = view.shocks
        members = itinerary.under_way(view)
        refused = any(map(view.avoided, itinerary.missing(view)))
        if not members or not (refused or self._late(view, itinerary)):
            return
        request = request_for_rest(
            view,
            itinerary,
            self._reserve,
            work=_work_left(view, itinerary, members),
            trials=members,
            barred=view.avoided,
        )
        try:
            found = self._planner.plan(request)
        except InfeasibleError:
            return
        itinerary.splice(found, itinerary.stage, view)
        itinerary.stage_began[-1] = view.now

    def _late(self, view: View, itinerary: Itinerary) -> bool:
        """Whether the rest of the present plan, begun now, would miss the deadline."""
        deadline = limits_left(view, self._reserve).deadline
        rest = itinerary.plan.stages[itinerary.stage :]
        return deadline is not None and sum(stage.seconds for stage in rest) > deadline


def _work_left(view: View, itinerary: Itinerary, members: Sequence[TrialId]) -> tuple[Stage, ...]:
    """Return the stages that are left; the present one from the epoch of its slowest trial."""
    later = tuple(stage.stage for stage in itinerary.plan.stages[itinerary.stage + 1 :])
    rung = itinerary.stage_plan.stage.end_epoch
    first = min(view.trials[name].epoch if name in view.trials else 0 for name in members)
    trials = max(len(members), later[0].trials if later else 0)
    return (Stage(trials, min(first, rung - 1), rung), *later)


class HalvingSchedule:
    """Successive halving by its own stages: the plan is kept, whatever the results."""

    def __init__(self, strategy: StagedStrategy, name: str = "sha") -> None:
        self.name = name
        self._strategy = strategy

    def promote(
        self, view: View, itinerary: Itinerary, results: Mapping[TrialId, float | None]
    ) -> tuple[TrialId, ...]:
        """Return the best of the rung, as many as the next stage takes."""
        return self._strategy.promote(itinerary.stage, results)


class SeerSchedule:
    """Keeps the most trials at each rung of which the best can still be trained in full.

    The reconstruction of SEER's run (docs/seer.md): the rest is planned anew at each rung. If
    the limits don't pay for one trial in full, the best is trained as far as they go; the run ends
    at the rung from which not one more epoch fits.

    All trials of a stage on one offer have one width, so survivors don't differ in width by their
    rank; a stage is wider where the rest of the job meets its deadline in no cheaper way.
    """

    name = "seer-barrier"

    def __init__(self, strategy: SeerBarrier, reserve: Reserve) -> None:
        self._strategy = strategy
        self._reserve = reserve

    def promote(
        self, view: View, itinerary: Itinerary, results: Mapping[TrialId, float | None]
    ) -> tuple[TrialId, ...] | EndReason:
        """Return as many of the best trials as can go on; their plan becomes the itinerary's."""
        ranked, rung = self._strategy.ranked(results), itinerary.stage_plan.stage.end_epoch
        left = self._strategy.max_epochs - rung
        if not ranked or left <= 0:
            return ()

        def ask(trials: int, epochs: int) -> PlanRequest:
            return request_for_rest(
                view,
                itinerary,
                self._reserve,
                work=self._strategy.rest(trials, rung, rung + epochs),
                trials=ranked[:trials],
                barred=view.barred,
            )

        try:
            found = explore(_EXACT, ask, max_trials=len(ranked), max_epochs=left)
        except InfeasibleError as error:
            return binding(error, limits_left(view, self._reserve))
        itinerary.splice(found.plan, itinerary.stage + 1, view)
        return ranked[: found.trials]


def binding(error: InfeasibleError, limits: Limits) -> EndReason:
    """Return which limit leaves no plan; where nothing could be rented it is the offers."""
    if error.fastest is None:
        return EndReason.NO_CAPACITY
    late = limits.deadline is not None and error.fastest.estimate.seconds > limits.deadline
    return EndReason.DEADLINE if late else EndReason.BUDGET
