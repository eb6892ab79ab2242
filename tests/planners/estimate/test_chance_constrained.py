"""Plans that keep the limits with a probability: none that there is goes unfound."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.plans import Allowance, Group, Rentable, Stage
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.estimate.chance_constrained import every_choice, neighbours, quantile_plan
from cloudtune.planners.estimate.outlook import fitting, outlook
from cloudtune.planners.estimate.rollout import Draws, sample
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import offer, profile
from tests.builders.values import present
from tests.planners.brute_force import every_plan

SAMPLES = 200


def share(draws: Draws, allowance: Allowance) -> float:
    in_time = draws.seconds <= (allowance.seconds or math.inf)
    return float(np.mean(in_time & (draws.dollars <= (allowance.dollars or math.inf))))


def one_rentable(
    name: str, gpus: int, usd: float, spread: float, *, spot: bool = False
) -> Rentable:
    epoch = {1.0: 40.0, 2.0: 24.0} if gpus > 1 else {1.0: 44.0}
    made = profile(epoch, name=name)
    boot = replace(made.boot, sd=spread * made.boot.mean)
    on = replace(offer(gpus, usd, name=name), interruptions_per_hour=2.0 if spot else 0.0)
    return Rentable(on, replace(made, boot=boot, error=0.3 * spread), 3)


@st.composite
def small_jobs(draw: st.DrawFn) -> PlanRequest:
    spread = draw(st.sampled_from([0.1, 0.6]))
    both = [
        one_rentable("g.1", 1, 1.0, spread),
        one_rentable("g.2", 2, 2.1, spread, spot=draw(st.booleans())),
    ]
    rentables = both if draw(st.booleans()) else [draw(st.sampled_from(both))]
    work = (Stage(draw(st.integers(2, 3)), 0, 1), Stage(1, 1, draw(st.integers(2, 4))))
    return PlanRequest(work, tuple(rentables), Allowance(), 3)


@given(small_jobs(), st.sampled_from([0.6, 0.8, 0.95]), st.integers(0, 2**16))
@settings(max_examples=12, deadline=None)
def test_r3_a_sure_plan_is_not_infeasible(job: PlanRequest, confidence: float, pick: int) -> None:
    plans = [price(job, item.choices, "all") for item in every_plan(job)]
    draws = [sample(job, plan, samples=SAMPLES, seed=0) for plan in plans]
    some = draws[pick % len(draws)]
    allowance = Allowance(
        float(np.quantile(some.seconds, confidence)) * 1.0001,
        float(np.quantile(some.dollars, (1 + confidence) / 2)) * 1.0001,
    )
    sure = [
        plan
        for plan, actual in zip(plans, draws, strict=True)
        if share(actual, allowance) >= confidence
    ]
    asked = replace(job, allowance=allowance)
    if not sure:
        return
    best, result = quantile_plan(ExactPlanner(), asked, confidence, samples=SAMPLES, seed=0)
    assert present(result.within) >= confidence
    least = min(plan.estimate.dollars for plan in sure)
    assert best.estimate.dollars <= least * (1 + 1e-9), "the cheapest of them"


def test_an_instance_to_spare_is_considered() -> None:
    """No planner by means would rent it: it costs, and on average it brings nothing."""
    slow = one_rentable("g.1", 1, 1.0, 1.0)
    job = PlanRequest((Stage(2, 0, 4),), (replace(slow, most=6),), Allowance(), 6)
    (two,) = [p for p in every_plan(job) if p.choices[0][0].instances == 2]
    (four,) = [p for p in every_plan(job) if p.choices[0][0].instances == 4]
    without, spare = (
        sample(job, price(job, p.choices, "by hand"), samples=1000, seed=0) for p in (two, four)
    )
    deadline = float(np.quantile(spare.seconds, 0.95)) + 0.1
    assert np.mean(without.seconds <= deadline) < 0.95
    plan, result = quantile_plan(ExactPlanner(), replace(job, allowance=Allowance(deadline)), 0.95)
    assert plan.stages[0].instances > 2
    assert present(result.within) >= 0.95


def wide_job(allowance: Allowance) -> PlanRequest:
    """Return a job with far more plans than are judged one by one."""
    rentables = [one_rentable("g.1", 1, 1.0, 0.3), one_rentable("g.2", 2, 2.1, 0.3)]
    work = (Stage(4, 0, 1), Stage(2, 1, 3), Stage(1, 3, 7))
    return PlanRequest(
        work, tuple(replace(rentable, most=6) for rentable in rentables), allowance, 6
    )


@pytest.mark.parametrize("reacts", [False, True])
def test_large_jobs_are_judged_together(reacts: bool) -> None:
    free = wide_job(Allowance())
    choices = present(every_choice(free, 10_000))
    plans = [price(free, choice, "every") for choice in choices]
    for plan in sorted(plans, key=lambda plan: plan.estimate.seconds)[:40:13]:
        draws = sample(free, plan, samples=1000, seed=0)
        allowance = Allowance(
            float(np.quantile(draws.seconds, 0.9)), float(np.quantile(draws.dollars, 0.95))
        )
        confidence = share(draws, allowance)
        if reacts:  # such a run drops trials when less than this is left
            left = fitting(Allowance(1.0, 1.0)).seconds or 1.0
            allowance = Allowance(allowance.seconds / left, allowance.dollars / left)  # type: ignore[operator]
        asked = wide_job(allowance)
        best, result = quantile_plan(ExactPlanner(), asked, confidence, reacts=reacts)
        assert result.within is not None
        assert result.within >= confidence
        assert result.within == outlook(asked, best, reacts=reacts).within, "the forecast's own"


def test_the_surest_static_cluster_is_static() -> None:
    plan, _ = quantile_plan(StaticPlanner(), wide_job(Allowance(4000.0)), 0.9)
    fleets = {tuple((g.offer, g.instances) for g in stage.groups) for stage in plan.stages}
    assert len(fleets) == 1


def test_nothing_is_sure_of_what_is_impossible() -> None:
    with pytest.raises(InfeasibleError, match="no plan finishes"):
        quantile_plan(ExactPlanner(), wide_job(Allowance(60.0)), 0.9)


def test_another_offer_with_as_many_gpus_is_tried() -> None:
    both = (one_rentable("g.1", 1, 1.0, 0.1), one_rentable("g.2", 2, 2.1, 0.1))
    job = PlanRequest((Stage(2, 0, 1),), both, Allowance(), 3)
    own = ((Group(both[0].offer, 2, 1.0, 2, 1),),)
    tried = {choices[0][0] for choices in neighbours(job, own)}
    others = {(it.instances, it.width) for it in tried if it.offer == both[1].offer}
    assert others == {(1, 1.0), (1, 2.0)}, "two GPUs, and no more"
    assert {it.instances for it in tried if it.offer == both[0].offer} == {1, 2, 3}
