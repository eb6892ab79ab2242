"""The state machine of a run that plans the rest of its job anew at each rung.

What it knows by then goes into the plan: the results, the speeds that it measured, the time that
has passed, the money that is spent or bound, the instances that it holds, the offers that the cloud
refuses. Pure, as `RunPolicy` is: fed the same events it decides the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.errors import InfeasibleError
from cloudtune.plan import Estimate, Limits, Live, Plan, PlanRequest
from cloudtune.planners.seer import binding, seer_plan
from cloudtune.policy import RunPolicy
from cloudtune.speeds import Speeds
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.bookkeeping import Brakes, Metric
    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.events import EpochDone
    from cloudtune.plan import Rentable, Stage
    from cloudtune.planners.seer import Reserve
    from cloudtune.strategies.seer_barrier import SeerBarrier
    from cloudtune.trial import Trial, TrialId

_REASONS = {
    "deadline": EndReason.DEADLINE,
    "budget": EndReason.BUDGET,
    "offers": EndReason.NO_CAPACITY,
}


class ReplanningPolicy(RunPolicy):
    """Keeps the most trials at each rung of which the best can still be trained in full.

    The reconstruction of SEER's run (docs/seer.md). Where not even one can, the best is trained as
    far as the limits pay for; the run ends at the rung from which not one more epoch fits.

    All trials of a stage on one offer have one width, so survivors don't differ in width by their
    rank; a stage is wider where the rest of the job meets its deadline in no cheaper way.
    """

    def __init__(
        self,
        *,
        trials: Sequence[Trial],
        strategy: SeerBarrier,
        plan: Plan,
        rentables: Sequence[Rentable],
        reserve: Reserve,
        metric: Metric,
        limits: Limits,
        brakes: Brakes | None = None,
        heartbeat: bool = True,
        checked: bool = True,
    ) -> None:
        super().__init__(
            trials=trials,
            strategy=strategy,
            plan=plan,
            metric=metric,
            limits=limits,
            brakes=brakes,
            heartbeat=heartbeat,
            checked=checked,
        )
        self.schedule = strategy
        self.rentables = tuple(rentables)
        self.reserve = reserve
        self.first_plan = plan
        self.speeds = Speeds()
        self._by_offer = {each.offer: each for each in reversed(self.rentables)}

    @property
    def under_trained(self) -> bool:
        """Whether by the present plan nobody is trained in full."""
        return self.plan.stages[-1].stage.end_epoch < self.schedule.max_epochs

    def _note_epoch(self, event: EpochDone) -> Iterable[Command]:
        trial = self._session(event.session)
        if trial is not None and trial.status != "stopping" and trial.offer is not None:
            profile = self._by_offer[trial.offer].profile
            self.speeds.note(trial.id, profile, trial.width, event.seconds)
        return super()._note_epoch(event)

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
        later = (replace(stage, begin=stage.begin + self.now) for stage in rest.stages)
        estimate = Estimate(
            self.now + rest.estimate.seconds, self._committed() + rest.estimate.dollars
        )
        stages = (*self.plan.stages[: self.stage + 1], *later)
        self.plan = replace(rest, stages=stages, estimate=estimate)

    # ---- what a planner is asked ---------------------------------------------------------

    def _request(
        self, work: tuple[Stage, ...], limits: Limits, trials: Sequence[TrialId]
    ) -> PlanRequest:
        """Return the question for work that these trials are to do."""
        return PlanRequest(
            work=work,
            rentables=self._rentables_for(trials),
            limits=limits,
            max_instances=self.plan.max_instances,
            fleet=self._held(trials),
            charges=self.plan.charges,
            vcpu_quotas=self.plan.vcpu_quotas,
        )

    def _limits_left(self) -> Limits:
        """Return what a plan for the rest may take."""
        deadline, budget = self.limits.deadline, self.limits.budget
        time = None if deadline is None else deadline - self.now - self.reserve.seconds
        money = None if budget is None else budget - self._committed()
        return self.reserve.limits(Limits(time, money))

    def _committed(self) -> float:
        """Return what is spent, or bound to be spent whatever is done.

        Of the instances that are held it is their price till now: the plan for the rest has what
        they cost from now on, what is still owed of their minimum charge included.
        """
        charges = self.charges
        running = self.now - (self.now if self.began is None else self.began)
        held = {rented.intent for rented in self.fleet.wanted()}
        return (
            sum(
                (self.now - rented.began_at) * rented.offer.usd_per_second
                if rented.intent in held
                else rented.dollars(self._ahead)
                for rented in self.fleet
            )
            + self.fleet.launches * charges.usd_per_launch
            + running * charges.usd_per_second
        )

    def _held(self, trials: Sequence[TrialId]) -> tuple[Live, ...]:
        """Return the instances that are to stay, and the width of these trials, if all sit there.

        Where some were parked to let others train, none is counted on to train on where it is.
        """
        settled = all(self.trials[name].live for name in trials)
        ages: dict[Offer, list[float]] = {}
        for rented in self.fleet.wanted():
            ages.setdefault(rented.offer, []).append(max(0.0, self.now - rented.began_at))
        widths = {group.offer: group.width for group in self.stage_plan.groups if settled}
        return tuple(Live(o, tuple(sorted(each)), widths.get(o)) for o, each in ages.items())

    def _rentables_for(self, trials: Sequence[TrialId]) -> tuple[Rentable, ...]:
        """Return what there is for these trials: at their speeds, without what is refused."""
        held = self.fleet.held()
        found = []
        for rentable in self.reserve.rentables(self.rentables):
            refused = self._trouble(rentable.offer).for_good
            most = held[rentable.offer] if refused else rentable.most
            if most > 0:
                found.append(replace(self.speeds.corrected(rentable, trials), most=most))
        return tuple(found)
