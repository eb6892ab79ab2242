import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cloudtune.errors import UsageError
from cloudtune.model.plans import Allowance, Charges, Limits, Rentable, Stage
from cloudtune.planners.base import Live, Planner
from cloudtune.planners.cost_model import price
from cloudtune.planners.dp.search import Search
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import SUBLINEAR, Setting, group, offer, profile, shapes
from tests.contracts.planner import PlannerContract, extremes
from tests.planners.brute_force import Priced, every_plan

seconds = st.floats(0.0, 100.0)


@st.composite
def rentable_curves(draw: st.DrawFn, name: str, most: int) -> Rentable:
    """An offer with a curve that rises and falls as it likes."""
    widths = draw(st.sets(st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0]), min_size=1, max_size=2))
    minimum = draw(st.sampled_from([0.0, 60.0, 200.0]))
    gpus, dollars = draw(st.sampled_from([1, 2, 4])), draw(st.floats(1.0, 50.0))
    curve = {width: draw(st.floats(0.5, 50.0)) for width in sorted(widths)}
    delays = {kind: draw(seconds) for kind in ("launch", "boot", "start", "resize", "release")}
    added = draw(st.sampled_from([0.0, 0.0, 3.0]))
    kind = replace(offer(gpus, dollars, minimum, name=name), added_usd_per_hour=added)
    return Rentable(kind, profile(curve, name=name, **delays), most)


@st.composite
def small_jobs(draw: st.DrawFn, mix: int = 1) -> Setting:
    """Jobs of few stages on one offer or two."""
    most = draw(st.integers(1, 2 if mix == 2 else 3))
    first = draw(st.integers(1, 4))
    one = draw(rentable_curves("g.a", most))
    others = (draw(rentable_curves("g.b", most)),) if mix == 2 or draw(st.booleans()) else ()
    eta = draw(st.integers(3, 4))
    return Setting(
        trials=draw(st.integers(1, 5 if mix == 2 else 9)),
        min_epochs=first,
        max_epochs=draw(st.integers(first, first * (eta if mix == 2 or others else 7))),
        eta=eta,
        offer=one.offer,
        profile=one.profile,
        others=others,
        max_instances=most,
        charges=Charges(draw(st.sampled_from([0.0, 0.2])), draw(st.sampled_from([0.0, 0.001]))),
        mix=mix,
        vcpu_quotas=draw(st.sampled_from([{}, {"on-demand g": 16}, {"on-demand g": 32}])),
    )


def find_front(plans: list[Priced]) -> list[tuple[float, float]]:
    """Return time and price of the plans that no other one beats, the fastest first."""
    kept: list[tuple[float, float]] = []
    for plan in sorted(plans, key=lambda plan: (plan.seconds, plan.dollars)):
        if not kept or plan.dollars < kept[-1][1] - 1e-9:
            kept.append((plan.seconds, plan.dollars))
    return kept


class TestExactPlanner(PlannerContract):
    planner = ExactPlanner()

    def test_it_proves_its_plan(self, setting: Setting) -> None:
        assert setting.plan(self.planner).gap == 0.0

    @settings(deadline=None, max_examples=25)
    @given(setting=small_jobs() | small_jobs(mix=2), share=st.floats(0.0, 1.0))
    def test_it_finds_what_trying_everything_finds(self, setting: Setting, share: float) -> None:
        request = setting.request()
        every = list(every_plan(request, setting.mix))
        assume(every)
        fastest, cheapest = extremes(self.planner, setting)
        assert fastest.estimate.seconds == pytest.approx(min(p.seconds for p in every))
        assert cheapest.estimate.dollars == pytest.approx(min(p.dollars for p in every))
        span = cheapest.estimate.seconds - fastest.estimate.seconds
        deadline = fastest.estimate.seconds + share * span + 1e-6
        result = setting.plan(self.planner, Limits(deadline)).estimate.dollars
        assert result == pytest.approx(min(p.dollars for p in every if p.seconds <= deadline))
        budget = fastest.estimate.dollars + share * (
            cheapest.estimate.dollars - fastest.estimate.dollars
        )
        ask = replace(request, allowance=Allowance(None, budget + 1e-6), objective="time")
        least = min(p.seconds for p in every if p.dollars <= budget + 1e-6)
        assert self.planner.plan(ask).estimate.seconds == pytest.approx(least)

    @settings(deadline=None, max_examples=25)
    @given(setting=small_jobs() | small_jobs(mix=2), young=st.booleans())
    def test_its_front_is_that_of_all_plans(self, setting: Setting, young: bool) -> None:
        request = setting.request()
        if young:  # the rest of a job, on instances that may still owe their minimum
            ages = tuple(7.0 + 11.0 * n for n in range(setting.max_instances))
            live = Live(setting.offer, ages, setting.profile.widths[0])
            work = tuple(Stage(s.trials, s.start_epoch + 1, s.end_epoch + 1) for s in request.work)
            request = replace(request, fleet=(live,), work=work)
        expected = find_front(list(every_plan(request, setting.mix)))
        result = [(label.seconds, label.dollars) for label in Search(request).front()]
        assert len(result) == len(expected)
        for mine, theirs in zip(result, expected, strict=True):
            assert mine == pytest.approx(theirs)

    @settings(deadline=None, max_examples=25)
    @given(setting=small_jobs(), share=st.floats(0.0, 2.0))
    def test_exact_greedy_static_in_this_order(self, setting: Setting, share: float) -> None:
        assume(any(True for _ in every_plan(setting.request())))
        fastest, cheapest = extremes(StaticPlanner(), setting)
        begin, end = fastest.estimate.seconds, cheapest.estimate.seconds
        limits = Limits(begin + share * (end - begin) + 1e-6)
        greedy = (GreedyPlanner(from_every=True), GreedyPlanner())
        planners: tuple[Planner, ...] = (self.planner, *greedy, StaticPlanner())
        costs = [setting.plan(planner, limits).estimate.dollars for planner in planners]
        assert costs == pytest.approx(sorted(costs))


