"""Plans by hand, and the plan of a run that follows one."""

import math

from cloudtune.model import plans
from cloudtune.model.catalog import Offer
from cloudtune.model.placement import slots
from tests.builders.machines import NO_CHARGES, offer


def certain(seconds: float, dollars: float, plan: plans.Plan) -> plans.Forecast:

    def spread(value: float) -> plans.Spread:
        return plans.Spread(value, value, value, value)

    return plans.Forecast(
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


def run_plan(plan: plans.Plan, forecast: plans.Forecast | None = None) -> plans.RunPlan:
    return plans.RunPlan(
        strategy="sha",
        allocator="planned",
        fleet_rule="planned",
        offers=plan.offers,
        fleet=plans.largest_fleet(plan),
        max_instances=plan.max_instances,
        forecast=forecast or certain(plan.estimate.seconds, plan.estimate.dollars, plan),
        charges=plan.charges,
        vcpu_quotas=plan.vcpu_quotas,
        staged=plan,
    )


def followed(plan: plans.RunPlan) -> plans.Plan:
    assert plan.followed is not None
    return plan.followed


def shapes(plan: plans.Plan) -> list[tuple[int, float]]:
    """Return instances and width of each stage of a plan that uses one offer at a time."""
    groups = (group for stage in plan.stages for group in stage.groups)
    result = [(group.instances, group.width) for group in groups]
    assert len(result) == len(plan.stages), "a stage has several groups"
    return result


def widths(plan: plans.Plan) -> list[float]:
    return [group.width for stage in plan.stages for group in stage.groups]


def staged(
    *stages: tuple[int, int, int, int, float], gpus: int = 4, max_instances: int = 9
) -> plans.Plan:
    """Return a plan by hand; each stage is (trials, first epoch, last epoch, instances, width)."""
    made = [
        grouped(start, end, group(offer(gpus), instances, width, trials))
        for trials, start, end, instances, width in stages
    ]
    return by_hand(*made, max_instances=max_instances)


def group(offer: Offer, instances: int, width: float, trials: int) -> plans.Group:
    waves = math.ceil(trials / max(1, slots(width, offer.gpus, instances)))
    return plans.Group(offer, instances, width, trials, waves)


def grouped(start: int, end: int, *groups: plans.Group) -> plans.StagePlan:
    return plans.StagePlan(plans.Stage(sum(group.trials for group in groups), start, end), groups)


def by_hand(
    *stages: plans.StagePlan, max_instances: int = 9, charges: plans.Charges = NO_CHARGES
) -> plans.Plan:
    return plans.Plan("by hand", stages, plans.Estimate(0.0, 0.0), max_instances, charges=charges)
