"""RubberBand's planner, as far as it is published: greedy descent from a static plan."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import slots
from cloudtune.model.plans import Group, Plan, Stage
from cloudtune.model.trial import GPU_ROUNDING
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.selection import (
    choose_best,
    improve_static,
    measures,
    start_limits,
    with_gap,
)
from cloudtune.planners.static import StaticPlanner


@dataclass(frozen=True)
class GreedyPlanner:
    """Lowers one stage's GPUs at a time, where a lost second saves the most dollars.

    Source: reconstructed from what is published of RubberBand (Misra et al., EuroSys 2021): the
    descent from the best static allocation by "fair" steps, with GPUs dividing trials or the other
    way round. `from_every` starts from every static plan that meets the limits instead.
    """

    from_every: bool = False
    name: str = "greedy"

    def plan(self, request: PlanRequest) -> Plan:
        """Return the end of the descent, which costs no more than the best static plan.

        Raises:
            InfeasibleError: it is beyond the limits; it has the fastest and the cheapest plan that
                static plans lead to.
        """
        statics = list(StaticPlanner().every(request))
        start = start_limits(request)
        best = improve_static(request, statics, lambda plan: self._descend(start, plan))
        if self.from_every:
            others = [self._descend(start, p) for p in statics if start.allowance.admit(p.estimate)]
            best = choose_best(request, [best, *others])
        return with_gap(request, best)

    def _descend(self, request: PlanRequest, plan: Plan) -> Plan:
        plan = price(request, plan.choices, self.name)
        while True:
            steps = [step for step in self._lower(request, plan) if _better(request, plan, step)]
            if not steps:
                return plan
            plan = max(steps, key=lambda step: _rate(request, plan, step))

    def _lower(self, request: PlanRequest, plan: Plan) -> Iterator[Plan]:
        """Yield the plans with one stage at its next lower fair allocation."""
        for number, stage in enumerate(plan.stages):
            lower = _next_lower(request, stage.stage, stage.groups[0])
            if lower is not None:
                choices = list(plan.choices)
                choices[number] = (lower,)
                yield price(request, choices, self.name)


def _better(request: PlanRequest, plan: Plan, step: Plan) -> bool:
    mine = measures(plan, request.objective)
    theirs = measures(step, request.objective)
    return request.allowance.admit(step.estimate) and theirs[0] < mine[0] * (1 - 1e-12)


def _rate(request: PlanRequest, plan: Plan, step: Plan) -> tuple[float, float]:
    """Return the saving of a step per unit given up; steps that give up nothing rank first."""
    mine = measures(plan, request.objective)
    theirs = measures(step, request.objective)
    saved = mine[0] - theirs[0]
    lost = theirs[1] - mine[1]
    return (math.inf, saved) if lost <= 0 else (saved / lost, saved)


def _next_lower(request: PlanRequest, stage: Stage, group: Group) -> Group | None:
    """Return the next lower fair allocation by GPUs; None at the bottom.

    Among allocations with the same GPUs, that is the one that trains the stage fastest.
    """
    have = group.instances * group.offer.gpus
    epoch = request.rentable(group.offer).epoch_seconds
    fewer = [
        (lower.instances * lower.offer.gpus, -lower.waves * epoch(lower.width), lower)
        for lower in _fair(request, stage, group.offer)
        if lower.instances * lower.offer.gpus < have
    ]
    return max(fewer, key=lambda rated: rated[:2])[2] if fewer else None


def _fair(request: PlanRequest, stage: Stage, offer: Offer) -> Iterator[Group]:
    """Yield the allocations with full waves: one wave of any width, or several whole waves."""
    widths = request.rentable(offer).profile.widths
    for width in widths:
        yield from _groups(offer, stage, width, stage.trials)
    for at_once in range(1, stage.trials):
        if stage.trials % at_once == 0 and min(1.0, widths[-1]) in widths:
            yield from _groups(offer, stage, min(1.0, widths[-1]), at_once)


def _groups(offer: Offer, stage: Stage, width: float, at_once: int) -> Iterator[Group]:
    whole = max(1, math.ceil(width / offer.gpus - GPU_ROUNDING))
    room = slots(width, offer.gpus, whole)
    if room:
        instances = whole * math.ceil(at_once / room)
        waves = math.ceil(stage.trials / slots(width, offer.gpus, instances))
        yield Group(offer, instances, width, stage.trials, waves)
