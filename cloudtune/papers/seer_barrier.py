"""SEER's schedule, reconstructed with barriers: all trials wait for each other at every rung."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cloudtune.model.plans import Allowance, Plan, Stage
from cloudtune.model.trial import EndReason, TrialId
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import Explored, explore, plan_within
from cloudtune.planners.reserve import Reserve
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.policy.schedule.situation import Situation
from cloudtune.strategies.base import View
from cloudtune.strategies.successive_halving import SuccessiveHalving

_EXACT = ExactPlanner()


@dataclass(frozen=True)
class SeerBarrier(SuccessiveHalving):
    """Sequential elimination: the forecast keeps 1/eta (rounded up) at each rung, to `max_epochs`.

    A reconstruction, not the paper's algorithm: only the abstract of SEER (SoCC 2021) is public.
    Rungs are at min_epochs * eta**k and at max_epochs. How many trials really continue from a rung
    is decided there, by a plan for the rest (`SeerSchedule`); `promote` is for runs without a plan.
    """

    def stages(self) -> tuple[Stage, ...]:
        return self.rest(self.trials, 0, self.max_epochs)

    def rest(self, trials: int, begin: int, end: int) -> tuple[Stage, ...]:
        """Return the stages that train `trials` trials from epoch `begin` to epoch `end`."""
        stages: list[Stage] = []
        rung = self.min_epochs
        while begin < end:
            while rung <= begin:
                rung *= self.eta
            stages.append(Stage(trials, begin, min(rung, end)))
            trials = math.ceil(trials / self.eta)
            begin = min(rung, end)
        return tuple(stages)


class SeerSchedule:
    """Keeps the most trials at each rung that still leave the best one a full training.

    The reconstruction of SEER's run (docs/best.md): the rest is replanned at each rung. If the
    limits don't pay for one full training, the best trial trains as far as they go; the run ends
    at the rung from which not one more epoch fits.

    All trials of a stage on one offer have the same width, whatever their rank; a stage is wider
    if the rest of the job can't meet its deadline in a cheaper way.
    """

    def __init__(self, strategy: SuccessiveHalving, reserve: Reserve) -> None:
        assert isinstance(strategy, SeerBarrier)
        self._strategy = strategy
        self._reserve = reserve

    def promote(
        self, view: View, itinerary: Itinerary, results: Mapping[TrialId, float | None]
    ) -> tuple[TrialId, ...] | EndReason:
        """Return as many of the best trials as can continue; the itinerary takes their plan."""
        ranked = self._strategy.rank_trials(results)
        rung = itinerary.stage_plan.stage.end_epoch
        left = self._strategy.max_epochs - rung
        if not ranked or left <= 0:
            return ()

        situation = Situation(view, itinerary, _EXACT, self._reserve)

        def ask(trials: int, epochs: int) -> PlanRequest:
            work = self._strategy.rest(trials, rung, rung + epochs)
            return situation.problem(work, ranked[:trials], view.barred)

        try:
            explored = explore(_EXACT, ask, max_trials=len(ranked), max_epochs=left)
        except InfeasibleError as error:
            request = ask(1, left)
            last = self._plan_without_reserve(request)
            if last is None:
                return binding(error, request.allowance)
            explored = Explored(1, left, last)
        if (
            explored.epochs < left
            and (last := self._plan_without_reserve(ask(1, left))) is not None
        ):
            explored = Explored(1, left, last)
        itinerary.splice(explored.plan, itinerary.stage + 1, view)
        return ranked[: explored.trials]

    def _plan_without_reserve(self, request: PlanRequest) -> Plan | None:
        """Return the plan of training one trial to its end with everything that is left.

        Everything is returned in its last seconds.
        """
        share = 1 - self._reserve.share
        deadline = request.allowance.seconds
        budget = request.allowance.dollars
        allowance = Allowance(
            None if deadline is None else deadline / share + self._reserve.seconds,
            None if budget is None else budget / share,
        )
        return plan_within(_EXACT, replace(request, allowance=allowance))


def binding(error: InfeasibleError, allowance: Allowance) -> EndReason:
    """Return which limit leaves no plan, or NO_CAPACITY if nothing could be rented."""
    if error.fastest is None:
        return EndReason.NO_CAPACITY
    seconds = allowance.seconds
    late = seconds is not None and error.fastest.estimate.seconds > seconds
    return EndReason.DEADLINE if late else EndReason.BUDGET
