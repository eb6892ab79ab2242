"""The integer program for widths: the golden toy, brute force, bounds and node boundaries."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.plans import Rentable
from cloudtune.strategies.allocators.fluid_rules import static_fluid
from cloudtune.strategies.allocators.ilp import LARGEST, IlpWidths, best_widths, least, linear
from cloudtune.strategies.allocators.schedules import makespan
from tests.builders import LINEAR, Setting, by_name, offer, play, profile

Seat = tuple[float, float, tuple[int, ...]]  # GPUs on each node, seconds, and which nodes

TOY = (4.0, 4.0, 12.0, 30.0)
CLOSE = 1 + 1e-6


def brute_force(heights: Sequence[Mapping[float, float]], gpus: int, nodes: int) -> float:
    """Give the shortest schedule there is: every width, every place, every order.

    Trial by trial each begins as early as it fits for all of its time; some order of these is the
    shortest of all. Halves that run at once on a node share GPUs as well as they can.
    """
    return min(
        in_turn(order, gpus)
        for seats in itertools.product(*(list(seats_of(each, gpus, nodes)) for each in heights))
        for order in itertools.permutations(seats)
    )


def seats_of(height: Mapping[float, float], gpus: int, nodes: int) -> Iterator[Seat]:
    for width, seconds in height.items():
        needed = max(1, math.ceil(width / gpus))
        for chosen in itertools.combinations(range(nodes), needed):
            yield width if needed == 1 else math.ceil(width / needed), seconds, chosen


def in_turn(seats: Sequence[Seat], gpus: int) -> float:
    placed: list[tuple[float, float, Seat]] = []
    for seat in seats:
        starts = sorted({0.0, *(end for _, end, _ in placed)})
        begin = next(at for at in starts if fits(seat, at, placed, gpus))
        placed.append((begin, begin + seat[1], seat))
    return max(end for _, end, _ in placed)


def fits(seat: Seat, begin: float, placed: list[tuple[float, float, Seat]], gpus: int) -> bool:
    moments = [begin, *(at for at, _, _ in placed if begin < at < begin + seat[1])]
    return all(
        needed([seat, *(s for at, end, s in placed if at <= moment < end)], node) <= gpus
        for moment in moments
        for node in seat[2]
    )


def needed(seats: Sequence[Seat], node: int) -> int:
    here = [width for width, _, nodes in seats if node in nodes]
    return math.ceil(sum(w for w in here if w >= 1) + math.ceil(sum(w for w in here if w < 1)))


@settings(max_examples=40)
@given(
    heights=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    gpus=st.integers(1, 3),
    nodes=st.integers(1, 3),
    widest=st.integers(1, 4),
    slower=st.sampled_from([1.0, 0.8, 0.5]),
)
def test_the_best_lies_between_the_bound_and_the_schedule(
    heights: list[int], gpus: int, nodes: int, widest: int, slower: float
) -> None:
    """Also where more GPUs are slower: two GPUs at a half of their speed are as fast as one."""
    widths = [w for w in (0.5, *map(float, range(1, widest + 1))) if math.ceil(w / gpus) <= nodes]
    curves = [{w: h / (w if w <= 1 else w * slower) for w in widths} for h in heights]
    found, best = best_widths(curves, [gpus] * nodes), brute_force(curves, gpus, nodes)
    assert found.bound <= best * CLOSE
    assert best <= found.seconds * CLOSE
    assert found.seconds <= 1.5 * best * CLOSE
    assert makespan(found.widths, curves, [gpus] * nodes) == pytest.approx(found.seconds)


@settings(max_examples=25)
@given(
    heights=st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8),
    gpus=st.sampled_from([1, 2, 4]),
    nodes=st.integers(1, 3),
    packed=st.sampled_from([1, 2, 4]),
)
def test_no_heuristic_is_shorter_or_beats_the_bound(
    heights: list[float], gpus: int, nodes: int, packed: int
) -> None:
    curves, machines = linear(heights, packed, gpus), [gpus] * nodes
    found = best_widths(curves, machines)
    shares = [
        static_fluid(heights, gpus * nodes, packed, gpus, repaired=repaired)
        for repaired in (False, True)
    ]
    for widths in (*shares, *([width] * len(heights) for width in curves[0])):
        took = makespan(widths, curves, machines)
        assert found.seconds <= took * CLOSE
        assert found.bound <= took * CLOSE
    assert least(curves, sum(machines)) <= found.bound * CLOSE


def test_a_trial_that_fits_on_a_node_is_never_split_over_two() -> None:
    """Two nodes of three: three trials of two GPUs would fit on six, but one has to wait."""
    found = best_widths([{2.0: 6.0}] * 3, [3, 3])
    assert found.bound == pytest.approx(12.0)
    assert found.seconds == pytest.approx(12.0)


def test_a_wide_trial_takes_whole_nodes() -> None:
    """What is idle in part is no whole node, so four GPUs need two others."""
    assert best_widths([{2.0: 10.0, 4.0: 4.0}], [2, 2]).widths == (4.0,)
    assert best_widths([{1.0: 10.0, 4.0: 4.0}], [2, 1]).widths == (1.0,)


def test_a_trial_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="trial 1 fits on no node"):
        best_widths([{1.0: 1.0}, {8.0: 1.0}], [2, 2])


AT_ONCE: dict[str, Any] = {"start": 0.0, "resize": 0.0, "boot": 0.0, "launch": 0.0, "release": 0.0}


def test_as_an_allocator_it_plays_the_toy() -> None:
    """Trials begin in the order asked for, so the long ones are asked for first."""
    speeds = {width: 1 / width for width in (0.5, 1.0, 2.0, 3.0, 4.0)}
    caps = dict(enumerate((30, 12, 4, 4)))
    game = Setting(
        4,
        caps=caps,
        offer=offer(5),
        max_instances=1,
        profile=profile(speeds, **AT_ONCE),
        allocator=IlpWidths,
    )
    played = play(game, by_name("grid", max_epochs=30))
    assert played.epochs == {"t00": 30, "t01": 12, "t02": 4, "t03": 4}
    assert played.policy.now == pytest.approx(10.0)


def test_large_groups_are_left_to_fluid() -> None:
    game = Setting(LARGEST + 8, offer=offer(4), max_instances=2, allocator=IlpWidths)
    played = play(game, by_name("grid", max_epochs=2))
    assert set(played.epochs.values()) == {2}


def test_widths_that_need_more_nodes_than_are_idle_are_left_to_fluid() -> None:
    """Six GPUs idle on nodes of four: eight GPUs fit on none of it."""
    eight = Rentable(offer(4), profile({8.0: 10.0}), 2)
    assert IlpWidths()._shares(eight, [10.0], 6) == [6.0]
    some = Rentable(offer(4), profile(LINEAR), 2)
    assert set(IlpWidths()._shares(some, [10.0, 10.0], 6)) <= set(LINEAR)
