"""What a forecast takes a run to do that goes otherwise than its profile says."""

from dataclasses import replace

from cloudtune.model.plans import Limits, Rentable, Stage
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.estimate.replanned import _replanned, reacting_draws
from cloudtune.planners.estimate.rollout import sample
from cloudtune.planners.exact import ExactPlanner
from tests.builders import offer, profile


def test_instances_past_their_minimum_at_the_first_rung_go() -> None:
    """Four at a tenth of a cent a second, ten minutes at least; the last stage is a trial's.

    Its first rung takes 480 s of training where 400 were planned. The last five epochs end 120 s
    later, on one instance, which is past its minimum by then; the others go at once.
    """
    speeds = profile({1.0: 20.0}, name="a", launch=20.0, boot=10.0)
    rentable = Rentable(offer(1, 3.6, 600.0, name="a"), speeds, 8)
    request = PlanRequest((Stage(8, 0, 10), Stage(1, 10, 15)), (rentable,), Limits(), 8)
    fast = ExactPlanner().plan(replace(request, objective="time")).estimate.seconds
    cheap = ExactPlanner().plan(request).estimate.dollars
    request = replace(request, limits=Limits(2.1 * fast, 1.95 * cheap))
    plan = ExactPlanner().plan(request)
    assert [way[0].instances for way in plan.choices] == [4, 3], "what is paid for is kept"
    replanned = _replanned(request, plan, 1.2)
    assert replanned is not None
    assert [way[0].instances for way in replanned.choices] == [4, 1]


def test_slow_runs_of_three_stages_take_more_instances() -> None:
    speeds = profile({1.0: 20.0, 2.0: 11.0}, name="a", error=0.2)
    rentable = Rentable(offer(4, 3.6, name="a"), speeds, 8)
    work = (Stage(8, 0, 2), Stage(4, 2, 6), Stage(4, 6, 14))
    request = PlanRequest(work, (rentable,), Limits(), 8)
    fast = ExactPlanner().plan(replace(request, objective="time")).estimate.seconds
    plan = ExactPlanner().plan(replace(request, limits=Limits(1.6 * fast)))
    deadline = 1.1 * plan.estimate.seconds
    request = replace(request, limits=Limits(deadline))
    drawn = sample(request, plan, samples=200, seed=0)
    reacting = reacting_draws(request, plan, samples=200, seed=0)
    late = drawn.seconds > deadline
    assert 20 < late.sum() < 180
    assert reacting.seconds[late].max() < deadline
