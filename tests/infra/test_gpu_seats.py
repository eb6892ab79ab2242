"""Which physical GPUs workers get: whole ones first, shares together, and never too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.infra.gpu_seats import GpuSeats, shares


def test_whole_gpus_are_the_lowest_free_ones() -> None:
    seats = GpuSeats(4)
    assert seats.take("a", 1.0) == (0,)
    assert seats.take("b", 2.0) == (1, 2)
    seats.give("a")
    assert seats.take("c", 2.0) == (0, 3)
    assert seats.take("d", 1.0) is None
    assert seats.free() == []


def test_packed_trials_fill_a_gpu_before_another_is_opened() -> None:
    """F12: two of a half share one GPU, and never three."""
    seats = GpuSeats(2)
    assert [seats.take(name, 0.5) for name in "abcd"] == [(0,), (0,), (1,), (1,)]
    assert seats.take("e", 0.5) is None
    seats.give("c")
    assert seats.take("f", 1.0) is None
    assert seats.take("e", 0.5) == (1,)


def test_three_thirds_are_one_gpu() -> None:
    seats = GpuSeats(2)
    assert [seats.take(name, 1 / 3) for name in "abcd"] == [(0,), (0,), (0,), (1,)]
    for name in "abc":
        seats.give(name)
    assert seats.free() == [0], "what was rounded away comes back"


def test_a_share_goes_where_there_is_least_room() -> None:
    seats = GpuSeats(2)
    assert seats.take("half", 0.5) == (0,)
    assert seats.take("most", 0.75) == (1,)
    assert seats.take("quarter", 0.25) == (1,)


def test_who_has_no_seat_gives_none() -> None:
    seats = GpuSeats(1)
    seats.give("nobody")
    assert seats.free() == [0]


@pytest.mark.parametrize(
    ("gpus", "workers"), [(0.5, (0.5,)), (1.0, (1.0,)), (3.0, (1.0, 1.0, 1.0))]
)
def test_a_packed_trial_has_one_worker(gpus: float, workers: tuple[float, ...]) -> None:
    assert shares(gpus) == workers


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from([0.25, 1 / 3, 0.5, 1.0, 2.0, 4.0]), st.booleans())),
)
def test_no_gpu_ever_holds_more_than_one_whole(gpus: int, asked: list[tuple[float, bool]]) -> None:
    seats, held = GpuSeats(gpus), dict[str, list[tuple[int, float]]]()
    for number, (width, first_leaves) in enumerate(asked):
        if first_leaves and held:
            name = next(iter(held))
            seats.give(name)
            del held[name]
        found = seats.take(str(number), width)
        if found is not None:
            assert len(set(found)) == len(found) == len(shares(width))
            held[str(number)] = list(zip(found, shares(width), strict=True))
        load = [0.0] * gpus
        for pieces in held.values():
            for gpu, share in pieces:
                load[gpu] += share
        assert max(load) < 1.0 + 1e-5
        assert seats.free() == [gpu for gpu in range(gpus) if load[gpu] < 1e-5]
