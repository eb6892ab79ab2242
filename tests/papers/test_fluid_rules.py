"""Fluid's rules on plain numbers: the bound of the makespan, and when a resize pays."""

import heapq
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.trial import Width
from cloudtune.papers.fluid import narrowest
from cloudtune.strategies.allocators.fluid_rules import (
    scales_down,
    scales_up,
    static_fluid,
    whole_trials,
)

groups = st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=24)
gpus = st.integers(1, 32)
widest = st.integers(1, 16)


def linear(heights: Sequence[float], widths: Sequence[Width], count: int) -> float:
    """Return when the last is done where k GPUs are k times as fast; the longest begin first.

    Each begins as soon as it fits; a share of one GPU is on the fullest that has room for it.
    """
    waiting = sorted(range(len(widths)), key=lambda trial: -heights[trial])
    free = [1.0] * count
    running: list[tuple[float, list[int], float]] = []
    now = 0.0
    while waiting or running:
        for trial in tuple(waiting):
            width = widths[trial]
            share = min(1.0, width)
            fitting = sorted((room, gpu) for gpu, room in enumerate(free) if room > share - 1e-9)
            taken = [gpu for _, gpu in fitting[: max(1, round(width))]]
            if len(taken) >= width:
                waiting.remove(trial)
                heapq.heappush(running, (now + heights[trial] / width, taken, share))
                for gpu in taken:
                    free[gpu] -= share
        now, freed, share = heapq.heappop(running)
        for gpu in freed:
            free[gpu] += share
    return now


def bound(heights: Sequence[float], count: int, wide: int) -> float:
    """Return seconds that no schedule of a group beats."""
    return max(sum(heights) / count, max(heights, default=0.0) / wide)


@given(heights=groups, count=gpus, packed=st.integers(1, 8), wide=widest)
def test_f04_widths_are_whole(heights: list[float], count: int, packed: int, wide: int) -> None:
    for narrow in (narrowest, whole_trials):
        for width in static_fluid(heights, count, packed, wide, narrow=narrow):
            assert 1 / packed - 1e-9 <= width <= wide
            parts = width if width >= 1 else 1 / width
            assert abs(parts - round(parts)) < 1e-9


def within_twice(heights: list[float], count: int, packed: int, wide: int, *, ours: bool) -> bool:
    narrow = whole_trials if ours else narrowest
    widths = static_fluid(heights, count, packed, min(wide, count), narrow=narrow)
    result = linear(heights, widths, count)
    return result <= 2 * bound(heights, count, min(wide, count)) * (1 + 1e-9)


@given(heights=groups, count=gpus, packed=st.integers(1, 2), wide=widest)
def test_f05_published_for_pairs(heights: list[float], count: int, packed: int, wide: int) -> None:
    assert within_twice(heights, count, packed, wide, ours=False)


@given(heights=groups, count=gpus, packed=st.integers(1, 16), wide=widest)
def test_f05_repaired_always(heights: list[float], count: int, packed: int, wide: int) -> None:
    assert within_twice(heights, count, packed, wide, ours=True)


@pytest.mark.parametrize("packed", [4, 8])
def test_f05_published_may_exceed_the_bound(packed: int) -> None:
    """Three trials on three GPUs, one a hair below its share: packed by c all the same."""
    heights = [1.0 + 1e-6, 1.0 - 1e-6, 1.0]
    widths = static_fluid(heights, 3, packed, 1, narrow=narrowest)
    assert min(widths) == 1 / packed
    ratio = linear(heights, widths, 3) / bound(heights, 3, 1)
    assert ratio > packed - 0.01
    assert not within_twice(heights, 3, packed, 1, ours=False)
    assert within_twice(heights, 3, packed, 1, ours=True)


def test_f06_a_trial_grows_only_if_done_sooner() -> None:
    assert scales_up(10.0, 5.0, 4.9)
    assert not scales_up(10.0, 5.0, 5.0), "nothing is gained"
    assert not scales_up(10.0, 5.0, 1000.0), "a dear resize changes nothing"


def test_f07_shrinking_saves_gpu_seconds() -> None:
    assert scales_down(4.0, 10.0, 1.0, 30.0, 9.0)
    assert not scales_down(4.0, 10.0, 1.0, 30.0, 10.0)
    assert not scales_down(2.0, 10.0, 1.0, 20.0, 0.0), "of a linear one it never does"


def test_idle_group_has_a_width() -> None:
    assert static_fluid([0.0, 0.0], 4, 2, 4) == [1.0, 1.0]
    assert static_fluid([], 4, 2, 4) == []
