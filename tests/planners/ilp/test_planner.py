from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cloudtune.errors import UsageError
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.plans import Allowance, Charges, Limits, Objective, Plan, Rentable, Stage
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.planners.base import InfeasibleError, Live, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.ilp.planner import IlpPlanner
from tests.builders import NODE_BOUNDARY, SUBLINEAR, Setting, offer, profile
from tests.contracts.planner import PlannerContract
from tests.planners.brute_force import Priced, best, every_plan

CURVE = {1.0: 8.0, 2.0: 4.7, 4.0: 2.5, 8.0: 3.8}


def rentable(
    curve: dict[float, float],
    *,
    most: int = 2,
    gpus: int = 4,
    usd: float = 36.0,
    minimum: float = 60.0,
    granularity: float = 0.0,
    name: str = "g4.x",
    delays: tuple[float, ...] = (1.0, 20.0, 4.0, 6.0, 2.0),
    function: bool = False,
) -> Rentable:
    """Return an offer and how a script scales there; at its price a second costs a cent."""
    kind = InstanceType(name, gpus, "T4", 16384, 4, 65536)
    offer = Offer(kind, "on-demand", "us-east-1", usd, minimum, granularity)
    epoch = {width: Measurement(seconds) for width, seconds in curve.items()}
    launch, boot, start, resize, release = map(Measurement, delays)
    profile = ScalingProfile(
        name, epoch, launch, boot, start, resize, release, "", "2026-01-01", "made up"
    )
    return Rentable(replace(offer, per_function=function), profile, most)


def halving(trials: int, stages: int) -> tuple[Stage, ...]:
    """Return stages of twice the epochs and half the trials each."""
    return tuple(Stage(trials >> n, 2**n - 1, 2 ** (n + 1) - 1) for n in range(stages))


@st.composite
def requests(draw: st.DrawFn, *, stages: int = 3, mix: int = 1) -> PlanRequest:
    """Give small jobs on one or two offers, with young instances, fleets, quotas and charges."""
    some = st.floats(0.0, 30.0)
    offers = [
        rentable(
            draw(
                st.dictionaries(
                    st.sampled_from([1 / 3, 0.5, 1.0, 2.0, 4.0, 8.0]),
                    st.floats(1.0, 30.0),
                    min_size=1,
                    max_size=2,
                )
            ),
            most=draw(st.integers(1, 3 if mix == 1 else 2)),
            gpus=draw(st.sampled_from([1, 4])),
            usd=draw(st.sampled_from([9.0, 36.0])),
            minimum=draw(st.sampled_from([0.0, 60.0, 200.0])),
            granularity=draw(st.sampled_from([0.0, 0.0, 1.0, 60.0])),
            name=name,
            delays=tuple(draw(some) for _ in range(5)),
        )
        for name in draw(st.sampled_from([["g4.x"], ["g4.x", "p3.x"]]))
    ]
    trials, epoch, work = draw(st.integers(1, 6)), 0, []
    for _ in range(draw(st.integers(1, stages))):
        work.append(Stage(trials, epoch, epoch := epoch + draw(st.integers(1, 4))))
        trials = max(1, trials // draw(st.integers(1, 3)))
    fleet = [
        Live(
            one.offer,
            tuple(draw(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=2))),
            draw(st.sampled_from([None, *one.profile.widths])),
        )
        for one in offers
        if draw(st.booleans())
    ]
    return PlanRequest(
        tuple(work),
        tuple(offers),
        Allowance(),
        max_instances=draw(st.integers(1, 3)),
        fleet=tuple(fleet),
        charges=draw(st.sampled_from([Charges(), Charges(0.05, 0.001)])),
        objective=draw(st.sampled_from(["cost", "time"])),
        vcpu_quotas=draw(st.sampled_from([{}, {"on-demand g": 8}])),
        mix=mix,
    )


def find_plan(request: PlanRequest) -> Plan | None:
    try:
        return IlpPlanner().plan(request)
    except InfeasibleError:
        return None


def key(objective: Objective, seconds: float, dollars: float) -> tuple[float, float]:
    return (dollars, seconds) if objective == "cost" else (seconds, dollars)


def check(request: PlanRequest, plan: Plan | None, wanted: Priced | None) -> None:
    assert (plan is None) == (wanted is None)
    if plan is None or wanted is None:
        return
    assert (plan.planner, plan.gap, plan.status) == ("ilp", 0.0, "optimal")
    assert request.allowance.admit(plan.estimate)
    mine = key(request.objective, plan.estimate.seconds, plan.estimate.dollars)
    theirs = key(request.objective, wanted.seconds, wanted.dollars)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-7, abs=1e-9)
    # Of plans equal but for the last bit it may take the better of the others.
    assert mine[1] <= theirs[1] * (1 + 1e-7) + 1e-9


