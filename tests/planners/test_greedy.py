from cloudtune.model.plans import Limits
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import NODE_BOUNDARY, Setting, offer, profile, shapes
from tests.contracts.planner import HeuristicContract


class TestGreedyPlanner(HeuristicContract):
    planner = GreedyPlanner()

    def test_greedy_is_never_dearer_than_static(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            static = setting.plan(StaticPlanner(), Limits(deadline))
            greedy = setting.plan(self.planner, Limits(deadline))
            assert greedy.estimate.dollars <= static.estimate.dollars + 1e-12
            starts = setting.plan(GreedyPlanner(from_every=True), Limits(deadline))
            assert starts.estimate.dollars <= greedy.estimate.dollars + 1e-12


JOB = Setting(8, 2, 48, 3, profile=profile(NODE_BOUNDARY), max_instances=4)
LIMITS = Limits(160.5)


def test_it_descends_where_the_curve_is_monotone() -> None:
    rising = {width: seconds for width, seconds in NODE_BOUNDARY.items() if width <= 4}
    job = JOB.but(profile=profile(rising))
    static, greedy = job.plan(StaticPlanner(), LIMITS), job.plan(GreedyPlanner(), LIMITS)
    sizes = [size for size, _ in shapes(greedy)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert greedy.estimate.dollars < 0.7 * static.estimate.dollars
    assert greedy.estimate.dollars <= 1.02 * job.plan(ExactPlanner(), LIMITS).estimate.dollars


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
