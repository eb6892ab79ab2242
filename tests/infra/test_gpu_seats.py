"""Which physical GPUs workers get: whole ones first, shares as told, and never too many."""

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


def test_f12_two_halves_share_a_gpu_and_never_three() -> None:
    seats = GpuSeats(2)
    asked = [("a", 0), ("b", 0), ("c", 1), ("d", 1)]
    assert [seats.take(name, 0.5, gpu) for name, gpu in asked] == [(0,), (0,), (1,), (1,)]
    assert seats.take("e", 0.5, 1) is None
    seats.give("c")
    assert seats.take("f", 1.0) is None
    assert seats.take("e", 0.5, 1) == (1,)


def test_three_thirds_are_one_gpu() -> None:
    seats = GpuSeats(2)
    asked = [("a", 0), ("b", 0), ("c", 0), ("d", 1)]
    assert [seats.take(name, 1 / 3, gpu) for name, gpu in asked] == [(0,), (0,), (0,), (1,)]
    for name in "abc":
        seats.give(name)
    assert seats.free() == [0], "what was rounded away comes back"


def test_a_number_is_one_gpu_for_as_long_as_shares_of_it_are_there() -> None:
    seats = GpuSeats(3)
    seats.take("whole", 1.0)
    assert seats.take("a", 0.5, 7) == (1,)
    seats.give("whole")
    assert seats.take("b", 0.5, 7) == (1,)
    seats.give("a")
    assert seats.take("c", 0.5, 7) == (1,)
    seats.give("b")
    seats.give("c")
    assert seats.take("d", 0.5, 7) == (0,)


def test_a_share_waits_for_its_own_gpu_while_who_was_there_ends() -> None:
    seats = GpuSeats(2)
    seats.take("old", 0.5, 0)
    seats.take("other", 0.5, 0)
    assert seats.take("new", 0.5, 0) is None, "the other GPU is for those who were told so"
    seats.give("old")
    assert seats.take("new", 0.5, 0) == (0,)


def test_a_share_waits_for_a_whole_gpu_to_open_another() -> None:
    seats = GpuSeats(1)
    seats.take("whole", 1.0)
    assert seats.take("a", 0.25, 0) is None
    seats.give("whole")
    assert seats.take("a", 0.25, 0) == (0,)


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
    st.lists(
        st.tuples(
            st.sampled_from([0.25, 1 / 3, 0.5, 1.0, 2.0, 4.0]), st.integers(-1, 3), st.booleans()
        )
    ),
)
def test_whatever_is_asked_no_gpu_holds_more_than_one_whole(
    gpus: int, asked: list[tuple[float, int, bool]]
) -> None:
    seats, held = GpuSeats(gpus), dict[str, list[tuple[int, float]]]()
    for name, (width, number, first_leaves) in enumerate(asked):
        if first_leaves and held:
            gone = next(iter(held))
            seats.give(gone)
            del held[gone]
        found = seats.take(str(name), width, number)
        if found is not None:
            assert len(set(found)) == len(found) == len(shares(width))
            held[str(name)] = list(zip(found, shares(width), strict=True))
        load = [0.0] * gpus
        for pieces in held.values():
            for gpu, share in pieces:
                load[gpu] += share
        assert max(load) < 1.0 + 1e-5
        assert seats.free() == [gpu for gpu in range(gpus) if load[gpu] < 1e-5]
