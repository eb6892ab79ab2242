"""With no spread, a simulated run takes the plan's seconds and dollars: model and policy agree.

They were written apart: the model reckons with sums, the policy reacts to events.
"""

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cloudtune.model.catalog import Offer
from cloudtune.model.commands import PlanAnew
from cloudtune.model.plans import Charges, Limits, Plan, Rentable, StagePlan
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import InfeasibleError, Planner
from cloudtune.planners.cost_model import price
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.static import StaticPlanner
from cloudtune.runs.report import build
from tests.builders import (
    LINEAR,
    NODE_BOUNDARY,
    Setting,
    choices,
    group,
    itinerary_of,
    jobs,
    offer,
    play,
    profile,
    shapes,
)

PLANNERS: tuple[Planner, ...] = (ExactPlanner(), StaticPlanner())
# No stage is so short that what goes at its beginning could still be there at its end.
JOBS = jobs(max_epochs=12, epoch=st.floats(3.0, 30.0), release=st.floats(0.01, 3.0))


@st.composite
def plans(draw: st.DrawFn) -> tuple[Setting, Plan]:
    setting, planner = draw(JOBS), draw(st.sampled_from(PLANNERS))
    try:
        cheapest = setting.plan(planner)
    except InfeasibleError:
        assume(False)
    with pytest.raises(InfeasibleError) as caught:
        setting.plan(planner, Limits(deadline=0.0))
    assert caught.value.fastest is not None
    begin, end = caught.value.fastest.estimate.seconds, cheapest.estimate.seconds
    deadline = begin + draw(st.floats(0.0, 1.0)) * (end - begin)
    return setting, setting.plan(planner, Limits(max(begin, deadline)))


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Setting, Plan]:
    """Jobs with any plan at all, billed by grains of some size, or by the function."""
    setting = draw(JOBS)
    grain = draw(st.sampled_from([0.0, 0.0, 1.0, 30.0, None]))

    def billed(offer: Offer) -> Offer:
        return (
            offer.with_billing("function")
            if grain is None
            else replace(offer, granularity_seconds=grain)
        )

    setting = setting.but(
        offer=billed(setting.offer),
        others=tuple(replace(other, offer=billed(other.offer)) for other in setting.others),
    )
    return setting, price(setting.request(), draw(choices(setting)), "drawn")


def held(stage: StagePlan, offer: Offer) -> int:
    group = stage.group(offer)
    return group.instances if group else 0


def grown(before: StagePlan, after: StagePlan) -> list[Offer]:
    """Return the offers that some instances of stay, beside fresh ones."""
    offers = (group.offer for group in after.groups)
    return [offer for offer in offers if 0 < held(before, offer) < held(after, offer)]


def lucky(before: StagePlan, after: StagePlan) -> bool:
    """Whether the run may be ahead of a stage's plan.

    Some survivor may not have to move or to wait: where a group has the width that it had, or has
    fresh instances beside others. Or room for a launch comes sooner than all that goes is gone.
    """
    widths = {group.offer: group.width for group in before.groups}
    same = any(widths.get(group.offer) == group.width for group in after.groups)
    going = [g.offer for g in before.groups if g.instances > held(after, g.offer)]
    waits = len(going) > 1 and any(held(before, g.offer) < g.instances for g in after.groups)
    return (same and after.overhead > 0) or bool(grown(before, after)) or waits


def has_luck(plan: Plan) -> bool:
    return any(lucky(*pair) for pair in itertools.pairwise(plan.stages))


def may_owe(plan: Plan) -> float:
    """Return what a run may cost beyond its plan.

    The plan gives the oldest instances back, the run those with the fewest survivors. Where a fleet
    has grown, one of them may be so young that it owes more of its minimum charge (or of its last
    grain) than the oldest would have. And what is launched sooner than planned may have to wait for
    the rest of its stage.
    """
    owed = 0.0
    for before, after in itertools.pairwise(plan.stages):
        for more in grown(before, after):
            one = more.charge(0.0) + more.granularity_seconds * more.usd_per_second
            owed += held(after, more) * one
        if len(before.groups) > 1:
            fresh = [(g.offer, g.instances - held(before, g.offer)) for g in after.groups]
            owed += sum(max(0, count) * 3.0 * new.usd_per_second for new, count in fresh)
    return owed


def may_lag(setting: Setting, plan: Plan) -> tuple[float, float]:
    """Return the seconds and dollars by which a run may be behind its plan.

    While fresh instances boot, trials take turns on those that are there. One that made room so has
    to be started again in the next stage, where the plan has it train on where it is.
    """
    seconds, dollars = 0.0, 0.0
    for before, after, stage in zip(plan.stages, plan.stages[1:], plan.stages[2:], strict=False):
        if grown(before, after) and stage.overhead == 0:
            (group,) = stage.groups
            lag = setting.request().rentable(group.offer).profile.resize.mean
            rate = group.instances * group.offer.usd_per_second + plan.charges.usd_per_second
            seconds, dollars = seconds + lag, dollars + lag * rate
    return seconds, dollars


