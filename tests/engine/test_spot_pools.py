"""Spot pools that come and go in the simulated world."""

import math
import random
from dataclasses import asdict

import pytest

from benchmarks.compare.pools import SpotTrace
from cloudtune.engine.simulator import SimWorld
from cloudtune.engine.spot_pools import PoolTrace, draw_pool
from cloudtune.model.catalog import SpotBehaviour, pool
from cloudtune.model.commands import Launch
from cloudtune.model.events import Event, InstanceGone, InstanceLaunched, LaunchFailed, NodeLost
from cloudtune.model.plans import Rentable
from tests.builders import LINEAR, offer, profile

SPOT = offer(4, 9.0, name="s.4x", market="spot")
POOL = pool(SPOT)
DAY = PoolTrace("day", (0.0, 100.0, 250.0, 400.0), (2, 0, 3, 1), 500.0)


def test_a_trace_bounds_the_room_and_repeats() -> None:
    assert [DAY.room(at) for at in (0, 99, 100, 250, 399, 400, 499, 500, 601)] == [
        *(2, 2, 0, 3, 3, 1, 1, 2, 0)
    ]
    assert [tuple(p)[:3] for p in DAY.pieces(90.0, 520.0)] == [
        *((90, 100, 2), (100, 250, 0), (250, 400, 3), (400, 500, 1), (500, 520, 2))
    ]
    assert [DAY.below(2, at) for at in (0.0, 100.0, 260.0)] == [100.0, 400.0, 400.0]
    assert DAY.below(1, 420.0) == 600.0
    assert PoolTrace("full", (0.0, 5.0), (4, 9), 10.0).below(4, 0.0) == math.inf


def test_a_drawn_pool_behaves_as_it_is_said_to() -> None:
    """Over many of its own comings and goings, within what chance allows."""
    said = SpotBehaviour(losses_per_hour=0.5, availability=0.6)
    result = [draw_pool("p", said, random.Random(seed)) for seed in range(30)]
    traces = [SpotTrace(**asdict(trace)) for trace in result if trace is not None]
    assert len(traces) == 30
    mean = sum(trace.availability for trace in traces) / 30
    losses = sum(trace.losses for trace in traces) / 30
    assert mean == pytest.approx(0.6, abs=0.03)
    assert losses == pytest.approx(0.5, abs=0.04)
    assert sum(trace.room(0.0) > 0 for trace in traces) in range(10, 26)
    assert said.outage == pytest.approx(2 * 3600 * 0.4 / 0.6)
    assert draw_pool("p", SpotBehaviour(0.5), random.Random(0)) is None


def events_of(world: SimWorld, *launches: Launch) -> list[Event]:
    for launch in launches:
        world.apply(launch)
    result = []
    while (event := world.next_event()) is not None and event.at < 1000:
        result.append(event)
    return result


def test_a_full_pool_refuses_and_takes_back_the_latest() -> None:
    rentable = Rentable(SPOT, profile(LINEAR, name="s.4x"), 9)
    world = SimWorld((rentable,), "score", lambda _c, _e: 0.5, pools={POOL: DAY})
    asked = [Launch(f"i{n}", "s.4x", "spot") for n in range(3)]
    result = events_of(world, *asked)
    assert [e.intent for e in result if isinstance(e, InstanceLaunched)] == ["i0", "i1"]
    (refused,) = [e for e in result if isinstance(e, LaunchFailed)]
    assert (refused.intent, refused.kind, refused.at) == ("i2", "capacity", 1.0)
    lost = [(e.intent, e.at) for e in result if isinstance(e, NodeLost)]
    gone = [(e.intent, e.gone_at) for e in result if isinstance(e, InstanceGone)]
    assert lost == gone == [("i0", 100.0), ("i1", 100.0)]


def test_only_the_excess_goes_an_idle_pool_ends_it_all() -> None:
    fewer = PoolTrace("fewer", (0.0, 100.0, 200.0), (3, 1, 3), 300.0)
    rentable = Rentable(SPOT, profile(LINEAR, name="s.4x"), 9)
    world = SimWorld((rentable,), "score", lambda _c, _e: 0.5, pools={POOL: fewer})
    result = events_of(world, *(Launch(f"i{n}", "s.4x", "spot") for n in range(3)))
    assert [(e.intent, e.at) for e in result if isinstance(e, NodeLost)] == [
        *(("i1", 100.0), ("i2", 100.0))
    ]
    assert world.next_event() is None, "nothing is left to happen, though the trace goes on"


def test_a_pool_of_several_behaviours_is_drawn_by_the_seed() -> None:
    known = Rentable(SPOT, profile(LINEAR, name="s.4x"), 9, (SpotBehaviour(0.9, 0.3),))
    curve = lambda _c, _e: 0.5  # noqa: E731
    pools = [SimWorld((known,), "score", curve, seed).pools[POOL] for seed in (1, 1, 2)]
    assert pools[0] == pools[1]
    assert pools[0] != pools[2]
    given_one = SimWorld((known,), "score", curve, 1, pools={POOL: DAY})
    assert given_one.pools[POOL] is DAY
