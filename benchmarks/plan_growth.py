"""How long the exact planner takes as a job grows: part of plan_time.py."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import large_job
from cloudtune.infra.aws import pricing
from cloudtune.model.plans import Limits, Rentable
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.strategies.successive_halving import SuccessiveHalving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.model.plans import Plan

_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
_QUICK = 2.0  # seconds; what takes longer isn't measured again
SLACK = 2.0
"""The deadline of the cheapest plan, in times of the fastest."""


@dataclass(frozen=True)
class Size:
    """How large a job is; `types` is how many instance types, None for all."""

    stages: int = 10
    trials: int = 512
    types: int | None = None
    max_instances: int = 64

    def request(self) -> PlanRequest:
        """Return the job; types are dropped evenly over the table."""
        profiles = {each.instance_type: each for each in large_job.profiles(0)}
        names = list(profiles)
        step = len(names) / (self.types or len(names))
        kept = {names[int(n * step)] for n in range(self.types or len(names))}
        offers = pricing.catalog(pricing.PRICED_REGION, pricing.MARKETS, _ZONES).offers
        rentables = tuple(
            Rentable(offer, profiles[offer.instance_type.name], self.max_instances)
            for offer in offers
            if offer.instance_type.name in kept
        )
        halving = SuccessiveHalving(self.trials, 1, 2 ** (self.stages - 1), 2, "max")
        return PlanRequest(halving.stages(), rentables, Limits(), self.max_instances)


SIZES: dict[str, list[tuple[float, Size]]] = {
    "stages": [(n, Size(stages=n)) for n in (2, 4, 6, 8, 10, 12)],
    "trials": [(n, Size(trials=n)) for n in (8, 32, 128, 512, 2048, 4096)],
    "instance types": [(n, Size(types=n)) for n in (1, 4, 12, 24, 48, 90)],
    "max_instances": [(n, Size(max_instances=n)) for n in (4, 16, 64, 128, 256)],
}


def measured(repeats: int) -> Iterator[tuple[str, float, int, str, float, float]]:
    """Yield what grows, how far, offers, which plan, and its seconds (clock, processor)."""
    for what, sizes in SIZES.items():
        for at, size in sizes:
            request = size.request()
            offers = len(request.rentables)
            hurried = replace(request, objective="time")
            plan, *seconds = _timed(hurried, repeats)
            yield what, at, offers, "fastest", seconds[0], seconds[1]
            within = replace(request, limits=Limits(plan.estimate.seconds * SLACK))
            _, *seconds = _timed(within, repeats)
            yield what, at, offers, f"cheapest within {SLACK:g}x", seconds[0], seconds[1]


def _timed(request: PlanRequest, repeats: int) -> tuple[Plan, float, float]:
    walls: list[float] = []
    cpus: list[float] = []
    while len(walls) < repeats:
        wall, cpu = time.perf_counter(), time.process_time()
        plan = ExactPlanner().plan(request)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        if cpus[0] > _QUICK:
            break
    return plan, median(walls), median(cpus)
