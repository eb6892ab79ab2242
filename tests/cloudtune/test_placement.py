from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.placement import enough, free_gpus, open_groups, place, slots
from cloudtune.trial import Slice
from tests.builders import group, offer

if TYPE_CHECKING:
    from cloudtune.plan import Group

WIDTHS = st.sampled_from([1 / 7, 1 / 4, 1 / 3, 1 / 2, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0])


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
    assert place(1.0, 4, {"a": 4.0, "b": 2.0, "c": 0.0}) == (Slice("b", 1.0),)
    assert place(4.0, 4, {"a": 4.0, "b": 2.0}) == (Slice("a", 4.0),)
    assert place(1.0, 4, {"b": 2.0, "a": 2.0}) == (Slice("a", 1.0),), "ties go by id"


def test_a_trial_that_does_not_fit_now_has_no_place() -> None:
    assert place(2.0, 4, {"a": 1.0, "b": 1.0}) is None
    assert place(1.0, 4, {}) is None


def test_a_wide_trial_takes_whole_empty_instances() -> None:
    assert place(8.0, 4, {"c": 4.0, "b": 3.0, "a": 4.0}) == (Slice("a", 4.0), Slice("c", 4.0))
    assert place(8.0, 4, {"a": 4.0, "b": 3.0}) is None
    assert place(6.0, 4, {"a": 4.0, "b": 4.0}) == (Slice("a", 3.0), Slice("b", 3.0))


def test_slices_elsewhere_take_nothing() -> None:
    taken = [Slice("a", 1.0), Slice("gone", 4.0), Slice("a", 0.5)]
    assert free_gpus({"a": 4, "b": 1}, taken) == {"a": 2.5, "b": 1.0}


SMALL, BIG = group(offer(1), 4, 1.0, 4), group(offer(4, name="p.4x"), 2, 8.0, 1)


@pytest.mark.parametrize(
    ("seated", "instances", "expected"),
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
    seated: dict[Group, int], instances: dict[Group, int], expected: list[Group]
) -> None:
    seats = {each.offer: count for each, count in seated.items()}
    there = {each.offer: count for each, count in instances.items()}
    assert open_groups((SMALL, BIG), seats, there) == expected


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
    while (found := place(width, gpus, free_gpus(machines, taken))) is not None:
        assert math.isclose(sum(piece.gpus for piece in found), width)
        assert len(found) == (1 if width <= gpus else math.ceil(width / gpus))
        taken += found
        placed += 1
    assert placed == slots(width, gpus, instances)
    assert all(free >= -1e-6 for free in free_gpus(machines, taken).values())
