from cloudtune.model.plans import Limits
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import NODE_BOUNDARY, Setting, profile, shapes
from tests.contracts.planner import HeuristicContract


class TestNaivePlanner(HeuristicContract):
    planner = NaivePlanner()

    def test_the_widths_are_those_of_the_static_plan(self, setting: Setting) -> None:
        static, naive = setting.plan(StaticPlanner()), setting.plan(self.planner)
        assert [w for _, w in shapes(naive)] == [w for _, w in shapes(static)]


def test_what_is_idle_goes() -> None:
    job = Setting(8, 2, 48, 3, profile=profile(NODE_BOUNDARY), max_instances=4)
    static, naive = (job.plan(p, Limits(160.5)) for p in (StaticPlanner(), NaivePlanner()))
    assert shapes(static) == [(4, 2.0), (4, 4.0), (4, 4.0), (4, 4.0)]
    assert shapes(naive) == [(4, 2.0), (2, 4.0), (1, 4.0), (1, 4.0)]
    assert naive.estimate.dollars < static.estimate.dollars


def test_a_static_plan_keeps_idle_instances_it_needs() -> None:
    """Releasing moves survivors, which takes a resize that the deadline has no room for."""
    job = Setting(8, 4, 8, 2, profile=profile({1.0: 8.0}, resize=50.0), max_instances=2)
    static = job.plan(StaticPlanner(), Limits(100.0))
    assert shapes(static) == [(2, 1.0), (2, 1.0)]
    assert shapes(job.plan(NaivePlanner(), Limits(100.0))) == shapes(static)
    assert shapes(job.plan(NaivePlanner(), Limits(200.0))) != shapes(static)
