import pytest

from cloudtune.model.plans import Allowance, Limits, Rentable, Stage
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.static import StaticPlanner
from tests.builders import NODE_BOUNDARY, Setting, offer, profile, shapes
from tests.contracts.planner import PlannerContract
from tests.planners.brute_force import every_plan


class TestStaticPlanner(PlannerContract):
    planner = StaticPlanner()

    def test_the_fleet_never_changes(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            plan = setting.plan(self.planner, Limits(deadline))
            assert len({stage.instances for stage in plan.stages}) == 1

    def test_static_is_best_of_constant_fleets(self) -> None:
        setting = Setting(6, 2, 8, 2, profile=profile(NODE_BOUNDARY), max_instances=3)
        fixed = [
            plan
            for plan in every_plan(setting.request())
            if len({group.instances for (group,) in plan.choices}) == 1
        ]
        for deadline in self.deadlines(setting):
            best = min(p.dollars for p in fixed if p.seconds <= deadline + 1e-9)
            plan = setting.plan(self.planner, Limits(deadline + 1e-9))
            assert plan.estimate.dollars == pytest.approx(best)

    def test_launching_instances_are_free(self) -> None:
        late = Rentable(offer(1, name="a"), profile({1.0: 100.0}, name="a", launch=100.0), 1)
        slow = Rentable(offer(1, name="b"), profile({1.0: 105.0}, name="b", launch=0.0), 1)
        request = PlanRequest((Stage(1, 0, 4),), (slow, late), Allowance(), 1)
        assert self.planner.plan(request).offers == (late.offer,)

    def test_widths_may_change_where_the_fleet_does_not(self) -> None:
        setting = Setting(8, 4, 16, 4, profile=profile({1.0: 30.0, 2.0: 18.0, 4.0: 11.0}))
        assert len({width for _, width in shapes(setting.plan(self.planner))}) > 1
