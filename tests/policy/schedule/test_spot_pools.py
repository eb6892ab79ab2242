"""A run on several spot pools, which are refused, away, and back."""

import random
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

from cloudtune.engine.spot_pools import PoolTrace
from cloudtune.model.catalog import Offer, pool
from cloudtune.model.plans import Rentable
from cloudtune.model.trial import EndReason
from tests.builders import Played, Setting, offer, play, profile
from tests.policy.schedule.spot_jobs import (
    DEAR,
    FOREVER,
    SPOT,
    job,
    markets,
    on,
    plan_changes,
    rentable,
)

FIRST = replace(SPOT, zone="a")


NEAR = replace(SPOT, zone="b", usd_per_hour=0.66)


TYPE = offer(1, 0.66, name="h.1x", market="spot")


GONE = ((0.0, 8), (1500.0, 0))


def on_both(
    setting: Setting, other: Offer, first: tuple[tuple[float, int], ...], *rooms: tuple[float, int]
) -> Played:
    """Return the run for whom `first` is in zone a, and another pool has room as is said."""
    most = setting.max_instances
    speed = replace(setting.profile, instance_type=other.instance_type.name)
    other_one = Rentable(other, speed, most)
    pools = {}
    for item, changes in ((FIRST, first), (other, rooms)):
        starts, counts = zip(*changes, strict=True)
        pools[pool(item)] = PoolTrace("made up", starts, counts, FOREVER)
    others = (other_one, *setting.others)
    return play(setting.but(offer=FIRST, others=others, pools=pools))


def offers(played: Played) -> list[Offer]:
    launched = [(r.launched_at, n, r.offer) for n, r in enumerate(played.policy.fleet)]
    return [offer for at, _, offer in sorted(item for item in launched if item[0] is not None)]


def asked_for(played: Played, offer: Offer) -> list[float]:
    return [rented.requested_at for rented in played.policy.fleet if rented.offer == offer]


@pytest.mark.parametrize("other", [NEAR, TYPE])
@pytest.mark.parametrize("most", [1, 2])
def test_the_next_pool_is_taken_at_once_and_kept(other: Offer, most: int) -> None:
    """Waiting for the one that is away took all the time there was to lose, for a tenth."""
    played = on_both(job(2 * 3600.0, most), other, ((0.0, 0),), (0.0, 8))
    assert offers(played) == [other]
    assert asked_for(played, other) == [20.0], "as soon as the first has answered"
    played = on_both(job(2 * 3600.0, most), other, (*GONE, (2200.0, 8)), (0.0, 8))
    assert offers(played) == [FIRST, other]
    assert len(asked_for(played, FIRST)) == 2, "it isn't asked again, though it is there again"
    assert played.policy.ending is EndReason.DONE


def test_a_pool_near_on_demands_price_is_not_waited_for() -> None:
    """The first comes back within the hour, and is waited for, as other spot saves little."""
    dear = replace(NEAR, usd_per_hour=2.4)
    played = on_both(job(2 * 3600.0), dear, (*GONE, (3000.0, 8)), (0.0, 8))
    assert offers(played) == [FIRST, FIRST]
    half = replace(NEAR, usd_per_hour=1.5)
    assert offers(on_both(job(2 * 3600.0), half, (*GONE, (3000.0, 8)), (0.0, 8))) == [FIRST, half]


@pytest.mark.parametrize("most", [1, 2])
def test_pools_that_are_away_are_asked_in_turn(most: int) -> None:
    played = on_both(job(2 * 3600.0, most), NEAR, GONE, (0.0, 0))
    assert played.policy.ending is EndReason.DONE
    assert offers(played) == [FIRST, DEAR]
    assert played.bill()[0] <= 7200.0
    asked = [r for r in asked_for(played, NEAR) if r < 3500.0]
    gaps = [after - before for before, after in pairwise(asked)]
    assert asked[0] == 1520.0
    assert all(180.0 <= gap <= 260.0 for gap in gaps), "a pause, and the other's answer"
    assert len(plan_changes(played)) <= 5
    back = on_both(job(2 * 3600.0, most), NEAR, GONE, (0.0, 0), (2400.0, 8))
    assert offers(back) == [FIRST, NEAR]


