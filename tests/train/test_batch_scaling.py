from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.train.batch_scaling import batch_and_lr

WIDTHS = st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0, 8.0])


def test_h22_the_batch_grows_with_the_gpus_and_the_rate_by_its_root() -> None:
    batch, rates = batch_and_lr(128, 0.1, 1, 4)
    assert batch == 512
    assert rates == pytest.approx([0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18, 0.19, 0.2])


def test_h22_steps_are_of_the_initial_rate() -> None:
    """A rate that has decayed gets there in a step."""
    assert batch_and_lr(256, 0.01, 2, 4, initial_lr=0.1) == (512, (0.01 * math.sqrt(2),))


def test_h22_the_same_width_changes_nothing() -> None:
    assert batch_and_lr(256, 0.1, 2, 2) == (256, ())


def test_h22_a_part_of_a_gpu_is_one_worker() -> None:
    assert batch_and_lr(128, 0.1, 0.5, 1) == (128, ())
    assert batch_and_lr(128, 0.1, 1 / 3, 2)[0] == 256


@given(st.integers(1, 512), st.floats(1e-6, 10.0), WIDTHS, WIDTHS)
def test_h22_no_step_is_over_a_tenth_and_the_way_back_is_the_way(
    each: int, lr: float, width: float, other: float
) -> None:
    before = each * math.ceil(width)
    batch, rates = batch_and_lr(before, lr, width, other)
    assert batch == each * math.ceil(other)
    steps = [b - a for a, b in itertools.pairwise((lr, *rates))]
    assert all(abs(step) <= 0.1 * lr * (1 + 1e-6) for step in steps)
    last = rates[-1] if rates else lr
    back, rates = batch_and_lr(batch, last, other, width, initial_lr=lr)
    assert back == before
    assert (rates[-1] if rates else last) == pytest.approx(lr)


@pytest.mark.parametrize(
    ("batch", "lr", "width", "new"),
    [(0, 0.1, 1, 2), (8, 0.0, 1, 2), (8, 0.1, 0, 2), (8, 0.1, 1, -1), (8, math.nan, 1, 2)],
)
def test_nothing_of_it_may_be_zero(batch: int, lr: float, width: float, new: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        batch_and_lr(batch, lr, width, new)


def test_a_batch_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 100 can't be split evenly over 3 GPUs"):
        batch_and_lr(100, 0.1, 3, 4)
