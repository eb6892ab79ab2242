import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.plans import Estimate, Limits
from cloudtune.planners.dp.bounds import Staircase, fluid, gap_to, minimum
from cloudtune.planners.dp.search import Search
from tests.builders import LINEAR, Setting, profile
from tests.planners.brute_force import every_plan
from tests.planners.test_exact import small_jobs

points = st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1, max_size=40)


def stairs(corners: list[tuple[float, float]]) -> Staircase:
    return Staircase.of(*zip(*corners, strict=True))


@given(corners=points, few=st.integers(1, 10))
def test_thinned_stairs_lie_nowhere_above(corners: list[tuple[float, float]], few: int) -> None:
    whole = stairs(corners)
    thin = whole.thin(few)
    assert len(thin.seconds) <= max(few, 1)
    for time in whole.seconds:
        assert thin.dollars_within(time) <= whole.dollars_within(time)


@settings(deadline=None, max_examples=40)
@given(setting=small_jobs() | small_jobs(mix=2))
def test_no_plan_there_is_beats_the_bounds(setting: Setting) -> None:
    request = setting.request()
    every = list(every_plan(request, setting.mix))
    least, tight = fluid(request), Search(request).least
    for plan in every:
        for bound in (least, tight):
            assert bound.dollars_within(plan.seconds) <= plan.dollars * (1 + 1e-9)


def test_a_gap_by_hand() -> None:
    """One trial, 40 epochs of 2 s on the 4 GPUs of one instance, at a cent a second.

    At the least: 1 s launch, 20 boot, 4 start, 80 training, 2 release; all but the launch billed.
    """
    request = Setting(1, 40, 40, 2, profile=profile(LINEAR), max_instances=1).request()
    least = fluid(request)
    assert least.dollars_within(math.inf) == pytest.approx(1.06)
    assert least.seconds.min() == pytest.approx(107.0)
    bound = minimum(least, request)
    assert gap_to(bound, request, Estimate(107.0, 1.06)) == pytest.approx(0.0, abs=1e-9)
    assert gap_to(bound, request, Estimate(107.0, 1.59)) == pytest.approx(0.5)


def test_a_bound_that_admits_nothing_gives_no_gap() -> None:
    request = Setting(profile=profile(LINEAR)).request(Limits(deadline=0.1))
    bound = minimum(fluid(request), request)
    assert bound == math.inf
    assert gap_to(bound, request, Estimate(100.0, 1.0)) == 0.0
