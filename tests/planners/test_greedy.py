import math
from dataclasses import replace

import pytest

from cloudtune.model.plans import Limits, Stage
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import NODE_BOUNDARY, SUBLINEAR, Setting, offer, profile, shapes
from tests.contracts.planner import HeuristicContract


class TestGreedyPlanner(HeuristicContract):
    planner = GreedyPlanner()

    def test_it_is_never_dearer_than_static_plans_or_fewer_starts(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            static = setting.plan(StaticPlanner(), Limits(deadline))
            greedy = setting.plan(self.planner, Limits(deadline))
            assert greedy.estimate.dollars <= static.estimate.dollars + 1e-12
            starts = setting.plan(GreedyPlanner(from_every=True), Limits(deadline))
            assert starts.estimate.dollars <= greedy.estimate.dollars + 1e-12


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


@pytest.mark.parametrize("dear", [1, 1000])
def test_it_first_lowers_what_saves_most_per_second(dear: int) -> None:
    """Not what saves most: here that takes all the time that there is to lose.

    Five epochs of two trials, then three of the better one, on instances of one GPU that cost a
    cent a second and come and go at once. Four of them all along take 5 x 5 + 3 x 4 = 37 s; fewer
    take 40 + 15 and more, so the descent begins there, with 52 - 37 = 15 s to lose. It can lower
    the first stage to two instances: 5 x 8 s x 2 for 5 x 5 s x 4 saves 20 cents and loses 15 s.
    Or the second: 3 x 5 s x 2 for 3 x 4 s x 4 saves 18 and loses 3, and after that, 3 x 8 s for
    3 x 5 s x 2, 6 more for 9 s.
    """
    at_once = profile(SUBLINEAR, launch=0.0, boot=0.0, start=0.0, resize=0.0, release=0.0)
    job = Setting(offer=offer(1, dear * 36.0, 0.0), profile=at_once, max_instances=4)
    request = replace(job.request(Limits(52.0)), work=(Stage(2, 0, 5), Stage(1, 5, 8)))
    assert shapes(StaticPlanner().plan(request)) == [(4, 2.0), (4, 4.0)]
    plan = GreedyPlanner().plan(request)
    assert shapes(plan) == [(4, 2.0), (1, 1.0)]
    assert plan.estimate.seconds == pytest.approx(25 + 24)
    assert plan.estimate.dollars == pytest.approx(dear * (1.00 + 0.24))


def test_each_step_leaves_no_wave_half_empty() -> None:
    """GPUs divide trials, or trials have several each: what RubberBand calls fair."""
    timed = profile({1.0: 10.0, 2.0: 5.74, 4.0: 3.3, 8.0: 1.25}, boot=0.0, release=30.0)
    job = Setting(9, 1, 27, 3, profile=timed, offer=offer(1), max_instances=8)
    plan = job.plan(GreedyPlanner(), Limits(144.3))
    static = job.plan(StaticPlanner(), Limits(144.3))
    lowered = 0
    for stage, before in zip(plan.stages, static.stages, strict=True):
        (group,) = stage.groups
        if group != before.groups[0]:
            lowered += 1
            assert round(group.trials * group.width) % group.instances == 0
    assert lowered


def test_each_group_takes_as_many_waves_as_its_trials_need() -> None:
    """With time to spare it lowers the fleet until trials train one wave after the other."""
    job = Setting(12, 1, 8, 2, profile=profile({1.0: 10.0}), offer=offer(2), max_instances=6)
    plan = job.plan(GreedyPlanner(), Limits(2000.0))
    groups = [group for stage in plan.stages for group in stage.groups]
    assert max(group.waves for group in groups) > 1
    for group in groups:
        assert group.waves == math.ceil(group.trials / (2 * group.instances))
    assert plan.estimate.dollars < job.plan(GreedyPlanner(), Limits(120.0)).estimate.dollars
