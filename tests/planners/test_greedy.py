from __future__ import annotations

import pytest

from cloudtune.plan import Limits
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import NODE_BOUNDARY, Setting, profile, shapes
from tests.contracts.planner import HeuristicContract


class TestGreedyPlanner(HeuristicContract):
    planner = GreedyPlanner()

    def test_it_is_never_dearer_than_the_best_static_plan(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            static = setting.plan(StaticPlanner(), Limits(deadline))
            greedy = setting.plan(self.planner, Limits(deadline))
            assert greedy.estimate.dollars <= static.estimate.dollars + 1e-12


class TestGreedyPlannerFromEvery(HeuristicContract):
    planner = GreedyPlanner(from_every=True)

    def test_more_starts_never_make_it_dearer(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            one = setting.plan(GreedyPlanner(), Limits(deadline))
            every = setting.plan(self.planner, Limits(deadline))
            assert every.estimate.dollars <= one.estimate.dollars + 1e-12


JOB = Setting(8, 2, 48, 3, profile=profile(NODE_BOUNDARY), max_instances=4)
LIMITS = Limits(160.5)


def test_it_sticks_where_the_curve_is_not_monotone() -> None:
    """From four instances of 4 GPUs one step down is a trial on 8, slower than on 4: too late."""
    static, greedy = JOB.plan(StaticPlanner(), LIMITS), JOB.plan(GreedyPlanner(), LIMITS)
    assert shapes(greedy) == shapes(static) == [(4, 2.0), (4, 4.0), (4, 4.0), (4, 4.0)]
    exact = JOB.plan(ExactPlanner(), LIMITS)
    assert shapes(exact)[-1] == (1, 4.0)
    assert greedy.estimate.dollars / exact.estimate.dollars == pytest.approx(1.86, abs=0.01)


def test_it_descends_where_the_curve_is_monotone() -> None:
    rising = {width: seconds for width, seconds in NODE_BOUNDARY.items() if width <= 4}
    job = JOB.but(profile=profile(rising))
    static, greedy = job.plan(StaticPlanner(), LIMITS), job.plan(GreedyPlanner(), LIMITS)
    sizes = [size for size, _ in shapes(greedy)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert greedy.estimate.dollars < 0.7 * static.estimate.dollars
    assert greedy.estimate.dollars <= 1.02 * job.plan(ExactPlanner(), LIMITS).estimate.dollars