@pytest.mark.parametrize("planner", [ExactPlanner(), GreedyPlanner()])
@pytest.mark.parametrize(("together", "pays"), [(9.0, True), (15.9, True), (16.1, False)])
def test_r3_shares_planned_where_they_win(planner: Planner, together: float, pays: bool) -> None:
    """Eight on a GPU, packed or fused, take `together`; one after the other they take 16 s."""
    curve = {1 / 8: together, 1.0: 2.0}
    at_once = profile(curve, launch=0.0, boot=0.0, start=0.0, resize=0.0, release=0.0)
    job = Setting(8, 1, 1, 2, profile=at_once, offer=offer(1, 36.0, 0.0), max_instances=1)
    assert shapes(job.plan(planner)) == [(1, 1 / 8 if pays else 1.0)]


def test_hourly_bills_are_proven() -> None:
    hourly = replace(offer(), granularity_seconds=3600.0)
    job = Setting(8, 2, 8, 2, offer=hourly, profile=profile(SUBLINEAR))
    plan = job.plan(ExactPlanner())
    cheapest = min(every_plan(job.request()), key=lambda item: item.dollars)
    assert plan.estimate.dollars == pytest.approx(cheapest.dollars)
    assert plan.gap == 0.0


def test_an_unproven_plan_gives_its_gap() -> None:
    """More than 16 instances: not every fleet size is tried where bills are rounded up."""
    hourly = replace(offer(), granularity_seconds=3600.0)
    job = Setting(8, 2, 8, 2, offer=hourly, profile=profile(SUBLINEAR), max_instances=20)
    plan = job.plan(ExactPlanner())
    assert plan.status == "feasible"
    assert plan.gap is not None
    assert plan.gap > 0.0


def test_a_quota_makes_new_instances_wait_for_the_old() -> None:
    """Both fit under `max_instances`, but not under the quota: one instance's vCPUs.

    The launch waits 2 s, until the first type's instance is gone.
    """
    big, small = offer(4, 36.0, name="p.4x"), offer(1, 3.6, name="p.1x")
    slow = Rentable(small, profile({1.0: 8.0}, name="p.1x"), 2)
    job = Setting(4, 2, 8, 4, offer=big, profile=profile({1.0: 8.0}), others=(slow,))
    choices = [(group(big, 1, 1.0, 4),), (group(small, 1, 1.0, 1),)]
    free = price(job.request(), choices, "by hand")
    bound = price(job.but(vcpu_quotas={"on-demand p": 16}).request(), choices, "by hand")
    assert free.stages[1].overhead == 1.0 + 20.0 + 6.0
    assert bound.stages[1].overhead == 2.0 + 1.0 + 20.0 + 6.0
    assert bound.estimate.dollars == pytest.approx(free.estimate.dollars), "nothing waits for money"
    assert bound.vcpu_quotas == {"on-demand p": 16}
    late = bound.estimate.seconds
    for deadline, instances in ((late + 0.5, {big, small}), (late - 0.5, {big})):
        plan = job.but(vcpu_quotas=bound.vcpu_quotas).plan(ExactPlanner(), Limits(deadline))
        assert set(plan.offers) == instances
        assert plan.estimate.seconds <= deadline


@settings(deadline=None, max_examples=25)
@given(setting=small_jobs())
def test_a_limit_admits_its_plan_despite_the_last_bit(setting: Setting) -> None:
    """Sums of floats in another order differ by as much."""
    assume(any(True for _ in every_plan(setting.request())))
    fastest, cheapest = extremes(ExactPlanner(), setting)
    budget = math.nextafter(cheapest.estimate.dollars, 0.0)
    deadline = math.nextafter(fastest.estimate.seconds, 0.0)
    assert Search(setting.request()).best(Allowance(None, budget), "time") is not None
    assert Search(setting.request()).best(Allowance(deadline, None), "cost") is not None


def test_three_offers_at_once_are_not_planned() -> None:
    with pytest.raises(UsageError, match="two offers at most"):
        ExactPlanner().plan(replace(Setting().request(), mix=3))
