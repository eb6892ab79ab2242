"""How wide `best` trains, and what it keeps of its fleet, at the end of a run."""

from dataclasses import replace

import pytest

from benchmarks.compare.benchmark import Benchmark
from benchmarks.compare.case import Case, Played, Result, play, record
from benchmarks.compare.curves import Curve, Curves
from benchmarks.compare.pools import SpotTrace
from benchmarks.compare.speeds import Scaling
from cloudtune.engine.record.timeline import read
from cloudtune.model.catalog import pool
from cloudtune.model.plans import Limits
from cloudtune.strategies.offers import Offers
from cloudtune.strategies.worth import means_within
from tests.builders.curves import curves, small_benchmark

LINEAR = Scaling({1.0: 1.0, 2.0: 2.0, 4.0: 4.0})


def with_fleet(benchmark: Benchmark, case: Case) -> tuple[Result, list[int]]:
    """Return what a run came to, and how many instances billed after each change."""
    recorded = record(benchmark, case)
    sizes = dict(read(recorded.entries).fleet_sizes())  # by time, with all changes at it
    return recorded.result, list(sizes.values())


def test_the_last_trial_gets_gpus_that_reach_most() -> None:
    """Nothing is left to explore once the short trial has ended: the other gets four GPUs.

    5 s launch, 30 boot, 4 start: the first epochs, on one GPU each, end at 99. With what is left on
    one GPU the other trial would get to its third epoch, at 219. At 99 it stops, and 6 s later goes
    on with four: 15 s an epoch, the next would end at 240, the deadline.
    """
    short = Curve("c0", (0.001,), 1)
    long = Curve("c1", tuple(epoch / 100 for epoch in range(1, 28)), 27)
    made = small_benchmark(Curves("acc", "max", (short, long)), gpus=1, spread=0.0, scaling=LINEAR)
    made = replace(made, max_instances=4)
    result, sizes = with_fleet(made, Case("seer", Limits(240.0), sampler="random"))
    assert sizes == [4, 0]
    assert result.winner == "c1"
    ends = [point.at for point in result.path if point.trial == "c1"]
    assert ends[-1] > 219
    assert result.epochs >= 6


def test_the_end_has_fewer_instances_each_returned_once() -> None:
    """Exploring takes one and a half times the money by the second, the end half of it."""
    rising = [tuple(n / 100 + e / 1000 for e in range(1, 28)) for n in range(60)]
    table = Curves("acc", "max", tuple(Curve(f"c{n}", v, 27) for n, v in enumerate(rising)))
    made = small_benchmark(table, gpus=4, spread=0.0, scaling=LINEAR)
    result, sizes = with_fleet(made, Case("seer", Limits(3000.0, 30.0), sampler="random"))
    top = sizes.index(max(sizes))
    assert sizes[: top + 1] == sorted(sizes[: top + 1])
    assert sizes[top:] == sorted(sizes[top:], reverse=True)
    assert 0 < sizes[-2] < max(sizes)
    assert result.flaps == ()
    assert result.regret == pytest.approx(0.0, abs=0.011)


LIMITS = Limits(6000.0, 12.0)
SEER = Case("seer", LIMITS, sampler="random")


def on_spot_too(*there: int) -> Benchmark:
    """Return a benchmark with spot at a third of the price; room for n in each 2000 s."""
    made = small_benchmark(curves(60, 27), gpus=4, spread=0.0, scaling=LINEAR)
    (dear,) = made.rentables
    price = dear.offer.usd_per_hour / 3
    cheap = replace(dear, offer=replace(dear.offer, market="spot", usd_per_hour=price))
    starts = tuple(2000.0 * n for n in range(len(there)))
    trace = SpotTrace("t", starts, there, 2000.0 * len(there))
    return replace(made, rentables=(cheap, dear), traces={pool(cheap.offer): trace})


def play_seer(made: Benchmark, seed: int = 0) -> Played:
    recorded = record(made, replace(SEER, seed=seed))
    assert not recorded.result.violations
    assert not recorded.result.flaps
    return recorded


def seconds(result: Played, market: str, begin: float = 0.0, end: float = 1e9) -> float:
    """Return the instance-seconds of a market that were paid for between two times."""
    leases = [lease for lease in result.audit.leases if lease.offer.market == market]
    return sum(max(0.0, min(item.end, end) - max(item.begin, begin)) for item in leases)


def test_the_offer_is_chosen_by_an_epochs_whole_cost() -> None:
    """Packed, an epoch is half a GPU for 78 s, alone one for 60: 39 x $12 is below 60 x $9.60.

    A loss costs 30 s of boot, 4 of start and half an epoch: 64 s, twenty times an hour a third.
    """
    (packs,) = small_benchmark(gpus=4, spread=0.0, scaling=Scaling({0.5: 0.77, 1.0: 1.0})).rentables
    profile = replace(packs.profile, epoch={1.0: packs.profile.epoch[1.0]})
    alone = replace(packs, offer=replace(packs.offer, usd_per_hour=9.6), profile=profile)
    assert Offers([alone, packs], means_within(Limits()), until_limits=True).chosen is packs
    assert (
        Offers(
            [alone, replace(packs, profile=profile)], means_within(Limits()), until_limits=True
        ).chosen
        is alone
    )
    often = replace(alone.offer, market="spot", usd_per_hour=8.0, interruptions_per_hour=20.0)
    spot = replace(alone, offer=often)
    assert Offers([spot, alone], means_within(Limits()), until_limits=True).chosen is alone
    seldom = replace(spot, offer=replace(often, interruptions_per_hour=2.0))
    assert Offers([alone, seldom], means_within(Limits()), until_limits=True).chosen is seldom


def test_a_dry_pool_costs_as_much_as_on_demand() -> None:
    made = on_spot_too(0)
    alone = play(replace(made, rentables=made.rentables[1:], traces={}), SEER)
    recorded = play_seer(made)
    assert recorded.result.seconds > 0.9 * alone.seconds, "its money lasts as long"
    assert recorded.result.regret == pytest.approx(alone.regret, abs=0.01)
    assert seconds(recorded, "spot") == 0.0


def test_it_waits_for_spot_where_its_money_decides() -> None:
    """On demand pays for a third of the epochs, and there is time."""
    made = on_spot_too(0, 8)
    traces = [made.world(seed).pools[pool(made.rentables[0].offer)] for seed in range(50)]
    dry = [it.instances[0] == 0 and 500 < it.starts[1] < 1500 for it in traces]
    seed = dry.index(True)
    back = traces[seed].starts[1]
    result = play_seer(made, seed)
    assert seconds(result, "on-demand", end=back) == 0
    assert seconds(result, "spot", back, back + 600) > 0, "asked for again"
    late = seconds(result, "on-demand", back + 900, back + 1900)
    assert late < 0.2 * seconds(result, "spot", back + 900, back + 1900)
