from dataclasses import replace

import pytest

from cloudtune.model.scaling import Measurement
from tests.builders import SUBLINEAR, profile


def test_durations_are_summed_up() -> None:
    assert Measurement.of([2.0, 4.0, 6.0]) == Measurement(4.0, 2.0, 3)
    assert Measurement.of([5.0]) == Measurement(5.0, 0.0, 1)
    assert Measurement(4.0, 2.0, 3).high == 8.0
    with pytest.raises(ValueError, match="no durations"):
        Measurement.of([])


def test_a_shares_memory_is_measured_or_the_nearests() -> None:
    made = replace(profile(SUBLINEAR), memory={0.5: 900.0, 1.0: 1000.0, 2.0: 700.0})
    at = {width: made.worker_memory(width) for width in (0.25, 0.5, 0.75, 1.0, 2.0, 4.0)}
    assert at == {0.25: 900.0, 0.5: 900.0, 0.75: 1000.0, 1.0: 1000.0, 2.0: 700.0, 4.0: None}
    narrow = replace(made, memory={0.25: 800.0, 4.0: 500.0})
    assert (narrow.worker_memory(0.5), narrow.worker_memory(1.0)) == (800.0, 800.0)
    assert profile(SUBLINEAR).worker_memory(0.5) is None


def test_as_many_as_share_a_gpu_must_fit() -> None:
    made = replace(profile(SUBLINEAR), memory={1.0: 1000.0})
    assert made.fits(1 / 3, 3000.0)
    assert not made.fits(1 / 3, 2999.0)
    assert made.fits(1 / 16, 0.0), "what the GPU has is unknown"
    assert made.fits(1.0, 999.0), "it did train"
