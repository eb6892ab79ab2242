import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.placement import Room, place, rooms, slots
from cloudtune.model.trial import Slice

WIDTHS = st.sampled_from([1 / 7, 1 / 4, 1 / 3, 1 / 2, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0])


def free(**whole: int) -> dict[str, Room]:
    """Give instances with n whole GPUs free."""
    return {name: Room(count) for name, count in whole.items()}


@pytest.mark.parametrize(
    ("width", "gpus", "instances", "expected"),
    [
        (1.0, 4, 2, 8),
        (2.0, 4, 2, 4),
        (3.0, 4, 2, 2),  # one each: a trial that fits on an instance is never split
        (4.0, 4, 2, 2),
        (8.0, 4, 2, 1),
        (8.0, 4, 3, 1),  # the third instance alone is of no use
        (8.0, 4, 1, 0),
        (5.0, 4, 4, 2),
        (1 / 3, 1, 1, 3),  # three thirds are one GPU, whatever floats say
        (1 / 7, 4, 1, 28),
        (0.5, 1, 3, 6),
    ],
)
def test_slots(width: float, gpus: int, instances: int, expected: int) -> None:
    assert slots(width, gpus, instances) == expected


def test_the_fullest_instance_that_fits_is_taken() -> None:
    assert place(1.0, 4, free(a=4, b=2, c=0)) == (Slice("b", 1.0),)
    assert place(4.0, 4, free(a=4, b=2)) == (Slice("a", 4.0),)
    assert place(1.0, 4, free(b=2, a=2)) == (Slice("a", 1.0),), "ties go by id"


def test_a_wide_trial_takes_whole_empty_instances() -> None:
    assert place(8.0, 4, free(c=4, b=3, a=4)) == (Slice("a", 4.0), Slice("c", 4.0))
    assert place(8.0, 4, free(a=4, b=3)) is None
    assert place(6.0, 4, free(a=4, b=4)) == (Slice("a", 3.0), Slice("b", 3.0))
    assert place(1.5, 1, free(a=1, b=1)) == (Slice("a", 0.75, 0), Slice("b", 0.75, 0))


def test_shares_fill_the_fullest_gpu() -> None:
    left = rooms({"a": 4, "b": 4}, [Slice("a", 0.5, 0), Slice("b", 0.25, 0), Slice("b", 0.6, 2)])
    assert place(0.25, 4, left) == (Slice("b", 0.25, 2),)
    assert place(0.5, 4, left) == (Slice("a", 0.5, 0),)
    assert place(0.9, 4, left) == (Slice("b", 0.9, 1),), "the lowest number that is free"


def test_f12_halves_share_a_gpu() -> None:
    left, result = {"a": Room(2)}, []
    while (placed := place(0.5, 2, left)) is not None:
        left["a"].take(placed[0])
        result.append(placed[0].gpu)
    assert result == [0, 0, 1, 1]


@given(width=WIDTHS, gpus=st.integers(1, 8), instances=st.integers(0, 5))
def test_each_slot_is_a_place_for_a_trial(width: float, gpus: int, instances: int) -> None:
    machines = {f"i{n}": gpus for n in range(instances)}
    taken: list[Slice] = []
    placed = 0
    while (result := place(width, gpus, rooms(machines, taken))) is not None:
        assert math.isclose(sum(piece.gpus for piece in result), width)
        assert len(result) == (1 if width <= gpus else math.ceil(width / gpus))
        taken += result
        placed += 1
    assert placed == slots(width, gpus, instances)
    assert not any(room.overfull() for room in rooms(machines, taken).values())
