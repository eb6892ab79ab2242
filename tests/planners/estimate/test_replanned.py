"""What a forecast takes a run to do that goes otherwise than its profile says."""

from dataclasses import replace

from cloudtune.model.plans import Limits, Rentable, Stage
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.estimate.replanned import _replanned
from cloudtune.planners.exact import ExactPlanner
from tests.builders import offer, profile


def test_instances_that_have_paid_their_minimum_by_the_first_rung_are_given_back() -> None:
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
    anew = _replanned(request, plan, 1.2)
    assert anew is not None
    assert [way[0].instances for way in anew.choices] == [4, 1]
