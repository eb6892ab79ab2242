"""How much training the limits buy on an offer."""

from cloudtune.model.plans import Rentable
from cloudtune.strategies.worth import Means
from tests.builders import offer, profile

NARROW = Rentable(offer(1), profile({1: 100.0}), most=4)
WIDE = Rentable(offer(1), profile({1: 100.0, 4: 30.0}), most=4)


def test_wide_trials_count_where_narrow_ones_end_early() -> None:
    means = Means(seconds=1000.0, dollars=1000.0, last_epoch=20)
    assert means.buy(WIDE).epochs > means.buy(NARROW).epochs


def test_short_trainings_are_bought_at_the_cheapest_width() -> None:
    means = Means(seconds=1000.0, dollars=1000.0, last_epoch=2)
    assert means.buy(WIDE) == means.buy(NARROW)


def test_no_trial_is_wider_than_the_instances_that_money_pays_for() -> None:
    hour = NARROW.offer.usd_per_hour
    means = Means(seconds=3600.0, dollars=hour, last_epoch=1000)
    assert means.buy(WIDE) == means.buy(NARROW)
