"""SEER's planning question: how many trials the limits pay for, the best of them in full."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.plans import Allowance, Limits, Plan, Remaining, Rentable
from cloudtune.model.trial import EndReason
from cloudtune.papers.seer_barrier import SeerBarrier, binding
from cloudtune.planners.base import InfeasibleError, PlanRequest
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import Ask, Explored, explore
from cloudtune.planners.reserve import Reserve
from tests.builders import LINEAR, Setting, jobs, offer, profile


def asking(setting: Setting, limits: Limits) -> Ask:
    schedule = SeerBarrier(99, setting.min_epochs, setting.max_epochs, setting.eta, "max")
    request = replace(setting.request(limits), mix=1)

    def ask(trials: int, epochs: int) -> PlanRequest:
        return replace(request, work=schedule.rest(trials, 0, epochs))

    return ask


def explore_setting(setting: Setting, limits: Limits, most: int = 40) -> Explored:
    ask = asking(setting, limits)
    return explore(ExactPlanner(), ask, max_trials=most, max_epochs=setting.max_epochs)


def find_plan(request: PlanRequest) -> Plan | None:
    try:
        return ExactPlanner().plan(request)
    except InfeasibleError:
        return None


def test_nothing_rentable_blames_offers() -> None:
    with pytest.raises(InfeasibleError) as caught:
        explore_setting(Setting(max_instances=1, profile=profile({8.0: 3.0})), Limits(1e6, 1e6))
    assert binding(caught.value, Allowance(1e6, 1e6)) is EndReason.NO_CAPACITY


@settings(max_examples=20)
@given(
    setting=jobs(max_epochs=6, epoch=st.floats(0.5, 20.0), release=st.floats(0.0, 5.0)),
    deadline=st.floats(30.0, 900.0),
    budget=st.floats(0.3, 20.0),
)
def test_it_finds_what_trying_all_finds(setting: Setting, deadline: float, budget: float) -> None:
    limits = Limits(deadline, budget)
    ask = asking(setting, limits)
    try:
        result = explore(ExactPlanner(), ask, max_trials=9, max_epochs=setting.max_epochs)
    except InfeasibleError:
        assert find_plan(ask(1, 1)) is None
        return
    assert result.plan == find_plan(ask(result.trials, result.epochs))
    epochs = setting.max_epochs
    in_full = [n for n in range(1, 10) if find_plan(ask(n, epochs)) is not None]
    if in_full:
        assert (result.trials, result.epochs) == (max(in_full), epochs)
    else:
        as_far = [n for n in range(1, epochs) if find_plan(ask(1, n)) is not None]
        assert (result.trials, result.epochs) == (1, max(as_far))


def test_a_reserve_is_kept_of_both_limits() -> None:
    reserve = Reserve(seconds=8.0, share=0.1)
    assert reserve.allowance(Remaining(100.0, 50.0)) == Allowance(90.0, 45.0)
    assert reserve.allowance(Remaining(None, None)) == Allowance()
    assert reserve.allowance(Remaining(-3.0, -1.0)) == Allowance(0.0, 0.0)
    late = reserve.returned_late(Rentable(offer(), profile(LINEAR, release=2.0), 3))
    assert late.profile.release.mean == 8.0
    slow = reserve.returned_late(Rentable(offer(), profile(LINEAR, release=20.0), 3))
    assert slow.profile.release.mean == 20.0
