import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.placement import Room, enough, open_groups, place, rooms, slots
from cloudtune.model.plans import Group
from cloudtune.model.trial import Slice
from tests.builders import group, offer

WIDTHS = st.sampled_from([1 / 7, 1 / 4, 1 / 3, 1 / 2, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0])


def free(**whole: int) -> dict[str, Room]:
    """Give instances with so many whole GPUs free."""
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


def test_two_free_halves_of_different_gpus_are_no_room_for_a_whole_one() -> None:
    left = rooms({"a": 2}, [Slice("a", 0.5, 0), Slice("a", 0.5, 1)])
    assert left["a"].free == 1.0
    assert place(1.0, 2, left) is None
    assert place(0.5, 2, left) == (Slice("a", 0.5, 0),)


def test_a_share_goes_on_the_fullest_gpu_that_has_room() -> None:
    left = rooms({"a": 4, "b": 4}, [Slice("a", 0.5, 0), Slice("b", 0.25, 0), Slice("b", 0.6, 2)])
    assert place(0.25, 4, left) == (Slice("b", 0.25, 2),)
    assert place(0.5, 4, left) == (Slice("a", 0.5, 0),)
    assert place(0.9, 4, left) == (Slice("b", 0.9, 1),), "the lowest number that is nobody's"


def test_f12_two_halves_share_a_gpu_and_never_three() -> None:
    left, found = {"a": Room(2)}, []
    while (placed := place(0.5, 2, left)) is not None:
        left["a"].take(placed[0])
        found.append(placed[0].gpu)
    assert found == [0, 0, 1, 1]


def test_a_gpu_is_whole_again_when_its_last_share_has_gone() -> None:
    room = Room(1)
    thirds = [Slice("a", 1 / 3, 0)] * 3
    for piece in thirds:
        room.take(piece)
    assert (room.whole, place(0.01, 1, {"a": room})) == (0, None)
    for piece in thirds:
        room.give(piece)
    assert room.matches(Room(1))


SMALL, BIG = group(offer(1), 4, 1.0, 4), group(offer(4, name="p.4x"), 2, 8.0, 1)


@pytest.mark.parametrize(
    ("placed", "instances", "expected"),
    [
        ({}, {SMALL: 4, BIG: 2}, [SMALL, BIG]),
        ({SMALL: 4}, {SMALL: 4, BIG: 2}, [BIG]),
        ({SMALL: 4}, {SMALL: 4, BIG: 1}, [SMALL]),  # one of two is of no use to a trial on both
        ({SMALL: 5}, {SMALL: 1}, [SMALL]),
        ({BIG: 1}, {BIG: 2}, [BIG]),
        ({SMALL: 4, BIG: 1}, {SMALL: 4, BIG: 2}, [SMALL, BIG]),
        ({}, {}, []),
    ],
)
def test_where_a_waiting_trial_may_go(
    placed: dict[Group, int], instances: dict[Group, int], expected: list[Group]
) -> None:
    counts = {each.offer: count for each, count in placed.items()}
    there = {each.offer: count for each, count in instances.items()}
    assert open_groups((SMALL, BIG), counts, there) == expected


@pytest.mark.parametrize(
    ("trials", "have", "expected"), [(4, 0, 4), (2, 0, 2), (2, 3, 3), (9, 0, 4), (0, 0, 0)]
)
def test_a_group_needs_what_its_trials_can_use(trials: int, have: int, expected: int) -> None:
    assert enough(SMALL, trials, have) == expected


@given(width=WIDTHS, gpus=st.integers(1, 8), instances=st.integers(0, 5))
def test_as_many_trials_find_a_place_as_there_are_slots(
    width: float, gpus: int, instances: int
) -> None:
    machines = {f"i{n}": gpus for n in range(instances)}
    taken: list[Slice] = []
    placed = 0
    while (found := place(width, gpus, rooms(machines, taken))) is not None:
        assert math.isclose(sum(piece.gpus for piece in found), width)
        assert len(found) == (1 if width <= gpus else math.ceil(width / gpus))
        taken += found
        placed += 1
    assert placed == slots(width, gpus, instances)
    assert not any(room.overfull() for room in rooms(machines, taken).values())
