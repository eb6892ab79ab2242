"""Policies for plans by hand, and of any parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudtune.model.plans import Charges, Limits, Plan, Rentable, Stage
from cloudtune.model.trial import Trial, TrialId, rank_key
from cloudtune.planners.base import Planner
from cloudtune.planners.reserve import Reserve
from cloudtune.policy.base import Brakes, Components, Metric, TrialRules
from cloudtune.policy.run import RunPolicy
from cloudtune.policy.schedule.executor import (
    HalvingSchedule,
    PlannedFleet,
    PlannedStages,
    PlannedWidths,
)
from cloudtune.policy.schedule.itinerary import Itinerary
from cloudtune.policy.schedule.replanner import Replanner
from cloudtune.policy.state import RunState
from cloudtune.strategies.base import Allocator, FleetRule, StagedStrategy, Strategy
from tests.builders.machines import NO_LIMITS, profile
from tests.builders.trials import trials


@dataclass(frozen=True)
class Rungs:
    """A strategy by hand: the best go on, as many as the next stage of the plan has."""

    plan: Plan

    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage.stage for stage in self.plan.stages)

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        if stage + 1 == len(self.plan.stages):
            return ()
        ranked = sorted(results, key=lambda name: (rank_key("max", results[name]), name))
        return tuple(ranked[: self.plan.stages[stage + 1].stage.trials])


def scripted(
    plan: Plan,
    limits: Limits = NO_LIMITS,
    brakes: Brakes | None = None,
    zones: Sequence[str] = (),
    rules: TrialRules | None = None,
) -> RunPolicy:
    """Return a policy for a plan by hand, whose metric is `score` (more is better).

    What is rented is there at once, as far as the policy knows beforehand.
    """
    brakes = brakes or Brakes(avoid=15.0)
    at_once = {"launch": 0.0, "boot": 0.0}
    widths = {g.width: 8.0 for stage in plan.stages for g in stage.groups}
    rentables = [
        Rentable(offer, profile(widths, name=offer.instance_type.name, **at_once), 99)
        for offer in plan.offers
    ]
    settings = {"limits": limits, "brakes": brakes, "zones": zones, "rules": rules}
    return by_plan(plan, Rungs(plan), rentables, **settings)  # type: ignore[arg-type]


def by_plan(
    plan: Plan,
    strategy: StagedStrategy,
    rentables: Sequence[Rentable],
    *,
    limits: Limits = NO_LIMITS,
    brakes: Brakes | None = None,
    zones: Sequence[str] = (),
    given: Sequence[Trial] = (),
    planner: Planner | None = None,
    rules: TrialRules | None = None,
    heartbeat: bool = True,
) -> RunPolicy:
    """Return a policy that carries a plan out; with a planner it replans the rest in need."""
    brakes = brakes or Brakes()
    itinerary = Itinerary(plan, given or trials(plan.stages[0].stage.trials))
    reserve = Reserve(brakes.tick + brakes.drain)
    replanner = None if planner is None else Replanner(itinerary, planner, reserve)
    return policy_with(
        PlannedStages("sha", HalvingSchedule(strategy), itinerary, replanner=replanner),
        PlannedWidths(itinerary),
        PlannedFleet(itinerary),
        itinerary=itinerary,
        rentables=rentables,
        max_instances=plan.max_instances,
        limits=limits,
        brakes=brakes,
        charges=plan.charges,
        vcpu_quotas=plan.vcpu_quotas,
        zones=zones,
        rules=rules,
        heartbeat=heartbeat,
    )


def policy_with(
    strategy: Strategy,
    allocator: Allocator,
    fleet_rule: FleetRule,
    *,
    rentables: Sequence[Rentable],
    max_instances: int,
    limits: Limits = NO_LIMITS,
    metric: Metric | None = None,
    brakes: Brakes | None = None,
    charges: Charges | None = None,
    vcpu_quotas: Mapping[str, int] | None = None,
    zones: Sequence[str] = (),
    itinerary: Itinerary | None = None,
    **options: Any,
) -> RunPolicy:
    """Return a policy of these parts; its metric is `score` (more is better) if none is given."""
    state = RunState(
        rentables=rentables,
        max_instances=max_instances,
        metric=metric or Metric("score", "max"),
        limits=limits,
        brakes=brakes,
        charges=charges,
        vcpu_quotas=vcpu_quotas,
        zones=zones,
    )
    made = Components(strategy, allocator, fleet_rule, itinerary)
    return RunPolicy(state, made, **options)


def itinerary_of(policy: RunPolicy) -> Itinerary:
    assert policy.itinerary is not None
    return policy.itinerary


def plan_of(policy: RunPolicy) -> Plan:
    return itinerary_of(policy).plan
