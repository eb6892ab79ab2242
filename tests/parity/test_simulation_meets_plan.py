"""With no spread, a simulated run takes the plan's seconds and dollars: planner and policy agree.

They were written apart: the planner reckons with sums, the policy reacts to events.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cloudtune.errors import InfeasibleError
from cloudtune.plan import Limits
from cloudtune.planners.elastic import ElasticPlanner
from cloudtune.planners.static import StaticPlanner
from cloudtune.reporting import build
from cloudtune.trial import EndReason
from tests.builders import NODE_BOUNDARY, Setting, jobs, play, profile, shapes

if TYPE_CHECKING:
    from cloudtune.plan import Plan, Planner, StagePlan

PLANNERS: tuple[Planner, ...] = (ElasticPlanner(), StaticPlanner())
JOBS = jobs(most_epochs=12, epoch=st.floats(3.0, 30.0), release=st.floats(0.0, 3.0))


@st.composite
def plans(draw: st.DrawFn) -> tuple[Setting, Plan]:
    """Jobs with plans from the fastest to the cheapest."""
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


def has_luck(plan: Plan) -> bool:
    """Whether a run may be ahead of its plan: some survivor may not have to move or to wait."""

    def lucky(before: StagePlan, after: StagePlan) -> bool:
        may_stay = before.width == after.width and after.overhead > 0
        return may_stay or after.instances > before.instances

    return any(lucky(*pair) for pair in itertools.pairwise(plan.stages))


def may_owe(plan: Plan) -> float:
    """Return what a run may cost beyond its plan: the plan gives the oldest instances back.

    The run gives back those with the fewest survivors. Where a fleet has grown, one of them may be
    so young that it owes more of its minimum charge than the oldest would have.
    """
    pairs = itertools.pairwise(stage.instances for stage in plan.stages)
    younger = sum(max(0, after - before) for before, after in pairs)
    return younger * plan.offer.charge(0.0)


@settings(deadline=None, max_examples=150)
@given(planned=plans())
def test_seconds_and_dollars(planned: tuple[Setting, Plan]) -> None:
    setting, plan = planned
    played = play(setting, plan)
    assert played.policy.ending is EndReason.DONE
    if has_luck(plan):
        assert played.seconds <= plan.estimate.seconds + 1e-6
        assert played.dollars <= plan.estimate.dollars + may_owe(plan) + 1e-6
    else:
        assert played.seconds == pytest.approx(plan.estimate.seconds, abs=1e-6)
        assert played.dollars == pytest.approx(plan.estimate.dollars, abs=1e-6)


@settings(deadline=None, max_examples=100)
@given(planned=plans())
def test_stage_by_stage(planned: tuple[Setting, Plan]) -> None:
    setting, plan = planned
    assume(not has_luck(plan))
    assume(setting.profile.release.mean > 0.001)  # else a return falls into two stages
    told = build(setting.job(plan), play(setting, plan).entries)
    assert told.seconds == pytest.approx(plan.estimate.seconds, abs=1e-6)
    assert told.dollars == pytest.approx(plan.estimate.dollars, abs=1e-6)
    for stage in told.stages:
        until_gone = setting.profile.release.mean if stage is told.stages[-1] else 0.0
        assert stage.seconds == pytest.approx(stage.plan.seconds + until_gone, abs=1e-6)
        assert stage.dollars == pytest.approx(stage.plan.dollars, abs=1e-6)


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
    assert played.policy.stage_began == pytest.approx([stage.begin for stage in plan.stages])
