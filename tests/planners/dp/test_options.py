"""Which offers are looked at: none that could be in the best plan may be left out."""

import pytest

from cloudtune.model.plans import Limits, Rentable
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.static import StaticPlanner
from tests.builders import Setting, offer, profile
from tests.planners.brute_force import best

USUAL = {"launch": 1.0, "boot": 20.0, "start": 4.0, "resize": 6.0, "release": 2.0}


@pytest.mark.parametrize("planner", [ExactPlanner(), StaticPlanner()], ids=lambda each: each.name)
@pytest.mark.parametrize("slow", USUAL)
def test_dearer_offers_stay_if_faster(slow: str, planner: ExactPlanner | StaticPlanner) -> None:
    """Two trials take turns on one GPU, the better one goes on: one epoch each, of 8 s.

    1 launch + 20 boot + 2 x (4 start + 8) + 6 resize + 8 + 2 release = 61 s, of which the launch
    isn't billed: 60 cents. Half as dear, but 10 s slower in one thing, is at least 71 s.
    """
    late = {**USUAL, slow: USUAL[slow] + 10.0}
    quick = Rentable(offer(1, 36.0, 0.0, name="g.1x"), profile({1.0: 8.0}, **USUAL, name="g.1x"), 1)
    cheap = Rentable(offer(1, 18.0, 0.0, name="c.1x"), profile({1.0: 8.0}, **late, name="c.1x"), 1)
    job = Setting(
        2, 1, 2, 2, offer=quick.offer, profile=quick.profile, max_instances=1, others=(cheap,)
    )
    request = job.request(Limits(65.0))
    by_hand = best(request)
    assert by_hand is not None
    assert by_hand.dollars == pytest.approx(0.60)
    plan = planner.plan(request)
    assert plan.estimate.seconds == pytest.approx(61.0)
    assert plan.estimate.dollars == pytest.approx(0.60)
    at_ease = planner.plan(job.request())
    assert {offer.instance_type.name for offer in at_ease.offers} == {"c.1x"}
