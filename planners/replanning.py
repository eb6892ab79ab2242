"""Planning the rest of a job anew, from what a run has by then.

The work that is left, the instances that are held, the speeds that were measured, the time and the
money that are left, and the offers without those that the cloud refuses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.plan import Limits
from cloudtune.planners.base import InfeasibleError, Live, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import explore
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Rentable, Stage
    from cloudtune.planners.following import Itinerary
    from cloudtune.planners.reserve import Reserve
    from cloudtune.strategies.base import StagedStrategy, View
    from cloudtune.strategies.seer_barrier import SeerBarrier
    from cloudtune.trial import TrialId, Width

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
        fleet=_held(view, trials),
        charges=plan.charges,
        vcpu_quotas=plan.vcpu_quotas,
    )


def _held(view: View, trials: Sequence[TrialId]) -> tuple[Live, ...]:
    """Return the instances that are to stay, with their ages in seconds.

    An instance carries the width of these trials only if every trial sits on GPUs. If some are
    parked to let others train, the plan mustn't count on anybody to train on where it is.
    """
    known = [view.trials[name] for name in trials if name in view.trials]
    settled = len(known) == len(trials) and all(trial.live for trial in known)
    widths: dict[Offer, set[Width]] = {}
    for trial in known if settled else ():
        if trial.offer is not None:
            widths.setdefault(trial.offer, set()).add(trial.width)
    ages: dict[Offer, list[float]] = {}
    for rented in view.fleet.wanted():
        ages.setdefault(rented.offer, []).append(max(0.0, view.now - rented.began_at))
    return tuple(
        Live(offer, tuple(sorted(each)), _only(widths.get(offer, set())))
        for offer, each in ages.items()
    )


def _only(widths: Collection[Width]) -> Width | None:
    """Return the one width that there is; None where there is none, or several."""
    return next(iter(widths)) if len(widths) == 1 else None


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
