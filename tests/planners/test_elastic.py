from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cloudtune.errors import InfeasibleError
from cloudtune.plan import Fleet, Limits
from cloudtune.planners.elastic import ElasticPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import LINEAR, NODE_BOUNDARY, SUBLINEAR, Setting, offer, profile, shapes
from tests.contracts.planner import PlannerContract, extremes
from tests.planners.brute_force import every_plan

seconds = st.floats(0.0, 100.0)


@st.composite
def small_jobs(draw: st.DrawFn) -> Setting:
    """Jobs of few stages, whose curves rise and fall as they like."""
    widths = draw(st.sets(st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0]), min_size=1, max_size=3))
    first = draw(st.integers(1, 4))
    return Setting(
        trials=draw(st.integers(1, 9)),
        min_epochs=first,
        max_epochs=draw(st.integers(first, first * 7)),
        eta=draw(st.integers(3, 4)),
        offer=offer(draw(st.sampled_from([2, 4])), 36.0, draw(st.sampled_from([0.0, 60.0]))),
        profile=profile(
            {width: draw(st.floats(0.5, 50.0)) for width in sorted(widths)},
            launch=draw(seconds),
            boot=draw(seconds),
            start=draw(seconds),
            resize=draw(seconds),
            release=draw(seconds),
        ),
        max_instances=draw(st.integers(1, 3)),
    )


