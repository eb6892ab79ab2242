"""Seeded jobs of every way to bill, against all plans there are."""

import itertools
import random
from dataclasses import replace

import pytest

from cloudtune.model.catalog import BillingUnit
from cloudtune.model.plans import Allowance, Charges, Objective, Rentable, Stage
from cloudtune.planners.base import Live, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from tests.builders import offer, profile
from tests.planners.brute_force import best, every_plan

_UNITS: tuple[BillingUnit | None, ...] = (None, None, "second", "minute", "hour", "function")
_MOST = 200  # plans of a job, so that all can be tried
_OBJECTIVES: tuple[Objective, ...] = ("cost", "time")
_DELAYS = ("launch", "boot", "start", "resize", "release")


def job(dice: random.Random) -> PlanRequest:
    """Draw a job of two to four stages on one offer or two, at its start or under way."""
    most, unit = dice.randint(1, 3), dice.choice(_UNITS)

    def rentable(name: str) -> Rentable:
        rented = offer(dice.choice([1, 2, 4]), dice.uniform(1, 50), dice.choice([0, 60, 200]))
        rented = replace(rented, instance_type=replace(rented.instance_type, name=name))
        if unit is not None:
            rented = rented.with_billing(unit, dice.choice([None, 60.0]))
        scale = dice.choice([1, 1, 20])
        widths = sorted(dice.sample([0.5, 1.0, 2.0, 4.0], dice.randint(1, 2)))
        curve = {width: dice.uniform(0.5, 50) * scale for width in widths}
        delays = {kind: dice.choice([0.0, dice.uniform(0, 100)]) for kind in _DELAYS}
        return Rentable(rented, profile(curve, name=name, **delays), dice.randint(1, most))

    rentables = tuple(rentable(name) for name in ("g.a", "g.b")[: dice.choice([1, 2, 2])])
    begin = dice.choice([0, 0, 2])
    epochs = list(itertools.accumulate(dice.choices(range(1, 7), k=3), initial=begin))
    trials = sorted(dice.choices(range(1, 7), k=dice.randint(1, 3)), reverse=True)
    work = tuple(itertools.starmap(Stage, zip(trials, epochs, epochs[1:], strict=False)))
    ages = tuple(sorted(dice.uniform(0, 150) for _ in range(dice.randint(1, most))))
    live = Live(rentables[0].offer, ages, dice.choice(rentables[0].profile.widths))
    return PlanRequest(
        work=work,
        rentables=rentables,
        allowance=Allowance(),
        max_instances=most,
        fleet=(live,) if begin else (),
        charges=Charges(dice.choice([0.0, 0.2]), dice.choice([0.0, 0.001])),
        vcpu_quotas=dice.choice([{}, {"on-demand g": 16}, {"on-demand g": 32}]),
        mix=dice.choice([1, 1, 2]),
    )


@pytest.mark.parametrize("block", range(10))
def test_proven_plans_are_best(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        dice = random.Random(seed)
        request = job(dice)
        plans = list(itertools.islice(every_plan(request, request.mix), _MOST + 1))
        if not 0 < len(plans) <= _MOST:
            continue
        one = dice.choice(plans)
        allowance = Allowance(one.seconds * (1 + 1e-7))
        if dice.random() < 0.3:
            allowance = Allowance(None, one.dollars * (1 + 1e-7))
        ask = replace(request, allowance=allowance, objective=dice.choice(_OBJECTIVES))
        cheapest = best(ask, ask.mix)
        assert cheapest is not None
        plan = ExactPlanner().plan(ask)
        mine, least = plan.estimate.dollars, cheapest.dollars
        if ask.objective == "time":
            mine, least = plan.estimate.seconds, cheapest.seconds
        assert plan.gap is not None
        assert least * (1 - 1e-7) <= mine <= least * (1 + 1e-7) * (1 + plan.gap), seed
