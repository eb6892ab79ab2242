"""The most trials that the limits pay for, by the planner's own word."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cloudtune.model.plans import Limits, Stage
from cloudtune.planners.base import InfeasibleError
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.explore import Explored, explore
from cloudtune.strategies.successive_halving import SuccessiveHalving
from tests.builders import NODE_BOUNDARY, SUBLINEAR, Setting, profile


def work(trials: int, epochs: int) -> Sequence[Stage]:
    return SuccessiveHalving(trials, min(2, epochs), epochs, 2, "max").stages()


def explore_setting(setting: Setting, limits: Limits, most: int = 40) -> Explored:
    request = setting.request(limits)
    return explore(
        ExactPlanner(),
        lambda trials, epochs: replace(request, work=tuple(work(trials, epochs))),
        max_trials=most,
        max_epochs=16,
    )


def feasible(setting: Setting, limits: Limits, trials: int) -> bool:
    job = setting.but(trials=trials, min_epochs=2, max_epochs=16)
    try:
        job.plan(limits=limits)
    except InfeasibleError:
        return False
    return True


@pytest.mark.parametrize("curve", [SUBLINEAR, NODE_BOUNDARY], ids=["sublinear", "boundary"])
@pytest.mark.parametrize(("deadline", "budget"), [(220.0, 6.0), (180.0, 4.0), (400.0, 12.0)])
def test_one_more_would_not_fit(curve: dict[float, float], deadline: float, budget: float) -> None:
    setting, limits = Setting(profile=profile(curve), max_instances=4), Limits(deadline, budget)
    result = explore_setting(setting, limits)
    assert result.epochs == 16
    assert setting.request(limits).allowance.admit(result.plan.estimate)
    assert result.plan.stages[0].stage.trials == result.trials
    fits = [feasible(setting, limits, n) for n in range(1, 41)]
    assert fits == [n <= result.trials for n in range(1, 41)], "a search by halves needs this order"


def test_more_time_or_money_never_means_fewer_trials() -> None:
    setting = Setting(profile=profile(SUBLINEAR), max_instances=4)
    by_money = [explore_setting(setting, Limits(300.0, 3.0 + n)).trials for n in range(6)]
    by_time = [explore_setting(setting, Limits(160.0 + 30 * n, 6.0)).trials for n in range(6)]
    assert by_money == sorted(by_money)
    assert by_time == sorted(by_time)
    assert by_money[0] < by_money[-1]