class TestElasticPlanner(PlannerContract):
    planner = ElasticPlanner()

    def test_it_proves_its_plan(self, setting: Setting) -> None:
        assert setting.plan(self.planner).gap == 0.0

    @settings(deadline=None, max_examples=100)
    @given(setting=small_jobs(), share=st.floats(0.0, 1.0))
    def test_it_finds_what_trying_everything_finds(self, setting: Setting, share: float) -> None:
        every = list(every_plan(setting.request()))
        assume(every)
        fastest, cheapest = extremes(self.planner, setting)
        assert fastest.estimate.seconds == pytest.approx(min(p.seconds for p in every))
        assert cheapest.estimate.dollars == pytest.approx(min(p.dollars for p in every))
        span = cheapest.estimate.seconds - fastest.estimate.seconds
        deadline = fastest.estimate.seconds + share * span + 1e-6
        found = setting.plan(self.planner, Limits(deadline)).estimate.dollars
        assert found == pytest.approx(min(p.dollars for p in every if p.seconds <= deadline))

    @pytest.mark.parametrize("curve", [LINEAR, SUBLINEAR, NODE_BOUNDARY], ids=str)
    def test_it_finds_what_trying_everything_finds_at_every_deadline(
        self, curve: dict[float, float]
    ) -> None:
        setting = Setting(8, 2, 8, 2, profile=profile(curve, boot=40.0), max_instances=3)
        every = list(every_plan(setting.request()))
        for deadline in sorted({plan.seconds for plan in every})[::7]:
            found = setting.plan(self.planner, Limits(deadline + 1e-6)).estimate.dollars
            best = min(plan.dollars for plan in every if plan.seconds <= deadline + 1e-6)
            assert found == pytest.approx(best)

    def test_each_plan_costs_what_the_books_of_its_instances_say(self, setting: Setting) -> None:
        if len(setting.strategy.stages()) > 3:
            setting = setting.but(min_epochs=setting.max_epochs // 2)
        every = {plan.choices: plan for plan in every_plan(setting.request())}
        for plan in extremes(self.planner, setting):
            by_hand = every[tuple(shapes(plan))]
            assert plan.estimate.seconds == pytest.approx(by_hand.seconds)
            assert plan.estimate.dollars == pytest.approx(by_hand.dollars)

    def test_it_is_never_dearer_than_the_best_static_cluster(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            elastic = setting.plan(self.planner, Limits(deadline))
            try:
                static = setting.plan(StaticPlanner(), Limits(deadline))
            except InfeasibleError:
                continue  # elastic meets deadlines that no fixed fleet can
            assert elastic.estimate.dollars <= static.estimate.dollars + 1e-12

    @settings(deadline=None, max_examples=40)
    @given(setting=small_jobs())
    def test_never_dearer_and_never_slower_whatever_the_curve(self, setting: Setting) -> None:
        assume(any(True for _ in every_plan(setting.request())))
        fastest, cheapest = extremes(self.planner, setting)
        static = extremes(StaticPlanner(), setting)
        assert fastest.estimate.seconds <= static[0].estimate.seconds + 1e-9
        assert cheapest.estimate.dollars <= static[1].estimate.dollars + 1e-12


def test_the_bill_of_one_plan_to_the_cent() -> None:
    """Two instances for eight trials, one for the best two: 500 instance-seconds at $0.001.

    Stage 1: 10 s launch (free), 50 boot, 5 start, 100 training: 165 s, 2 x 155 billed = 310.
    Stage 2: 2 s until the second instance is gone = 2; the first resizes in 6 and trains
    3 x 60 = 186; and its own return takes 2 = 188.
    """
    setting = Setting(
        trials=8,
        min_epochs=1,
        max_epochs=4,
        eta=4,
        offer=offer(4, 3.60),
        profile=profile(
            {1.0: 100.0, 2.0: 60.0}, launch=10.0, boot=50.0, start=5.0, resize=6.0, release=2.0
        ),
    )
    plan = setting.plan(ElasticPlanner(), Limits(deadline=360.0))
    assert shapes(plan) == [(2, 1.0), (1, 2.0)]
    assert [stage.seconds for stage in plan.stages] == [165.0, 186.0]
    assert [stage.overhead for stage in plan.stages] == [65.0, 6.0]
    assert [stage.dollars for stage in plan.stages] == pytest.approx([0.310, 0.190])
    assert plan.estimate.seconds == 353.0
    assert plan.estimate.dollars == pytest.approx(0.500)


def test_an_instance_given_back_within_its_first_minute_is_paid_for_the_minute() -> None:
    """Stage 1 lasts 1 + 5 + 4 + 8 = 18 s: the second instance is 17 s old, and costs 60.

    The survivor stays where it is, on the instance that is kept: nothing is resized.
    """
    setting = Setting(
        trials=8, min_epochs=1, max_epochs=20, eta=8, profile=profile({1.0: 8.0}, boot=5.0)
    )
    plan = setting.plan(ElasticPlanner(), Limits(deadline=180.0))
    assert shapes(plan) == [(2, 1.0), (1, 1.0), (1, 1.0)]
    bill = 2 * 17 + (60 - 17) + 7 * 8 + 12 * 8 + 2
    assert plan.estimate.dollars == pytest.approx(bill * 0.01)


def test_one_gpu_of_a_four_gpu_box_is_the_dearest_way_to_run_the_last_trial() -> None:
    """The whole box is billed, so the widest trial is the cheapest, however badly it scales."""
    job = Setting(1, 40, 40, 2, max_instances=1)
    costs = {
        width: job.but(profile=profile({width: SUBLINEAR[width]})).plan().estimate.dollars
        for width in (1.0, 2.0, 4.0)
    }
    assert costs[1.0] > costs[2.0] > costs[4.0]
    assert shapes(job.but(profile=profile(SUBLINEAR)).plan()) == [(1, 4.0)]


def test_eight_gpus_over_two_nodes_are_not_taken_where_four_on_one_are_faster() -> None:
    job = Setting(1, 40, 40, 2, profile=profile(NODE_BOUNDARY), max_instances=4)
    fastest, _ = extremes(StaticPlanner(), job)
    assert shapes(fastest) == [(1, 4.0)]


def test_a_longer_boot_makes_no_more_instances_come_and_go() -> None:
    def grown(boot: float, deadline: float) -> int:
        job = Setting(12, 2, 32, 4, profile=profile(NODE_BOUNDARY, boot=boot), max_instances=3)
        sizes = [n for n, _ in shapes(job.plan(limits=Limits(deadline + boot)))]
        return sum(after > before for before, after in itertools.pairwise(sizes))

    assert grown(600.0, 250.0) <= grown(5.0, 250.0)


def test_what_is_rented_already_is_used_before_anything_is_launched() -> None:
    """At a barrier: the rest of the job, on the instances there are."""
    job = Setting(4, 1, 8, 2, profile=profile(LINEAR))
    request = replace(
        job.request(), work=job.strategy.stages()[1:], fleet=Fleet(ages=(200.0, 200.0), width=1.0)
    )
    plan = ElasticPlanner().plan(request)
    assert plan.stages[0].overhead <= job.profile.resize.mean, "nothing boots"
    assert plan.estimate.seconds < job.plan().estimate.seconds
