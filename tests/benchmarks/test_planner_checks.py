from dataclasses import replace

import pytest

from benchmarks.planner_checks import looser, order, smooth
from benchmarks.planner_jobs import Curve, billed_by, kind_of
from cloudtune.model.plans import Limits
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import NODE_BOUNDARY, Setting, offer, profile

CURVE = Curve("t", "t4", 4, ((1.0, 1.0), (2.0, 1.9), (4.0, 3.6), (8.0, 2.1)))


@pytest.mark.parametrize(
    ("speed", "kind"),
    [
        (((1.0, 1.0), (2.0, 1.9), (4.0, 3.6)), "near-linear"),
        (((1.0, 1.0), (2.0, 1.5), (4.0, 2.0)), "sublinear"),
        (((1.0, 1.0), (2.0, 1.9), (4.0, 1.8)), "non-monotone"),
        (((1.0, 1.0),), "near-linear"),
    ],
)
def test_a_curve_is_classed_by_its_shape(speed: tuple[tuple[float, float], ...], kind: str) -> None:
    assert kind_of(speed) == kind


def test_a_curve_says_nothing_of_layouts_that_were_not_measured() -> None:
    widths = {gpus: [w for w, _ in CURVE.on(offer(gpus).instance_type)] for gpus in (1, 4, 8)}
    assert widths == {1: [1.0], 4: [1.0, 2.0, 4.0, 8.0], 8: [1.0, 2.0, 4.0]}


def job() -> PlanRequest:
    setting = Setting(trials=8, max_epochs=16, profile=profile(NODE_BOUNDARY), max_instances=4)
    return setting.request(Limits(deadline=110.0))


def test_a_planner_that_knows_more_must_not_be_worse() -> None:
    request = job()
    static, exact = StaticPlanner().plan(request), ExactPlanner().plan(request)
    names = ("exact", "greedy from every static", "greedy", "static")
    fine = dict(zip(names, (exact, static, static, static), strict=True))
    assert not list(order(request, fine))
    assert list(order(request, {**fine, "exact": static, "static": exact}))
    assert list(order(request, {**fine, "exact": None}))


def test_looser_limits_are_asked_for_from_impossible_to_ample() -> None:
    grid = looser(replace(job(), limits=Limits()), 5)
    assert (grid.asked, grid.faults) == (24, [])


def test_smooth_dollars_leave_the_rounding_of_bills_out() -> None:
    request = billed_by(job(), 60.0)
    plan = ExactPlanner().plan(request)
    instant = ExactPlanner().plan(billed_by(request, 0.0))
    assert smooth(request, plan) == pytest.approx(instant.estimate.dollars)
    assert plan.estimate.dollars > smooth(request, plan)
