"""SEER on several offers, on spot, and on profiles of few epochs."""

from collections.abc import Mapping

import pytest

from cloudtune.model.plans import Limits, Rentable
from tests.builders import (
    LINEAR,
    offer,
    profile,
    refused,
)
from tests.strategies.seer_games import launched, own, seer

CHEAP = Rentable(offer(4, 20.0, name="c.4x"), profile(LINEAR, name="c.4x"), 2)


PACKED = own(30, limits=Limits(400.0, 8.0), profile=profile({0.5: 10.0, 1.0: 8.0}), price=30.0)


def test_the_cheaper_offer_is_taken_alone_while_available() -> None:
    played, _ = seer(own(30, limits=Limits(400.0, 4.0), others=(CHEAP,)))
    assert set(launched(played)) == {"c.4x"}


def test_the_next_offer_is_taken_after_a_final_refusal() -> None:
    lost = refused(dict.fromkeys(("i000", "i001"), 0.5))
    game = own(30, limits=Limits(400.0, 4.0), others=(CHEAP,), trouble=lost)
    played, _ = seer(game)
    assert launched(played) == {"c.4x": 2, "g.4x": 1}  # dearer: the same money pays for one
    assert max(played.epochs.values()) > 9


@pytest.mark.parametrize("other", [{1.0: 8.0, 2.0: 4.5}, {2.0: 5.0}])
@pytest.mark.parametrize("gpus", [2, 8])
def test_the_next_offer_may_have_other_widths(other: Mapping[float, float], gpus: int) -> None:
    dear = Rentable(offer(gpus, 20.0 * gpus, name="h"), profile(other, name="h"), 2)
    lost = refused(dict.fromkeys(("i000", "i001"), 1.0))
    played, took = seer(PACKED.but(others=(dear,), trouble=lost))
    assert {start.width for start in played.starts} <= set(other)
    assert took.trained > 0.4 * took.gpu_seconds


def test_a_spot_offer_that_is_taken_back_loses_no_trial() -> None:
    spot = offer(4, 12.0, name="s.4x", market="spot", interruptions_per_hour=15.0)
    rentable = Rentable(spot, profile(LINEAR, name="s.4x"), 2)
    game = own(20, others=(rentable,), limits=Limits(1500.0, 8.0), saves_every=2)
    played, took = seer(game)
    assert set(launched(played)) == {"s.4x"}
    assert any(trial.taken or trial.sessions > 1 for trial in played.policy.trials.values())
    assert not played.sampler.failed
    assert took.violations(game.limits) == ()
