"""Whether `--confidence` finds a sure plan where there is one.

    python -m benchmarks.sureness [--questions 160]

Each question is a small random job with limits that one of its 40 fastest plans keeps, just so,
with the probability that is asked for, by the sampler of the product itself. Those 40 are of all
plans that there are, those with instances to spare as well, so an answer of "infeasible" is false.
Told are the false answers, how much dearer the plans are than the cheapest of the sure ones among
those 40, and what an answer takes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.catalog import InstanceType, Offer
from cloudtune.placement import slots
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.estimate.playout import sample
from cloudtune.planners.estimate.sure import quantile_plan
from cloudtune.planners.exact import ExactPlanner
from cloudtune.plans import Group, Limits, Rentable, Stage
from cloudtune.scaling import Measurement, ScalingProfile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.planners.estimate.playout import Draws
    from cloudtune.plans import Plan

_FASTEST = 40
_EACH = 8
"""Questions of one job."""
_DRAWS = 1000


def job(number: int) -> PlanRequest:
    """Return the job of that number: two or three stages on one or two offers."""
    draw = random.Random(number)
    stages = {
        2: (Stage(4, 0, 2), Stage(2, 2, 6)),
        3: (Stage(4, 0, 1), Stage(2, 1, 3), Stage(1, 3, 7)),
    }[draw.choice([2, 3])]
    kinds = draw.sample([("g.1x", 1, 1.0), ("g.2x", 2, 2.1), ("g.4x", 4, 4.4)], draw.choice([1, 2]))
    rentables = []
    for name, gpus, usd in kinds:
        epoch, beta = draw.choice([20.0, 60.0, 180.0]), draw.uniform(0.5, 1.0)
        noise = draw.choice([0.02, 0.1])
        widths = [width for width in (1.0, 2.0, 4.0) if width <= gpus]
        launch, boot, start, resize, release = (
            Measurement(mean, mean * draw.uniform(0.05, 0.6), 5)
            for mean in (10.0, draw.uniform(30, 180), 8.0, 12.0, 4.0)
        )
        profile = ScalingProfile(
            name,
            {w: Measurement(epoch / w**beta, noise * epoch / w**beta, 5) for w in widths},
            launch,
            boot,
            start,
            resize,
            release,
            "abc",
            "2026-01-01",
            "made up",
            error=draw.choice([0.0, 0.1]),
        )
        spot = draw.random() < 0.4
        offer = Offer(
            InstanceType(name, gpus, "T4", 16384, 4 * gpus, 65536),
            "spot" if spot else "on-demand",
            "",
            usd * (0.35 if spot else 1.0),
            interruptions_per_hour=draw.choice([0.1, 1.0]) if spot else 0.0,
        )
        rentables.append(Rentable(offer, profile, 6))
    return PlanRequest(stages, tuple(rentables), Limits(), 6)


def every_plan(request: PlanRequest) -> Iterator[Plan]:
    """Yield each plan that uses one offer a stage."""
    ways = [list(_ways(request, stage)) for stage in request.work]
    for choices in itertools.product(*ways):
        yield price(request, choices, "every")


def _ways(request: PlanRequest, stage: Stage) -> Iterator[tuple[Group]]:
    for rentable in request.rentables:
        sizes = range(1, min(rentable.most, request.max_instances) + 1)
        for width, count in itertools.product(rentable.profile.widths, sizes):
            room = slots(width, rentable.gpus, count)
            if room > 0:
                waves = math.ceil(stage.trials / room)
                yield (Group(rentable.offer, count, width, stage.trials, waves),)


def _share(draws: Draws, limits: Limits) -> float:
    in_time = draws.seconds <= (limits.deadline or math.inf)
    return float(np.mean(in_time & (draws.dollars <= (limits.budget or math.inf))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=160)
    questions = parser.parse_args().questions
    false, dearer, taken = 0, [], []
    for number in range(questions // _EACH):
        request = job(number)
        plans = sorted(every_plan(request), key=lambda plan: plan.estimate.seconds)[:_FASTEST]
        known = [(p, sample(request, p, samples=_DRAWS, seed=0)) for p in plans]
        draw = random.Random(number)
        for _ in range(_EACH):
            sure, (_, draws) = draw.choice([0.8, 0.95]), draw.choice(known)
            limits = Limits(
                float(np.quantile(draws.seconds, (1 + sure) / 2)) * 1.001,
                float(np.quantile(draws.dollars, (1 + sure) / 2)) * 1.001,
            )
            sure_ones = [p for p, found in known if _share(found, limits) >= sure]
            cheapest = min(plan.estimate.dollars for plan in sure_ones)
            began = time.perf_counter()
            try:
                asked = replace(request, limits=limits)
                plan, _ = quantile_plan(ExactPlanner(), asked, sure, samples=_DRAWS, seed=0)
                dearer.append(plan.estimate.dollars / cheapest)
            except InfeasibleError:
                false += 1
            taken.append(time.perf_counter() - began)
    print(f"{questions} questions with a sure plan: {false} answered as infeasible")
    print(
        f"dollars over the cheapest of the sure ones among the {_FASTEST} fastest: "
        f"median {median(dearer):.3f}, worst {max(dearer):.3f}"
    )
    print(f"seconds an answer: median {median(taken):.2f}, worst {max(taken):.2f}")


if __name__ == "__main__":
    main()