def few(request: PlanRequest, mix: int = 1, most: int = 4000) -> list[Priced]:
    plans = [plan for plan, _ in zip(every_plan(request, mix), range(most + 1), strict=False)]
    assume(0 < len(plans) <= most)
    return plans


def draw_limits(
    request: PlanRequest, plans: list[Priced], in_time: float, in_money: float
) -> Allowance:
    """Return limits so far between the least and the most that any plan takes; 1 for none.

    A little more than what a plan takes: two books of one plan differ by the last bit.
    """

    def at(share: float, values: list[float]) -> float | None:
        return None if share == 1 else sorted(values)[round(share * (len(values) - 1))] + 1e-7

    return Allowance(
        at(in_time, [plan.seconds for plan in plans]),
        at(in_money, [plan.dollars for plan in plans]),
    )


SHARE = st.one_of(st.floats(0.0, 0.3), st.just(1.0))


@given(requests(), SHARE, SHARE)
@settings(max_examples=15, deadline=None)
def test_it_is_as_good_as_the_best(request: PlanRequest, in_time: float, in_money: float) -> None:
    allowance = draw_limits(request, few(request), in_time, in_money)
    tight = replace(request, allowance=allowance)
    check(tight, find_plan(tight), best(tight))


@given(requests(stages=2, mix=2), SHARE, SHARE)
@settings(max_examples=10, deadline=None)
def test_it_is_with_two_offers_too(request: PlanRequest, in_time: float, in_money: float) -> None:
    allowance = draw_limits(request, few(request, mix=2), in_time, in_money)
    tight = replace(request, allowance=allowance)
    check(tight, find_plan(tight), best(tight, mix=2))


@given(requests(stages=2), st.data())
@settings(max_examples=15, deadline=None)
def test_both_books_say_the_same(request: PlanRequest, data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(few(request)))
    estimate = price(request, plan.choices, "by hand").estimate
    assert (estimate.seconds, estimate.dollars) == pytest.approx((plan.seconds, plan.dollars))


def job(
    *, stages: int = 4, allowance: Allowance | None = None, minimum: float = 60.0, most: int = 4
) -> PlanRequest:
    one = rentable(CURVE, most=most, minimum=minimum)
    return PlanRequest(halving(2**stages, stages), (one,), allowance or Allowance(), most)


def test_oversized_problem_is_refused_early() -> None:
    with pytest.raises(UsageError, match=r"480 arcs .* takes 400 at most; use --planner exact"):
        IlpPlanner(max_arcs=400).plan(job(stages=3))


def young() -> PlanRequest:
    """Return a job in a hurry, in which some instances live for less than they are billed for."""
    work = (Stage(8, 0, 1), Stage(4, 1, 2), Stage(2, 2, 4))
    request = PlanRequest(work, (rentable(CURVE, most=3),), Allowance(), 3)
    deadline = 0.9 * IlpPlanner().plan(request).estimate.seconds
    return replace(request, allowance=Allowance(deadline))


def test_a_search_cut_short_says_how_far_off() -> None:
    exact = IlpPlanner().plan(young())
    assert (exact.gap, exact.status) == (0.0, "optimal")
    assert exact.estimate.dollars == pytest.approx(best_dollars(young()))
    cut = IlpPlanner(rounds=1).plan(young())
    assert cut.status == "feasible"
    assert cut.gap is not None
    assert cut.gap > 0.0
    assert exact.estimate.dollars < cut.estimate.dollars
    assert cut.estimate.dollars <= exact.estimate.dollars * (1 + cut.gap) + 1e-9


def best_dollars(request: PlanRequest) -> float:
    plan = best(request)
    assert plan is not None
    return plan.dollars


def test_early_cut_proves_nothing() -> None:
    with pytest.raises(UsageError, match=r"cut short \(rounds: 300, nodes: 0\)"):
        IlpPlanner(nodes=0).plan(young())


SMALL = [
    Setting(4, 2, 8, 2, profile=profile(NODE_BOUNDARY)),
    Setting(8, 1, 4, 2, offer=offer(1), profile=profile({0.25: 20.0, 0.5: 11.0, 1.0: 8.0})),
    Setting(1, 5, 5, 2, profile=profile(SUBLINEAR)),
    Setting(4, 2, 4, 2, profile=profile(SUBLINEAR), charges=Charges(0.25, 0.002)),
]


class TestIlpPlanner(PlannerContract):
    planner = IlpPlanner()

    @pytest.fixture(params=SMALL, ids=["node boundary", "packed", "one trial", "charged"])
    def setting(self, request: pytest.FixtureRequest) -> Setting:
        setting: Setting = request.param
        return setting

    def test_it_agrees_with_the_dynamic_programming(self, setting: Setting) -> None:
        for deadline in self.deadlines(setting):
            mine = setting.plan(self.planner, Limits(deadline))
            theirs = setting.plan(ExactPlanner(), Limits(deadline))
            assert mine.estimate.dollars == pytest.approx(theirs.estimate.dollars)
            assert mine.gap == theirs.gap == 0.0