def test_spot_that_trains_stays_though_another_pool_returns() -> None:
    """Epochs take 1.4 times as long as planned there: the rest is looked at, and replanned."""
    other = replace(NEAR, usd_per_hour=1.2)
    setting = job(3 * 3600.0)
    slow = profile({1.0: 84.0}, name="g.1x", launch=20.0, boot=90.0, start=10.0, resize=10.0)
    real = (*(Rentable(item, slow, 1) for item in (FIRST, other)), *setting.others)
    played = on_both(setting.but(real=real), other, ((0.0, 0),), (0.0, 8))
    assert offers(played) == [other]
    assert asked_for(played, FIRST) == [0.0]


def test_spot_alone_goes_over_to_the_next_pool_too() -> None:
    setting = job(2 * 3600.0).but(others=())
    assert offers(on_both(setting, NEAR, GONE, (0.0, 8))) == [FIRST, NEAR]


@pytest.mark.parametrize("other", [NEAR, TYPE])
def test_elastic_runs_try_the_next_pool_before_on_demand(other: Offer) -> None:
    setting = job(2 * 3600.0, 4).but(by="seer", trials=16)
    played = on_both(setting, other, ((0.0, 8), (700.0, 0)), (0.0, 8))
    assert set(offers(played)) == {FIRST, other}
    assert played.policy.ending is EndReason.DONE
    asked = asked_for(played, other)
    assert min(asked) == 720.0


@pytest.mark.parametrize("by", ["sha", "seer"])
@pytest.mark.parametrize("seed", range(5))
def test_pools_with_their_own_ways_keep_the_limits(by: str, seed: int) -> None:
    """`play` fails where the fleet flaps."""
    drawn = random.Random(seed)

    def changes() -> tuple[tuple[float, int], ...]:
        spans = [drawn.expovariate(1 / 900.0) + 1.0 for _ in range(30)]
        times = [0.0, *accumulate(spans)]
        return tuple((at, (number + seed) % 2 * 8) for number, at in enumerate(times))

    setting = job(2 * 3600.0, 1 + seed % 3, budget=10.0).but(by=by)
    played = on_both(setting, (NEAR, TYPE)[seed % 2], changes(), *changes())
    assert played.policy.ending is EndReason.DONE
    seconds, dollars = played.bill()
    assert seconds <= 7200.0
    assert dollars <= 10.0


@pytest.mark.parametrize(("by", "within"), [("random", 150.0), ("asha", 150.0), ("seer", 300.0)])
def test_elastic_runs_return_to_spot_and_keep_on_demand_meanwhile(by: str, within: float) -> None:
    """The cap has room for both; what has trained two epochs on demand by then moves."""
    both = (rentable(DEAR, 8),)
    setting = job(2 * 3600.0, budget=30.0).but(by=by, trials=4, max_instances=8, others=both)
    played = on(setting, (0.0, 0), (600.0, 8))
    assert played.policy.ending is EndReason.DONE
    came = markets(played)
    assert came[0][1] == "on-demand"
    back = min(at for at, market in came if market == "spot")
    assert 600.0 <= back < 600.0 + 180.0 + 60.0
    dear = [r.released_at for r in played.policy.fleet if r.offer == DEAR and r.launched_at]
    assert max(dear) >= back + 90.0, "not before the other has booted"
    assert max(dear) < back + 90.0 + 150.0, "and then with their next epochs"
    spot = [r for r in played.policy.fleet if r.offer == SPOT and r.launched_at]
    assert len({r.launched_at for r in spot}) == 1, "they are asked for once"


def test_near_its_end_an_elastic_run_stays_where_it_is() -> None:
    both = (rentable(DEAR, 8),)
    setting = job(1800.0).but(by="random", trials=4, max_instances=8, others=both)
    played = on(setting, (0.0, 0), (600.0, 8))
    assert {market for _, market in markets(played)} == {"on-demand"}
