"""What every planner promises; inherit it and name the planner."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest

from cloudtune.model.placement import slots
from cloudtune.model.plans import Allowance, Charges, Limits, Plan, Rentable
from cloudtune.planners.base import InfeasibleError, Planner
from cloudtune.planners.exact import ExactPlanner
from tests.builders import LINEAR, NODE_BOUNDARY, SUBLINEAR, Setting, offer, profile
from tests.builders.values import present

SMALL = Rentable(
    offer(1, 10.0, name="g.1x"), profile({0.5: 15.0, 1.0: 9.0}, boot=12.0, name="g.1x"), 3
)
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
    "two offers": Setting(
        9, 2, 18, 3, profile=profile(SUBLINEAR), max_instances=3, others=(SMALL,), mix=2
    ),
    "charged": Setting(8, 2, 8, 2, profile=profile(LINEAR), charges=Charges(0.25, 0.002)),
}


def extremes(planner: Planner, setting: Setting) -> tuple[Plan, Plan]:
    with pytest.raises(InfeasibleError) as caught:
        setting.plan(planner, Limits(deadline=0.0, budget=0.0))
    return present(caught.value.fastest), present(caught.value.cheapest)


def bare(plan: Plan | None) -> Plan | None:
    """Return the plan without its gap, which depends on what was asked."""
    return plan and replace(plan, gap=None)


class HeuristicContract:
    """The suite of a planner that doesn't promise the best plan of its kind."""

    planner: ClassVar[Planner]

    @pytest.fixture(params=list(SETTINGS.values()), ids=list(SETTINGS))
    def setting(self, request: pytest.FixtureRequest) -> Setting:
        setting: Setting = request.param
        return setting

    def deadlines(self, setting: Setting) -> list[float]:
        """Return deadlines from the tightest that can be met to one that is no limit."""
        fastest, cheapest = extremes(self.planner, setting)
        begin, end = fastest.estimate.seconds, cheapest.estimate.seconds
        return [*(begin + (end - begin) * n / 4 for n in range(4)), end, 2 * end]

    def test_impossible_job_names_nearest_plans(self, setting: Setting) -> None:
        fastest, cheapest = extremes(self.planner, setting)
        assert fastest.estimate.seconds <= cheapest.estimate.seconds
        assert cheapest.estimate.dollars <= fastest.estimate.dollars
        with pytest.raises(InfeasibleError, match=r"no plan finishes within .* The fastest"):
            setting.plan(self.planner, Limits(deadline=0.01))
        with pytest.raises(InfeasibleError, match=r"no plan finishes for .* The cheapest"):
            setting.plan(self.planner, Limits(budget=0.0001))

    def test_equal_questions_get_equal_answers(self, setting: Setting) -> None:
        assert setting.plan(self.planner) == setting.plan(self.planner)

    def test_no_more_instances_than_allowed_at_measured_widths(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            plan = setting.plan(self.planner, Limits(deadline))
            assert 1 <= plan.peak_instances <= setting.max_instances
            groups = [group for stage in plan.stages for group in stage.groups]
            known = {rentable.offer: rentable.profile.widths for rentable in setting.rentables}
            assert all(group.width in known[group.offer] for group in groups)

    def test_the_stages_add_up_to_the_estimate(self, setting: Setting) -> None:
        for plan in extremes(self.planner, setting):
            assert tuple(stage.stage for stage in plan.stages) == setting.strategy.stages()
            now = 0.0
            for stage in plan.stages:
                assert stage.begin == pytest.approx(now)
                assert 0.0 <= stage.overhead <= stage.seconds
                now += stage.seconds
            profiles = {rentable.offer: rentable.profile for rentable in setting.rentables}
            ending = max(profiles[g.offer].release.mean for g in plan.stages[-1].groups)
            assert plan.estimate.seconds == pytest.approx(now + ending)
            bill = sum(stage.dollars for stage in plan.stages)
            assert plan.estimate.dollars == pytest.approx(bill)

    def test_groups_hold_all_trials(self, setting: Setting) -> None:
        for stage in extremes(self.planner, setting)[0].stages:
            assert sum(group.trials for group in stage.groups) == stage.stage.trials
            for group in stage.groups:
                at_once = slots(group.width, group.offer.gpus, group.instances)
                assert group.waves == math.ceil(group.trials / at_once)
            assert 0.0 < stage.busy <= 1.0 + 1e-9

    def test_its_gap_is_honest(self, setting: Setting) -> None:
        """No planner's plan is further from the best than it says."""
        best = setting.plan(ExactPlanner())
        mine = setting.plan(self.planner)
        assert mine.estimate.dollars <= best.estimate.dollars * (1 + present(mine.gap)) + 1e-9
        assert mine.estimate.dollars >= best.estimate.dollars - 1e-9

    def test_a_vcpu_quota_is_a_limit(self, setting: Setting) -> None:
        quota = setting.offer.quota
        ask = replace(setting.request(), vcpu_quotas={quota: 16})  # one instance has 16
        try:
            plan = self.planner.plan(ask)
        except InfeasibleError:
            return  # nothing fits on a single instance
        assert plan.peak_instances == 1

    def test_a_width_that_fits_nowhere_is_refused(self) -> None:
        setting = Setting(profile=profile({16.0: 1.0}), max_instances=3)
        with pytest.raises(InfeasibleError, match=r"raise cloud.max_instances") as caught:
            setting.plan(self.planner)
        assert (caught.value.fastest, caught.value.cheapest) == (None, None)

    def test_it_keeps_both_limits_or_refuses(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            try:
                plan = setting.plan(self.planner, Limits(deadline))
            except InfeasibleError:
                continue
            assert plan.estimate.seconds <= deadline
            budget = plan.estimate.dollars
            assert setting.plan(self.planner, Limits(deadline, budget)).estimate.dollars <= budget
            with pytest.raises(InfeasibleError):
                setting.plan(self.planner, Limits(deadline, budget * 0.3))


class PlannerContract(HeuristicContract):
    """The suite of a planner that finds the best plan of its kind."""

    def test_it_keeps_both_limits_or_refuses(self, setting: Setting) -> None:
        """More time never costs more, and a little less than the plan's price buys none."""
        _, cheapest = extremes(self.planner, setting)
        costs = []
        for deadline in self.deadlines(setting):
            plan = setting.plan(self.planner, Limits(deadline=deadline))
            costs.append(plan.estimate.dollars)
            assert plan.estimate.seconds <= deadline
            assert plan.estimate.dollars >= cheapest.estimate.dollars
            tight = Limits(deadline, plan.estimate.dollars)
            assert bare(setting.plan(self.planner, tight)) == bare(plan)
            with pytest.raises(InfeasibleError):
                setting.plan(self.planner, Limits(deadline, plan.estimate.dollars - 0.0001))
        assert costs == sorted(costs, reverse=True)

    def test_without_limits_it_is_the_cheapest(self, setting: Setting) -> None:
        assert bare(setting.plan(self.planner)) == bare(extremes(self.planner, setting)[1])

    def test_more_money_changes_nothing_once_there_is_enough(self, setting: Setting) -> None:
        plan = setting.plan(self.planner)
        for budget in (plan.estimate.dollars, 2 * plan.estimate.dollars):
            assert bare(setting.plan(self.planner, Limits(budget=budget))) == bare(plan)

    def test_least_time_within_a_budget(self, setting: Setting) -> None:
        fastest, cheapest = extremes(self.planner, setting)
        ask = replace(setting.request(), objective="time")
        assert self.planner.plan(ask).estimate.seconds == fastest.estimate.seconds
        begin, end = cheapest.estimate.dollars, fastest.estimate.dollars
        budgets = [begin + (end - begin) * n / 5 for n in range(7)]
        plans = [self.planner.plan(replace(ask, allowance=Allowance(None, b))) for b in budgets]
        times = [plan.estimate.seconds for plan in plans]
        assert all(p.estimate.dollars <= b + 1e-9 for p, b in zip(plans, budgets, strict=True))
        assert times == sorted(times, reverse=True)

    def test_impossible_job_names_near_plans(self, setting: Setting) -> None:
        fastest, cheapest = extremes(self.planner, setting)
        too_soon = Limits(deadline=fastest.estimate.seconds - 0.001)
        why = r"no plan finishes within .* The fastest takes .*--deadline"
        with pytest.raises(InfeasibleError, match=why) as late:
            setting.plan(self.planner, too_soon)
        assert bare(late.value.fastest) == bare(fastest)
        assert bare(late.value.cheapest) == bare(cheapest)
        too_dear = Limits(budget=cheapest.estimate.dollars - 0.0001)
        why = r"no plan finishes for \$.* The cheapest takes .*--budget"
        with pytest.raises(InfeasibleError, match=why) as dear:
            setting.plan(self.planner, too_dear)
        assert bare(dear.value.fastest) == bare(fastest)
        assert bare(dear.value.cheapest) == bare(cheapest)
