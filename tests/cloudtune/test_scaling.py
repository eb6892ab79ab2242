from __future__ import annotations

import pytest

from cloudtune.scaling import Measurement
from tests.builders import SUBLINEAR, profile


def test_durations_are_summed_up() -> None:
    assert Measurement.of([2.0, 4.0, 6.0]) == Measurement(4.0, 2.0, 3)
    assert Measurement.of([5.0]) == Measurement(5.0, 0.0, 1)
    assert Measurement(4.0, 2.0, 3).high == 8.0
    with pytest.raises(ValueError, match="no durations"):
        Measurement.of([])


def test_widths_ascend_and_epochs_have_their_means() -> None:
    made = profile({4.0: 4.0, 0.5: 15.0, 1.0: 8.0})
    assert made.widths == (0.5, 1.0, 4.0)
    assert made.epoch_seconds(0.5) == 15.0


def test_a_slower_script_takes_longer_epochs_and_the_same_boot() -> None:
    made = profile(SUBLINEAR, spread=0.1)
    slow = made.slowed(1.5)
    assert slow.epoch[2.0] == Measurement(7.5, 0.75, 3)
    assert (slow.boot, slow.start, slow.resize) == (made.boot, made.start, made.resize)
    assert made.slowed(1.0) is made
