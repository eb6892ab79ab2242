"""Runs by a plan of stages, by their names: what makes a `RunPolicy` for each of them.

The pure part that a simulation and a real run share, as `tactics` is for the other strategies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.plan import Charges, Limits, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.seer import Reserve, seer_plan
from cloudtune.planners.static import StaticPlanner
from cloudtune.policy import RunPolicy
from cloudtune.replanning import ReplanningPolicy
from cloudtune.strategies.seer_barrier import SeerBarrier
from cloudtune.strategies.sha import SuccessiveHalving
from cloudtune.tactics import named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.bookkeeping import Brakes, Metric
    from cloudtune.plan import Plan, Planner, Stage
    from cloudtune.tactics import Setup
    from cloudtune.trial import Trial


@dataclass(frozen=True)
class Order:
    """What a staged run is made from; `trials` are those that there are, the first come first."""

    setup: Setup
    trials: tuple[Trial, ...]
    metric: Metric
    brakes: Brakes
    charges: Charges
    vcpu_quotas: Mapping[str, int]
    heartbeat: bool
    checked: bool

    @property
    def reserve(self) -> Reserve:
        """What a plan leaves of the limits."""
        return Reserve(self.brakes.tick + self.brakes.drain)

    def request(self, work: tuple[Stage, ...], limits: Limits) -> PlanRequest:
        """Return what a planner is asked before the run; the run has these limits."""
        deadline = None if limits.deadline is None else limits.deadline - self.reserve.seconds
        return PlanRequest(
            work=work,
            rentables=self.reserve.rentables(self.setup.rentables),
            limits=self.reserve.limits(Limits(deadline, limits.budget)),
            max_instances=self.setup.max_instances,
            charges=self.charges,
            vcpu_quotas=self.vcpu_quotas,
        )


def _given_schedule(order: Order, planner: Planner) -> RunPolicy:
    """Return RubberBand's run: all trials by successive halving, for the least within the deadline.

    The budget isn't planned for: it ends the run. Where no plan keeps the deadline, the fastest is
    followed as far as that lets it.
    """
    setup = order.setup
    strategy = SuccessiveHalving(
        len(order.trials), setup.min_epochs, setup.max_epochs, setup.eta, setup.mode
    )
    request = order.request(strategy.stages(), Limits(setup.limits.deadline, None))
    return RunPolicy(
        trials=order.trials,
        strategy=strategy,
        plan=_in_time_or_fastest(planner, request),
        metric=order.metric,
        limits=setup.limits,
        brakes=order.brakes,
        heartbeat=order.heartbeat,
        checked=order.checked,
    )


def _in_time_or_fastest(planner: Planner, request: PlanRequest) -> Plan:
    try:
        return planner.plan(request)
    except InfeasibleError as error:
        if error.fastest is None:
            raise
        return error.fastest


def _seer_barrier(order: Order) -> RunPolicy:
    """Return the run of the SEER reconstruction: as many trials as still afford a full finish."""
    setup = order.setup
    schedule = SeerBarrier(
        len(order.trials), setup.min_epochs, setup.max_epochs, setup.eta, setup.mode
    )

    def ask(trials: int, epochs: int) -> PlanRequest:
        return order.request(schedule.rest(trials, 0, epochs), setup.limits)

    found = seer_plan(ask, most_trials=len(order.trials), most_epochs=setup.max_epochs)
    return ReplanningPolicy(
        trials=order.trials[: found.trials],
        strategy=schedule,
        plan=found.plan,
        rentables=setup.rentables,
        reserve=order.reserve,
        metric=order.metric,
        limits=setup.limits,
        brakes=order.brakes,
        heartbeat=order.heartbeat,
        checked=order.checked,
    )


STAGED: dict[str, Callable[[Order], RunPolicy]] = {
    "sha-static": partial(_given_schedule, planner=StaticPlanner()),
    "rubberband": partial(_given_schedule, planner=GreedyPlanner()),
    "rubberband-exact": partial(_given_schedule, planner=ExactPlanner()),
    "seer-barrier": _seer_barrier,
}


def staged_policy(
    name: str,
    setup: Setup,
    trials: Sequence[Trial],
    metric: Metric,
    brakes: Brakes,
    *,
    first_trials: int | None = None,
    charges: Charges | None = None,
    vcpu_quotas: Mapping[str, int] | None = None,
    heartbeat: bool = True,
    checked: bool = True,
) -> RunPolicy:
    """Return the policy of a run of that name, planned for the setup's limits.

    `first_trials` of the trials are tried, or else `setup.trials`, or else all; "seer-barrier"
    tries as many of them as the limits pay for. `heartbeat` and `checked` are `RunPolicy`'s.

    Raises:
        UsageError: there is no such run, or no trial.
        InfeasibleError: no offer can train a trial, or (for "seer-barrier") not even one epoch of
            one trial fits into the limits.
    """
    make = STAGED[named("staged strategy", name, STAGED)]
    most = setup.trials if first_trials is None else first_trials
    chosen = tuple(trials)[: len(trials) if most is None else most]
    if not chosen:
        raise UsageError(f"{name}: there is no trial to run; give it one or more")
    return make(
        Order(
            setup=setup,
            trials=chosen,
            metric=metric,
            brakes=brakes,
            charges=charges or Charges(),
            vcpu_quotas=dict(vcpu_quotas or {}),
            heartbeat=heartbeat,
            checked=checked,
        )
    )
