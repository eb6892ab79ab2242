"""The state machine of a run that plans the rest of its job anew at each rung.

What it knows by then goes into the plan: the results, the speeds that it measured, the time that
has passed, the money that is spent or bound, the instances that it holds, the offers that the cloud
refuses. Pure, as `RunPolicy` is: fed the same events it decides the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtune.errors import InfeasibleError
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.seer import binding, seer_plan
from cloudtune.resolving import ResolvingPolicy
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.catalog import Offer
    from cloudtune.plan import Plan, PlanRequest
    from cloudtune.strategies.seer_barrier import SeerBarrier
    from cloudtune.trial import TrialId

_REASONS = {
    "deadline": EndReason.DEADLINE,
    "budget": EndReason.BUDGET,
    "offers": EndReason.NO_CAPACITY,
}


class ReplanningPolicy(ResolvingPolicy):
    """Keeps the most trials at each rung of which the best can still be trained in full.

    The reconstruction of SEER's run (docs/seer.md). Where not even one can, the best is trained as
    far as the limits pay for; the run ends at the rung from which not one more epoch fits.

    All trials of a stage on one offer have one width, so survivors don't differ in width by their
    rank; a stage is wider where the rest of the job meets its deadline in no cheaper way.
    """

    def __init__(self, *, strategy: SeerBarrier, **options: Any) -> None:
        super().__init__(strategy=strategy, planner=ExactPlanner(), **options)
        self.schedule = strategy

    @property
    def under_trained(self) -> bool:
        """Whether by the present plan nobody is trained in full."""
        return self.plan.stages[-1].stage.end_epoch < self.schedule.max_epochs

    def _promote(self, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the best trials, as many as can go on, and have the plan say how."""
        ranked, rung = self.schedule.ranked(results), self.stage_plan.stage.end_epoch
        left = self.schedule.max_epochs - rung
        if not ranked or left <= 0:
            return ()
        limits = self._limits_left()

        def ask(trials: int, epochs: int) -> PlanRequest:
            work = self.schedule.rest(trials, rung, rung + epochs)
            return self._request(work, limits, ranked[:trials])

        try:
            found = seer_plan(ask, most_trials=len(ranked), most_epochs=left)
        except InfeasibleError as error:
            self._end(_REASONS[binding(error, limits)])
            return ()
        self._follow(found.plan)
        return ranked[: found.trials]

    def _follow(self, rest: Plan) -> None:
        """Have the plan go on from this rung by a new one."""
        self._splice(rest, self.stage + 1)

    def _resolve(self) -> None:
        """Go on till the rung: there the rest is planned anew anyway."""

    def _barred(self, offer: Offer) -> bool:
        return self._trouble(offer).for_good
