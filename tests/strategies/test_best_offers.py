"""`best` on several offers, on spot, and on profiles of few epochs."""

from collections.abc import Mapping

import pytest

from cloudtune.model.plans import Limits, Rentable
from tests.builders import (
    LINEAR,
    offer,
    profile,
    refused,
)
from tests.strategies.best_games import launched, own, seer

CHEAP = Rentable(offer(4, 20.0, name="c.4x"), profile(LINEAR, name="c.4x"), 2)


PACKED = own(30, limits=Limits(400.0, 8.0), profile=profile({0.5: 10.0, 1.0: 8.0}), price=30.0)


def test_the_cheaper_offer_is_taken_alone_while_available() -> None:
    played, _ = seer(own(30, limits=Limits(400.0, 4.0), others=(CHEAP,)))
    assert set(launched(played)) == {"c.4x"}


@pytest.mark.parametrize("other", [{1.0: 8.0, 2.0: 4.5}, {2.0: 5.0}])
@pytest.mark.parametrize("gpus", [2, 8])
def test_the_next_offer_may_have_other_widths(other: Mapping[float, float], gpus: int) -> None:
    dear = Rentable(offer(gpus, 20.0 * gpus, name="h"), profile(other, name="h"), 2)
    lost = refused(dict.fromkeys(("i000", "i001"), 1.0))
    played, took = seer(PACKED.but(others=(dear,), trouble=lost))
    assert {start.width for start in played.starts} <= set(other)
    assert took.trained > 0.4 * took.gpu_seconds
