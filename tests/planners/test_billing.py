"""Each way to bill, in every planner: by second, minute, hour and function."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.catalog import BillingUnit
from cloudtune.model.plans import Plan
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.bounds import fluid
from cloudtune.planners.dp.search import make_search
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.ilp.planner import IlpPlanner
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.static import StaticPlanner
from tests.planners.brute_force import Priced
from tests.planners.ilp.test_planner import few, requests

UNITS: tuple[BillingUnit, ...] = ("second", "minute", "hour", "function")


def bill_by(request: PlanRequest, unit: BillingUnit) -> PlanRequest:
    """Return the same question with every offer billed by a unit."""
    mine = {rentable.offer: rentable.offer.with_billing(unit) for rentable in request.rentables}
    return replace(
        request,
        rentables=tuple(
            replace(rentable, offer=mine[rentable.offer]) for rentable in request.rentables
        ),
        fleet=tuple(replace(live, offer=mine[live.offer]) for live in request.fleet),
    )


def of(plans: list[Priced], objective: str) -> float:
    return min(plan.dollars if objective == "cost" else plan.seconds for plan in plans)


def measure(plan: Plan, objective: str) -> float:
    return plan.estimate.dollars if objective == "cost" else plan.estimate.seconds


@pytest.mark.parametrize("unit", UNITS)
@given(request=requests(stages=2).map(partial(replace, objective="cost")), data=st.data())
@settings(max_examples=15, deadline=None)
def test_all_say_the_same(unit: BillingUnit, request: PlanRequest, data: st.DataObject) -> None:
    request = bill_by(request, unit)
    plans = few(request, most=1500)
    best = of(plans, request.objective)
    exact, program = ExactPlanner().plan(request), IlpPlanner().plan(request)
    mine = measure(exact, request.objective)
    assert measure(program, request.objective) == pytest.approx(best, rel=1e-7, abs=1e-9)
    if exact.status == "optimal":
        a_grain = sum(
            2
            * rentable.offer.usd_per_second
            * rentable.offer.granularity_seconds
            * request.max_instances
            for rentable in request.rentables
        )
        assert best - 1e-9 <= mine <= best * (1 + 1e-7) + 1e-9 + a_grain * (unit == "second")
    else:
        assert best * (1 - 1e-9) - 1e-9 <= mine
        assert mine <= best * (1 + (exact.gap or 0.0)) + 1e-9
    if unit == "function":
        result = make_search(request).best(request.allowance, "cost")
        assert result is not None
        assert result.dollars == pytest.approx(best, rel=1e-7, abs=1e-9)
    bound = fluid(request)
    one = data.draw(st.sampled_from(plans))
    assert bound.dollars_within(one.seconds) <= one.dollars * (1 + 1e-9) + 1e-9
    booked = price(request, one.choices, "")
    assert booked.estimate.dollars == pytest.approx(one.dollars, rel=1e-9, abs=1e-9)
    for heuristic in (StaticPlanner(), NaivePlanner(), GreedyPlanner()):
        assert measure(heuristic.plan(request), request.objective) >= best * (1 - 1e-9) - 1e-9


@given(request=requests(stages=2, mix=2).map(partial(replace, objective="cost")))
@settings(max_examples=12, deadline=None)
def test_two_offers_at_once_are_billed_by_the_function(request: PlanRequest) -> None:
    units = ("function", "second")
    mine = {
        item.offer: item.offer.with_billing(unit)  # type: ignore[arg-type]
        for item, unit in zip(request.rentables, units, strict=False)
    }
    request = replace(
        request,
        rentables=tuple(
            replace(item, offer=replace(mine[item.offer], granularity_seconds=0.0))
            for item in request.rentables
        ),
        fleet=(),
    )
    plans = few(request, 2, most=1500)
    best = of(plans, request.objective)
    for planner in (ExactPlanner(), IlpPlanner()):
        result = measure(planner.plan(request), request.objective)
        assert result == pytest.approx(best, rel=1e-7, abs=1e-9)
