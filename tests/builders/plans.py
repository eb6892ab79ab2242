"""Plans by hand, and the plan of a run that follows one."""

import math

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import slots
from cloudtune.model.plans import (
    Charges,
    Estimate,
    Forecast,
    Group,
    Plan,
    RunPlan,
    Spread,
    Stage,
    StagePlan,
    largest_fleet,
)
from tests.builders.machines import NO_CHARGES, offer


def certain(seconds: float, dollars: float, plan: Plan) -> Forecast:

    def spread(value: float) -> Spread:
        return Spread(value, value, value, value)

    return Forecast(
        seconds=spread(seconds),
        dollars=spread(dollars),
        trials=spread(plan.stages[0].stage.trials),
        epochs=spread(plan.stages[-1].stage.end_epoch),
        gpu_hours=spread(1.0),
        instances=spread(plan.peak_instances),
        in_time=None,
        in_money=None,
        within=None,
        results=1.0,
        samples=1,
        seed=0,
        source="stages",
    )


def run_plan(plan: Plan, forecast: Forecast | None = None) -> RunPlan:
    return RunPlan(
        strategy="sha",
        allocator="planned",
        fleet_rule="planned",
        offers=plan.offers,
        fleet=largest_fleet(plan),
        max_instances=plan.max_instances,
        forecast=forecast or certain(plan.estimate.seconds, plan.estimate.dollars, plan),
        charges=plan.charges,
        vcpu_quotas=plan.vcpu_quotas,
        staged=plan,
    )


def followed(plan: RunPlan) -> Plan:
    assert plan.followed is not None
    return plan.followed


def shapes(plan: Plan) -> list[tuple[int, float]]:
    """Return instances and width of each stage of a plan that uses one offer at a time."""
    groups = (group for stage in plan.stages for group in stage.groups)
    found = [(group.instances, group.width) for group in groups]
    assert len(found) == len(plan.stages), "a stage has several groups"
    return found


def widths(plan: Plan) -> list[float]:
    return [group.width for stage in plan.stages for group in stage.groups]


def staged(
    *stages: tuple[int, int, int, int, float], gpus: int = 4, max_instances: int = 9
) -> Plan:
    """Return a plan by hand; each stage is (trials, first epoch, last epoch, instances, width)."""
    made = [
        grouped(start, end, group(offer(gpus), instances, width, trials))
        for trials, start, end, instances, width in stages
    ]
    return by_hand(*made, max_instances=max_instances)


def group(offer: Offer, instances: int, width: float, trials: int) -> Group:
    waves = math.ceil(trials / max(1, slots(width, offer.gpus, instances)))
    return Group(offer, instances, width, trials, waves)


def grouped(start: int, end: int, *groups: Group) -> StagePlan:
    return StagePlan(Stage(sum(group.trials for group in groups), start, end), groups)


def by_hand(*stages: StagePlan, max_instances: int = 9, charges: Charges = NO_CHARGES) -> Plan:
    return Plan("by hand", stages, Estimate(0.0, 0.0), max_instances, charges=charges)
