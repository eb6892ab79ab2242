"""The exact search goes on, with more options a stage, until nothing was left out."""

import random
from dataclasses import replace

from cloudtune.model.plans import Allowance, Rentable
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.strategies.successive_halving import SuccessiveHalving
from tests.builders import offer, profile


def test_later_rounds_try_other_options() -> None:
    """Found by 214 random jobs: the first round alone comes to $10.83."""
    dice = random.Random(176)
    rentables = []
    for number in range(8):
        rented = offer(dice.choice([1, 2, 4, 8]), dice.uniform(1, 50))
        name = f"g.{number}"
        rented = replace(rented, instance_type=replace(rented.instance_type, name=name))
        curve = {width: dice.uniform(5, 50) for width in (0.5, 1.0, 2.0, 4.0, 8.0)}
        rentables.append(Rentable(rented, profile(curve, name=name), 32))
    work = SuccessiveHalving(dice.choice([16, 27, 64]), 1, dice.choice([9, 27]), 3, "max").stages()
    request = PlanRequest(work, tuple(rentables), Allowance(), 32)
    cheapest = ExactPlanner().plan(request).estimate.seconds
    fastest = ExactPlanner().plan(replace(request, objective="time")).estimate.seconds
    deadline = fastest + dice.uniform(0.1, 0.9) * (cheapest - fastest)
    plan = ExactPlanner().plan(replace(request, allowance=Allowance(deadline, None)))
    assert plan.estimate.dollars < 9.39
