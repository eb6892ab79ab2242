"""Spot with a net below it: there is always time and money left to finish on demand.

As long as that still fits after one more loss, spot may be used, and a pool that is away may be
waited for: while nothing is rented, waiting costs nothing but time. At the last moment the rest is
done on demand. ("Can't Be Late", Wu et al., NSDI 2024, has the rule for one job; here it is a whole
tuning run, whose rest is planned at each look.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtune.planners.explore import plan_within
from cloudtune.planners.replanning import LATE
from cloudtune.planners.reserve import NOISE

if TYPE_CHECKING:
    from cloudtune.plan import Plan, Rentable, StagePlan
    from cloudtune.planners.base import PlanRequest
    from cloudtune.planners.replanning import Rest


class SafetyNet:
    """What a look at the rest of a run finds about finishing on demand."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def due(self) -> Plan | None:
        """Return the plan on demand that is all there is from now on: later would be too late.

        None while there is time for one more loss on spot, where there is no spot to be had, and
        where finishing on demand doesn't fit any more, or never did.
        """
        request = self._on_demand() if self._applies else None
        if request is None or self._within(request, self._loss) is not None:
            return None
        return plan_within(self._rest.planner, request)

    @property
    def on_spot(self) -> bool:
        """Whether anything of the present plan's rest is on spot."""
        groups = (g for stage in self._stages for g in stage.groups)
        return any(group.offer.market == "spot" for group in groups)

    def may_wait(self, found: Plan) -> bool:
        """Whether to wait for a pool that is away, instead of following a plan without it.

        Where nothing is rented, so that waiting costs no money, the other plan is dearer, and
        finishing on demand will still fit when the pool has refused once more, or has lost what it
        gave.
        """
        view, rest = self._rest.view, self._rest
        if not self._applies or view.fleet.wanted():
            return False
        missing = rest.it.missing(view)
        if not missing or any(o.market != "spot" or not view.avoided(o) for o in missing):
            return False
        if found.estimate.dollars <= (1 + NOISE) * rest.present().estimate.dollars:
            return False
        request = self._on_demand()
        pause = max(view.backoffs[offer].relaunch_at - view.now for offer in missing)
        return request is not None and self._within(request, pause + self._loss) is not None

    # ---- what it is made of -----------------------------------------------------------------

    @property
    def _applies(self) -> bool:
        """Whether there is spot, time to be kept, and none that is to be saved."""
        view, plan = self._rest.view, self._rest.it.first_plan
        if view.limits.deadline is None or plan.objective != "cost" or plan.wished is not None:
            return False
        return any(each.offer.market == "spot" for each in view.rentables)

    @property
    def _stages(self) -> tuple[StagePlan, ...]:
        it = self._rest.it
        return it.plan.stages[it.stage :]

    @property
    def _loss(self) -> float:
        """Seconds that an instance takes with it which is lost before its first epoch is done."""
        view, members = self._rest.view, self._rest.members
        known = {each.offer: each for each in view.rentables}
        spans = [0.0]
        for stage in self._stages:
            for group in stage.groups:
                real: Rentable = view.corrected(known[group.offer], members)
                profile = real.profile
                delays = profile.launch.mean + profile.boot.mean + profile.resize.mean
                spans.append(delays + profile.epoch_seconds(group.width))
        return LATE * max(spans)

    def _on_demand(self) -> PlanRequest | None:
        """Return the planning problem of the rest without spot; None where all there is is spot."""
        request = self._rest.request(
            self._rest.work(), self._rest.training, self._rest.view.avoided
        )
        rentables = tuple(r for r in request.rentables if r.offer.market != "spot")
        fleet = tuple(live for live in request.fleet if live.offer.market != "spot")
        return replace(request, rentables=rentables, fleet=fleet) if rentables else None

    def _within(self, request: PlanRequest, seconds: float) -> Plan | None:
        """Return a plan that begins so much later and keeps the limits; None: there is none."""
        limits = request.limits
        assert limits.deadline is not None
        left = max(0.0, limits.deadline - seconds)
        budget = limits.budget
        if budget is not None:
            budget = max(0.0, budget - seconds * request.charges.usd_per_second)
        return plan_within(
            self._rest.planner,
            replace(request, limits=replace(limits, deadline=left, budget=budget)),
        )
