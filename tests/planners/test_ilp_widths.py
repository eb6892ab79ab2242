"""The integer program for widths: the golden toy, brute force, bounds and node boundaries."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.planners.fluid import static_fluid
from cloudtune.planners.ilp_widths import IlpWidths, best_widths, linear, makespan
from tests.builders import profile
from tests.strategy_builders import Game, by_name, numbered, play

TOY = (4.0, 4.0, 12.0, 30.0)


def test_the_golden_toy_ends_after_ten() -> None:
    """Five GPUs on one node: Fluid's own slides give 10 as the optimum, and 12 for Fluid."""
    found = best_widths(linear(TOY, 2, 4), 5, 1)
    assert found.bound == pytest.approx(10.0)
    assert found.seconds <= 12.0
    assert makespan((0.5, 0.5, 1.0, 3.0), linear(TOY, 2, 4), 5, 1) == pytest.approx(12.0)


@settings(max_examples=40)
@given(
    heights=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    gpus=st.integers(1, 3),
    nodes=st.integers(1, 2),
)
def test_no_choice_of_widths_beats_the_bound(heights: list[int], gpus: int, nodes: int) -> None:
    """Every choice there is, list-scheduled on the real nodes; ours is the best of them or near."""
    curves = linear([float(height) for height in heights], 2, min(gpus * nodes, 3))
    found = best_widths(curves, gpus, nodes)
    ends = [
        makespan(widths, curves, gpus, nodes)
        for widths in itertools.product(*(list(each) for each in curves))
    ]
    assert found.bound <= min(ends) * (1 + 1e-6)
    assert min(ends) * (1 - 1e-9) <= found.seconds <= 2 * found.bound * (1 + 1e-6)


@settings(max_examples=25)
@given(
    heights=st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8),
    gpus=st.sampled_from([1, 2, 4]),
    nodes=st.integers(1, 3),
    packed=st.sampled_from([1, 2, 4]),
)
def test_it_is_never_worse_than_fluid(
    heights: list[float], gpus: int, nodes: int, packed: int
) -> None:
    widest = gpus
    curves = linear(heights, packed, widest)
    found = best_widths(curves, gpus, nodes)
    for repaired in (False, True):
        widths = static_fluid(heights, gpus * nodes, packed, widest, repaired=repaired)
        assert found.seconds <= makespan(widths, curves, gpus, nodes) * (1 + 1e-9)
    assert found.bound <= found.seconds * (1 + 1e-9)


def test_a_trial_that_fits_on_a_node_is_never_split_over_two() -> None:
    """Two nodes of two: three GPUs at once aren't to be had, so each gets two."""
    found = best_widths([{1.0: 12.0, 2.0: 6.0, 4.0: 5.9}, {1.0: 12.0, 2.0: 6.0, 4.0: 5.9}], 2, 2)
    assert found.widths == (2.0, 2.0)
    assert found.seconds == pytest.approx(6.0)
    assert found.bound == pytest.approx(6.0)


def test_a_wide_trial_takes_whole_nodes() -> None:
    found = best_widths([{2.0: 10.0, 4.0: 4.0}], 2, 2)
    assert found.widths == (4.0,)
    assert found.gap == pytest.approx(0.0)


def test_a_trial_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="trial 1 fits on no node"):
        best_widths([{1.0: 1.0}, {8.0: 1.0}], 2, 2)


def test_no_trials_take_no_time() -> None:
    assert best_widths([], 2, 2).seconds == 0.0


def test_as_an_allocator_it_plays_the_toy() -> None:
    free = profile(
        {0.5: 2.0, 1.0: 1.0, 2.0: 0.5, 3.0: 1 / 3, 4.0: 0.25, 5.0: 0.2},
        start=0.0,
        resize=0.0,
        boot=0.0,
        launch=0.0,
        release=0.0,
    )
    caps = dict(enumerate((4, 4, 12, 30)))
    game = Game(numbered(4, caps), gpus=5, instances=1, profile=free, allocator=IlpWidths)
    played = play(by_name("grid", max_epochs=30), game)
    assert played.epochs == {"t000": 4, "t001": 4, "t002": 12, "t003": 30}
    assert played.policy.now <= 12.0 + 1e-6


def test_large_groups_are_left_to_fluid() -> None:
    game = Game(numbered(20), gpus=4, instances=2, allocator=IlpWidths)
    played = play(by_name("grid", max_epochs=2), game)
    assert set(played.epochs.values()) == {2}