def agree(setting: Setting, plan: Plan) -> None:
    played = play(setting, plan)
    assert played.policy.ending is EndReason.DONE
    if has_luck(plan):
        seconds, dollars = may_lag(setting, plan)
        assert played.seconds <= plan.estimate.seconds + seconds + 1e-6
        assert played.dollars <= plan.estimate.dollars + may_owe(plan) + dollars + 1e-6
    else:
        assert played.seconds == pytest.approx(plan.estimate.seconds, abs=1e-6)
        assert played.dollars == pytest.approx(plan.estimate.dollars, abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(planned=plans())
def test_what_planners_choose(planned: tuple[Setting, Plan]) -> None:
    agree(*planned)


@settings(deadline=None, max_examples=50)
@given(planned=chosen())
def test_any_choice(planned: tuple[Setting, Plan]) -> None:
    agree(*planned)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])
@given(planned=plans())
def test_stage_by_stage(planned: tuple[Setting, Plan]) -> None:
    setting, plan = planned
    assume(not has_luck(plan))
    job = setting.job(plan)
    played = play(setting, job.policy())
    assume(not any(isinstance(c, PlanAnew) for entry in played.entries for c in entry.commands))
    report = build(job, played.entries)
    assert report.seconds == pytest.approx(plan.estimate.seconds, abs=1e-6)
    assert report.dollars == pytest.approx(plan.estimate.dollars, abs=1e-6)
    now = 0.0
    for stage in report.stages[:-1]:
        assert stage.seconds == pytest.approx(stage.plan.seconds, abs=1e-6)
        assert stage.dollars == pytest.approx(stage.plan.dollars, abs=1e-6)
        now += stage.plan.seconds
    last = report.stages[-1]
    assert last.seconds == pytest.approx(plan.estimate.seconds - now, abs=1e-6)
    assert last.dollars == pytest.approx(last.plan.dollars, abs=1e-6)


def test_a_fleet_that_shrinks_twice_while_its_trials_grow() -> None:
    setting = Setting(
        trials=12,
        min_epochs=2,
        max_epochs=18,
        eta=3,
        profile=profile(NODE_BOUNDARY),
        max_instances=3,
    )
    plan = setting.plan(limits=Limits(deadline=105.0))
    assert shapes(plan) == [(3, 1.0), (2, 2.0), (1, 4.0)]
    played = play(setting, plan)
    assert (played.seconds, played.dollars) == pytest.approx(
        (plan.estimate.seconds, plan.estimate.dollars)
    )
    assert itinerary_of(played.policy).stage_began == pytest.approx(
        [stage.begin for stage in plan.stages]
    )


QUICK = Rentable(
    offer(8, 180.0, name="p.8x"),
    profile({2.0: 1.0, 8.0: 0.5}, launch=2.0, boot=30.0, start=5.0, resize=7.0, name="p.8x"),
    2,
)
TWO_OFFERS = Setting(
    8, 2, 8, 2, profile=profile(LINEAR), others=(QUICK,), charges=Charges(0.25, 0.001)
)


def test_from_one_offer_to_another_and_both_by_hand() -> None:
    """8 trials on both offers, 4 on the cheap one alone, 2 on the quick one alone.

    A second costs a cent on the cheap one and five on the quick one; at most two are alive.
    """
    cheap, quick = TWO_OFFERS.offer, QUICK.offer
    plan = price(
        TWO_OFFERS.request(),
        (
            (group(cheap, 1, 1.0, 4), group(quick, 1, 2.0, 4)),
            (group(cheap, 1, 2.0, 4),),
            (group(quick, 2, 8.0, 2),),
        ),
        "by hand",
    )
    first = max(1 + 20 + 4 + 2 * 8.0, 2 + 30 + 5 + 2 * 1.0)
    second = 2 * (6 + 2 * 4.0)
    third = 2 + 2 + 30 + 7 + 4 * 0.5  # no room for two quick ones before the cheap one is gone
    begins = [0.0, first, first + second]
    end = first + second + third + 2
    assert [stage.begin for stage in plan.stages] == pytest.approx(begins)
    cheap_seconds = first - 1 + second + 2
    quick_seconds = max(60.0, first - 2 + 2) + 2 * max(60.0, third - 2 - 2 + 2)
    dollars = 0.01 * cheap_seconds + 0.05 * quick_seconds + 4 * 0.25 + end * 0.001
    assert (plan.estimate.seconds, plan.estimate.dollars) == pytest.approx((end, dollars))
    played = play(TWO_OFFERS, plan)
    assert (played.seconds, played.dollars) == pytest.approx((end, dollars))
    assert itinerary_of(played.policy).stage_began == pytest.approx(begins)
