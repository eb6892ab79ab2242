"""Spot pools that come and go in the simulated world, and the bound of whoever knows them."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cloudtune.catalog import SpotBehaviour, pool
from cloudtune.commands import Launch
from cloudtune.engine.omniscient import Source, bound, least_dollars, work_of
from cloudtune.engine.simulator import SimWorld
from cloudtune.engine.spot_pools import UNLIMITED, Piece, PoolTrace, drawn
from cloudtune.engine.timeline import read
from cloudtune.events import Event, InstanceGone, InstanceLaunched, LaunchFailed, NodeLost
from cloudtune.plans import Limits, Rentable
from tests.builders import LINEAR, SUBLINEAR, Setting, offer, play, profile

SPOT = offer(4, 9.0, name="s.4x", market="spot")
POOL = pool(SPOT)
DAY = PoolTrace("day", (0.0, 100.0, 250.0, 400.0), (2, 0, 3, 1), 500.0)


# ---- traces ----------------------------------------------------------------------------------


def test_a_trace_says_how_much_room_there_is_and_begins_anew_at_its_end() -> None:
    assert [DAY.room(at) for at in (0, 99, 100, 250, 399, 400, 499, 500, 601)] == [
        *(2, 2, 0, 3, 3, 1, 1, 2, 0)
    ]
    assert [tuple(p)[:3] for p in DAY.pieces(90.0, 520.0)] == [
        *((90, 100, 2), (100, 250, 0), (250, 400, 3), (400, 500, 1), (500, 520, 2))
    ]
    assert [DAY.below(2, at) for at in (0.0, 100.0, 260.0)] == [100.0, 400.0, 400.0]
    assert DAY.below(1, 420.0) == 600.0
    assert PoolTrace("full", (0.0, 5.0), (4, 9), 10.0).below(4, 0.0) == math.inf


@given(st.floats(0.0, 2000.0), st.floats(0.0, 1500.0))
def test_a_trace_from_a_later_second_is_the_same_trace(start: float, at: float) -> None:
    later = DAY.begun_at(start)
    assume(min(abs((start + at) % 500 - edge) for edge in (0, 100, 250, 400, 500)) > 1e-6)
    assert later.room(at) == DAY.room(start + at)
    assert later.length == DAY.length
    assert later.availability == pytest.approx(DAY.availability)


def test_what_is_dearer_than_one_pays_is_not_there() -> None:
    priced = replace(DAY, prices=(1.0, 1.0, 2.0, 0.5))
    assert priced.capped(1.5).instances == (2, 0, 0, 1)
    assert DAY.capped(0.1) == DAY
    assert priced.dollars(50.0, 300.0, 9.9) == pytest.approx((200.0 * 1.0 + 50.0 * 2.0) / 3600)
    assert DAY.dollars(0.0, 3600.0, 9.9) == pytest.approx(9.9)


def test_a_drawn_pool_behaves_as_it_is_said_to() -> None:
    """Over many of its own comings and goings, within what chance allows."""
    said = SpotBehaviour(losses_per_hour=0.5, availability=0.6)
    found = [drawn("p", said, random.Random(seed)) for seed in range(30)]
    traces = [trace for trace in found if trace is not None]
    assert len(traces) == 30
    mean = sum(trace.availability for trace in traces) / 30
    losses = sum(trace.losses for trace in traces) / 30
    assert mean == pytest.approx(0.6, abs=0.03)
    assert losses == pytest.approx(0.5, abs=0.04)
    assert sum(trace.room(0.0) > 0 for trace in traces) in range(10, 26)
    assert said.outage == pytest.approx(2 * 3600 * 0.4 / 0.6)
    assert drawn("p", SpotBehaviour(0.5), random.Random(0)) is None


# ---- in the world ----------------------------------------------------------------------------


def told(world: SimWorld, *launches: Launch) -> list[Event]:
    for each in launches:
        world.apply(each)
    found = []
    while (event := world.next_event()) is not None and event.at < 1000:
        found.append(event)
    return found


def test_a_pool_refuses_what_it_has_no_room_for_and_takes_back_the_last_that_came() -> None:
    rentable = Rentable(SPOT, profile(LINEAR, name="s.4x"), 9)
    world = SimWorld((rentable,), "score", lambda _c, _e: 0.5, pools={POOL: DAY})
    asked = [Launch(f"i{n}", "s.4x", "spot") for n in range(3)]
    found = told(world, *asked)
    assert [e.intent for e in found if isinstance(e, InstanceLaunched)] == ["i0", "i1"]
    (refused,) = [e for e in found if isinstance(e, LaunchFailed)]
    assert (refused.intent, refused.kind, refused.at) == ("i2", "capacity", 1.0)
    lost = [(e.intent, e.at) for e in found if isinstance(e, NodeLost)]
    gone = [(e.intent, e.gone_at) for e in found if isinstance(e, InstanceGone)]
    assert lost == gone == [("i0", 100.0), ("i1", 100.0)]


def test_only_what_is_too_much_goes_and_an_idle_pool_ends_the_world() -> None:
    fewer = PoolTrace("fewer", (0.0, 100.0, 200.0), (3, 1, 3), 300.0)
    rentable = Rentable(SPOT, profile(LINEAR, name="s.4x"), 9)
    world = SimWorld((rentable,), "score", lambda _c, _e: 0.5, pools={POOL: fewer})
    found = told(world, *(Launch(f"i{n}", "s.4x", "spot") for n in range(3)))
    assert [(e.intent, e.at) for e in found if isinstance(e, NodeLost)] == [
        *(("i1", 100.0), ("i2", 100.0))
    ]
    assert world.next_event() is None, "nothing is left to happen, though the trace goes on"


def test_a_pool_that_may_behave_in_several_ways_is_drawn_and_the_same_for_a_seed() -> None:
    known = Rentable(SPOT, profile(LINEAR, name="s.4x"), 9, (SpotBehaviour(0.9, 0.3),))
    curve = lambda _c, _e: 0.5  # noqa: E731
    pools = [SimWorld((known,), "score", curve, seed).pools[POOL] for seed in (1, 1, 2)]
    assert pools[0] == pools[1]
    assert pools[0] != pools[2]
    given_one = SimWorld((known,), "score", curve, 1, pools={POOL: DAY})
    assert given_one.pools[POOL] is DAY


# ---- the bound -------------------------------------------------------------------------------


@st.composite
def markets(draw: st.DrawFn) -> tuple[list[Source], int]:
    """Return up to three sources over four seconds, each second another price and number."""
    sources = []
    for _ in range(draw(st.integers(1, 3))):
        pieces = tuple(
            Piece(float(at), at + 1.0, draw(st.integers(0, 2)), 3600.0 * draw(st.integers(1, 6)))
            for at in range(draw(st.integers(4, 4)))
        )
        sources.append(Source(float(draw(st.integers(1, 3))), pieces))
    return sources, draw(st.integers(1, 3))


def brute_force(work: float, sources: list[Source], most: int) -> float:
    """Return what the work costs at the least with whole instances for whole seconds."""
    best = {0.0: 0.0}  # dollars by work done
    for second in range(4):
        counts = [range(source.pieces[second].instances + 1) for source in sources]
        ways = [way for way in itertools.product(*counts) if sum(way) <= most]
        done: dict[float, float] = {}
        for way, (before, paid) in itertools.product(ways, best.items()):
            pairs = list(zip(way, sources, strict=True))
            reached = before + sum(n * s.speed for n, s in pairs)
            cost = paid + sum(n * (s.pieces[second].usd_per_hour or 0) / 3600 for n, s in pairs)
            done[reached] = min(cost, done.get(reached, math.inf))
        best = done
    return min((cost for reached, cost in best.items() if reached >= work), default=math.inf)


@settings(max_examples=150, deadline=None)
@given(markets(), st.integers(0, 20))
def test_no_schedule_of_whole_instances_beats_the_bound(
    market: tuple[list[Source], int], work: int
) -> None:
    sources, most = market
    least, real = least_dollars(work, sources, most), brute_force(work, sources, most)
    assert least <= real + 1e-6
    if real < math.inf:
        assert least < math.inf
        halves = brute_force(work / 2, sources, most)  # the program is convex: no gap in between
        assert least >= 2 * least_dollars(work / 2, sources, most) - 1e-6
        assert halves <= real


def test_the_bound_is_what_the_cheapest_hours_come_to() -> None:
    """Three epochs of spot's at $1 fit; the fourth is bought on demand at $4, at double speed."""
    spot = Source(1.0, (Piece(0, 3, 1, 3600.0), Piece(3, 9, 0, 3600.0)))
    dear = Source(2.0, (Piece(0, 9, UNLIMITED, 4 * 3600.0),))
    assert least_dollars(4, [spot, dear], 2) == pytest.approx(3 + 2)
    assert least_dollars(3, [spot, dear], 2) == pytest.approx(3)
    assert least_dollars(18, [spot, dear], 1) == pytest.approx(36)
    assert least_dollars(19, [spot, dear], 1) == math.inf
    assert least_dollars(0, [spot], 1) == 0.0


# ---- runs ------------------------------------------------------------------------------------

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
def traces(draw: st.DrawFn) -> PoolTrace:
    gaps = draw(st.lists(st.floats(5.0, 400.0), min_size=1, max_size=8))
    starts = [0.0, *itertools.accumulate(gaps)]
    rooms = draw(st.lists(st.integers(0, 2), min_size=len(starts), max_size=len(starts)))
    return PoolTrace("drawn", tuple(starts), tuple(rooms), starts[-1] + 50.0)


@settings(max_examples=25, deadline=None)
@given(traces(), st.sampled_from(["sha", "seer", "asha"]), st.integers(1, 2), st.booleans())
def test_a_run_on_any_trace_ends_within_its_limits_and_never_pays_less_than_the_bound(
    trace: PoolTrace, by: str, most: int, spread: bool
) -> None:
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
