"""Recorded spot pools: traces from tables, runs played on them, and the omniscient bound."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import spot
from benchmarks.compare.omniscient import Source, bound, least_dollars, work_of
from benchmarks.compare.pools import Priced, SpotTrace
from benchmarks.compare.replay import Replayed
from benchmarks.compare.traces import matched, read_traces
from cloudtune.engine.record.timeline import read
from cloudtune.engine.spot_pools import UNLIMITED
from cloudtune.errors import UsageError
from cloudtune.forecast.make import Planned
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import pool
from cloudtune.model.plans import Limits, Rentable
from tests.builders import SUBLINEAR, Setting, offer, play, profile

RUNS = (
    "kind,zone,gpu,gpus,gap_seconds,from_second,available\n"
    "availability,us-west-2a,v100,1,600,0,1\n"
    "availability,us-west-2a,v100,1,600,1800,0\n"
    "availability,us-west-2a,v100,1,600,2400,1\n"
    "availability,us-west-2a,v100,1,600,7200,end\n"
    "availability,us-west-2b,v100,1,600,0,0\n"
    "availability,us-west-2b,v100,1,600,600,1\n"
)
GROUP = (
    "trace,time,InService,Pending,Terminating,Total\n"
    "a,2021-09-14 05:18:00,0.0,0.0,16.0,16.0\n"
    "a,2021-09-14 05:19:00,2.0,8.0,16.0,24.0\n"
    "a,2021-09-14 05:21:00,17.0,0.0,16.0,33.0\n"
)
NODES = (
    "kind,time,count\nadded,2021-07-26T18:42:00Z,3\n"
    "node-trace,2021-07-26T18:42:00Z,3\nnode-trace,2021-07-26 18:52:00,7\n"
)


def table(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_the_formats_of_public_traces_are_read(tmp_path: Path) -> None:
    west, other = (named.trace for named in read_traces(table(tmp_path, RUNS)))
    assert (west.starts, west.instances, west.length) == ((0, 1800, 2400), (1, 0, 1), 7200)
    assert (other.starts, other.length) == ((0, 600), 1200), "the last row lasts as long as others"
    assert west.availability == pytest.approx(6600 / 7200)
    assert west.losses == pytest.approx(3600 / 6600)
    (group,) = read_traces(table(tmp_path, GROUP))
    assert (group.trace.starts, group.trace.instances) == ((0, 60, 180), (0, 2, 17))
    (nodes,) = read_traces(table(tmp_path, NODES), ["kind=node-trace"])
    assert (nodes.trace.starts, nodes.trace.instances) == ((0, 600), (3, 7))


def test_spot_trace_fits_its_offers(tmp_path: Path) -> None:
    path = table(tmp_path, RUNS)
    zones = ("us-west-2a", "us-west-2b")
    offers = pricing.catalog("us-east-1", ("spot",), zones).matching(["p3.2xlarge"], ("spot",))
    by_offer = matched(read_traces(path), offers, path)
    lengths = {offer.zone: trace.length for offer, trace in by_offer.items()}
    assert lengths == {"us-west-2a": 7200.0, "us-west-2b": 1200.0}
    (anywhere,) = pricing.catalog("us-east-1", ("spot",)).matching(["p3.2xlarge"], ("spot",))
    with pytest.raises(UsageError, match=r"several traces for p3\.2xlarge spot; pick one of these"):
        matched(read_traces(path), [anywhere], path)
    one = read_traces(path, ["zone=us-west-2b"])
    assert matched(one, [anywhere], path)[anywhere].length == 1200.0
    with pytest.raises(UsageError, match=r"no row has zone=nowhere .*; zone is us-west-2a, us-w"):
        read_traces(path, ["zone=nowhere"])
    with pytest.raises(UsageError, match="nothing is rented on spot"):
        matched(one, [], path)


def play_digits(
    *rooms: tuple[float, int], most: int = 1, market: str = "any"
) -> tuple[Planned, Replayed]:
    """Return the plan of the digits' job, and a run of it; the pool has room from each second."""
    times, counts = zip(*rooms, strict=True)
    trace = SpotTrace("t", times, counts, 900_000.0)
    words = f". --market {market} --deadline 6 --most {most}".split()
    plan = spot.planned(spot.options().parse_args(words), "sha", trace)
    (run,) = spot.played(plan, trace, 1)
    assert not run.violations
    assert 0 < run.bound <= run.dollars
    return plan, run


def test_bound_is_the_cheapest_hours() -> None:
    """Three epochs of spot's at $1 fit; the fourth is bought on demand at $4, at double speed."""
    spot = Source(1.0, (Priced(0, 3, 1, 3600.0), Priced(3, 9, 0, 3600.0)))
    dear = Source(2.0, (Priced(0, 9, UNLIMITED, 4 * 3600.0),))
    assert least_dollars(4, [spot, dear], 2) == pytest.approx(3 + 2)
    assert least_dollars(3, [spot, dear], 2) == pytest.approx(3)
    assert least_dollars(18, [spot, dear], 1) == pytest.approx(36)
    assert least_dollars(19, [spot, dear], 1) == math.inf
    assert least_dollars(0, [spot], 1) == 0.0


SPOT = offer(4, 9.0, name="s.4x", market="spot")
POOL = pool(SPOT)
BOTH = Setting(
    trials=4,
    max_epochs=16,
    offer=SPOT,
    profile=profile(SUBLINEAR, name="s.4x"),
    others=(Rentable(offer(4, 36.0), profile(SUBLINEAR), 8),),
    max_instances=2,
    limits=Limits(600.0, 20.0),
)


@st.composite
def traces(draw: st.DrawFn) -> SpotTrace:
    gaps = draw(st.lists(st.floats(5.0, 400.0), min_size=1, max_size=8))
    starts = [0.0, *itertools.accumulate(gaps)]
    rooms = draw(st.lists(st.integers(0, 2), min_size=len(starts), max_size=len(starts)))
    return SpotTrace("drawn", tuple(starts), tuple(rooms), starts[-1] + 50.0)


@settings(max_examples=25, deadline=None)
@given(traces(), st.sampled_from(["sha", "seer", "asha"]), st.integers(1, 2), st.booleans())
def test_limits_and_bound_are_kept(trace: SpotTrace, by: str, most: int, spread: bool) -> None:
    own = profile(SUBLINEAR, name="s.4x", spread=0.05 * spread)
    job = BOTH.but(by=by, max_instances=most, pools={POOL: trace}, profile=own)
    played = play(job)  # which fails where it stands still, or flaps
    seconds, dollars = played.bill()
    assert seconds <= 600.0 + 1e-6
    assert dollars <= 20.0 + 1e-6
    known = read(played.entries)
    real = played.world.rentables
    work = work_of(known, real)
    least = bound(work, real, {POOL: trace}, most=most, until=600.0)
    assert least <= dollars + 1e-9
