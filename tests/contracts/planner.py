"""What every planner promises; inherit it and name the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from cloudtune.errors import InfeasibleError
from cloudtune.plan import Limits
from tests.builders import LINEAR, NODE_BOUNDARY, SUBLINEAR, Setting, offer, profile

if TYPE_CHECKING:
    from cloudtune.plan import Plan, Planner

SETTINGS = {
    "linear": Setting(12, 2, 18, 3, profile=profile(LINEAR), max_instances=3),
    "sublinear": Setting(12, 2, 18, 3, profile=profile(SUBLINEAR), max_instances=3),
    "node boundary": Setting(9, 3, 27, 3, profile=profile(NODE_BOUNDARY), max_instances=4),
    "packed": Setting(
        16, 1, 8, 2, offer=offer(1), profile=profile({0.25: 20.0, 0.5: 11.0, 1.0: 8.0})
    ),
    "one trial": Setting(1, 5, 5, 2, profile=profile(SUBLINEAR)),
    "slow boot": Setting(8, 1, 8, 2, profile=profile(SUBLINEAR, boot=300.0), max_instances=4),
    "slow release": Setting(8, 4, 16, 2, profile=profile(LINEAR, release=90.0), max_instances=3),
}


def extremes(planner: Planner, setting: Setting) -> tuple[Plan, Plan]:
    """Return the fastest and the cheapest plan of a planner."""
    with pytest.raises(InfeasibleError) as caught:
        setting.plan(planner, Limits(deadline=0.0, budget=0.0))
    assert caught.value.fastest is not None
    assert caught.value.cheapest is not None
    return caught.value.fastest, caught.value.cheapest


class PlannerContract:
    """The suite of a planner."""

    planner: ClassVar[Planner]

    @pytest.fixture(params=list(SETTINGS.values()), ids=list(SETTINGS))
    def setting(self, request: pytest.FixtureRequest) -> Setting:
        setting: Setting = request.param
        return setting

    def deadlines(self, setting: Setting) -> list[float]:
        """Return deadlines from the tightest that can be met to one that is no limit."""
        fastest, cheapest = extremes(self.planner, setting)
        begin, end = fastest.estimate.seconds, cheapest.estimate.seconds
        return [begin, *(begin + (end - begin) * n / 7 for n in range(1, 7)), end, 2 * end]

    def test_a_plan_stays_within_the_limits(self, setting: Setting) -> None:
        _, cheapest = extremes(self.planner, setting)
        for deadline in self.deadlines(setting):
            plan = setting.plan(self.planner, Limits(deadline=deadline))
            assert plan.estimate.seconds <= deadline
            assert plan.estimate.dollars >= cheapest.estimate.dollars
            tight = Limits(deadline, plan.estimate.dollars)
            assert setting.plan(self.planner, tight) == plan
            with pytest.raises(InfeasibleError):
                setting.plan(self.planner, Limits(deadline, plan.estimate.dollars - 0.0001))

    def test_an_impossible_job_is_refused_with_the_nearest_plans_there_are(
        self, setting: Setting
    ) -> None:
        fastest, cheapest = extremes(self.planner, setting)
        too_soon = Limits(deadline=fastest.estimate.seconds - 0.001)
        with pytest.raises(InfeasibleError, match=r"no plan finishes within .*--deadline") as late:
            setting.plan(self.planner, too_soon)
        assert (late.value.fastest, late.value.cheapest) == (fastest, cheapest)
        too_dear = Limits(budget=cheapest.estimate.dollars - 0.0001)
        with pytest.raises(InfeasibleError, match=r"no plan finishes for \$.*--budget") as dear:
            setting.plan(self.planner, too_dear)
        assert (dear.value.fastest, dear.value.cheapest) == (fastest, cheapest)

    def test_without_limits_it_is_the_cheapest(self, setting: Setting) -> None:
        assert setting.plan(self.planner) == extremes(self.planner, setting)[1]

    def test_more_time_never_costs_more(self, setting: Setting) -> None:
        plans = [setting.plan(self.planner, Limits(d)) for d in self.deadlines(setting)]
        costs = [plan.estimate.dollars for plan in plans]
        assert costs == sorted(costs, reverse=True)

    def test_more_money_changes_nothing_once_there_is_enough(self, setting: Setting) -> None:
        plan = setting.plan(self.planner)
        for budget in (plan.estimate.dollars, 2 * plan.estimate.dollars):
            assert setting.plan(self.planner, Limits(budget=budget)) == plan

    def test_equal_questions_get_equal_answers(self, setting: Setting) -> None:
        assert setting.plan(self.planner) == setting.plan(self.planner)

    def test_never_more_instances_than_allowed_and_measured_widths_only(
        self, setting: Setting
    ) -> None:
        for deadline in self.deadlines(setting):
            plan = setting.plan(self.planner, Limits(deadline))
            assert 1 <= plan.most_instances <= setting.max_instances
            assert {stage.width for stage in plan.stages} <= set(setting.profile.widths)

    def test_the_stages_add_up_to_the_estimate(self, setting: Setting) -> None:
        for plan in extremes(self.planner, setting):
            assert tuple(stage.stage for stage in plan.stages) == setting.strategy.stages()
            now = 0.0
            for stage in plan.stages:
                assert stage.begin == pytest.approx(now)
                assert 0.0 <= stage.overhead <= stage.seconds
                now += stage.seconds
            assert plan.estimate.seconds == pytest.approx(now + setting.profile.release.mean)
            bill = sum(stage.dollars for stage in plan.stages)
            assert plan.estimate.dollars == pytest.approx(bill)

    def test_a_width_that_fits_nowhere_is_refused(self) -> None:
        setting = Setting(profile=profile({16.0: 1.0}), max_instances=3)
        with pytest.raises(InfeasibleError, match=r"raise cloud.max_instances") as caught:
            setting.plan(self.planner)
        assert (caught.value.fastest, caught.value.cheapest) == (None, None)
