from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.profiles import bundled
from cloudtune.profiles.fit import fit, monotone_envelope
from cloudtune.scaling import Measurement
from tests.builders import NODE_BOUNDARY, profile

WIDTHS = (1.0, 2.0, 4.0, 8.0)


def law(parallel: float, serial: float, growing: float) -> dict[float, float]:
    return {w: parallel / w + serial + growing * (w - 1) for w in WIDTHS}


@given(
    st.floats(1.0, 1e4),
    st.sampled_from([0.0, 0.01, 0.2]),
    st.sampled_from([0.0, 0.001, 0.02]),
)
def test_a_curve_of_the_law_is_found_again(parallel: float, serial: float, growing: float) -> None:
    terms = (parallel, parallel * serial, parallel * growing)
    found = fit(profile(law(*terms)))
    assert (found.parallel, found.serial, found.growing) == pytest.approx(terms, rel=1e-3, abs=1e-3)
    assert found.one == pytest.approx(parallel * (1 + serial), rel=1e-4)
    assert all(abs(off) < 1e-4 for off in found.residuals.values())


@given(st.lists(st.floats(0.5, 100.0), min_size=2, max_size=5))
def test_no_term_and_no_prediction_is_below_0(seconds: list[float]) -> None:
    found = fit(profile({float(2**i): each for i, each in enumerate(seconds)}))
    assert min(found.parallel, found.serial, found.growing) >= 0
    between = found.seconds(1.5)
    assert between.mean > 0
    assert between.sd >= found.noise * between.mean


def test_a_prediction_is_less_sure_where_the_measurements_are_off_the_curve() -> None:
    smooth = law(8.0, 1.0, 0.1)
    bent = {**smooth, 2.0: smooth[2.0] * 1.2}
    assert fit(profile(bent)).seconds(3.0).sd > 10 * fit(profile(smooth)).seconds(3.0).sd
    assert fit(profile(smooth, spread=0.1)).seconds(3.0).sd > 0.1 * fit(profile(smooth)).one / 3


def test_a_published_curve_between_its_widths() -> None:
    """Four V100 take 20.7 s and two 37.8 s; three are between them, near 1 / 3 of 70.7 and more."""
    machine = bundled.published("resnet50-cifar10@v100").machine
    found = fit(bundled.load("resnet50-cifar10@v100", machine))
    assert found.seconds(3.0).mean == pytest.approx(26.3, abs=0.1)
    assert max(map(abs, found.residuals.values())) < 0.01


def test_it_stays_within_one_node_and_within_what_was_measured() -> None:
    curve = profile({0.5: 12.0, **NODE_BOUNDARY})
    found = fit(curve, node_gpus=4)
    assert list(found.residuals) == [1.0, 2.0, 4.0]
    for outside in (0.5, 4.5, 8.0):
        with pytest.raises(ValueError, match="outside the fitted widths, 1 to 4"):
            found.seconds(outside)
    assert max(map(abs, fit(curve).residuals.values())) > 0.15, "over the boundary it doesn't fit"


def test_one_width_is_no_curve() -> None:
    with pytest.raises(ValueError, match="a curve needs two measured widths"):
        fit(profile({0.5: 12.0, 1.0: 8.0}))


# ---- the envelope ------------------------------------------------------------------------------


def test_the_envelope_drops_what_is_no_faster_and_says_so() -> None:
    found = monotone_envelope(profile({**NODE_BOUNDARY, 12.0: 2.5, 16.0: 2.0}))
    assert found.widths == (1.0, 2.0, 4.0, 16.0)
    assert found.source == "made up; monotone envelope applied: dropped width 8, 12"


def test_the_envelope_goes_through_shares_of_a_gpu_and_memory() -> None:
    here = profile({0.25: 30.0, 0.5: 14.0, 1.0: 14.0, 2.0: 5.0})
    found = monotone_envelope(replace(here, memory={0.5: 900.0, 1.0: 1000.0}))
    assert found.widths == (0.25, 0.5, 2.0)
    assert found.memory == {0.5: 900.0}


def test_the_envelope_of_a_falling_curve_is_the_curve() -> None:
    here = profile(law(8.0, 1.0, 0.0))
    assert monotone_envelope(here) is here


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6))
def test_the_envelope_is_strictly_faster_with_width_and_keeps_the_fastest(
    seconds: list[float],
) -> None:
    here = profile({float(2**i): each for i, each in enumerate(seconds)})
    found = monotone_envelope(here)
    kept = [found.epoch_seconds(width) for width in found.widths]
    assert kept == sorted(set(kept), reverse=True)
    assert min(kept) == min(seconds)


def test_nothing_is_smoothed_by_itself() -> None:
    machine = bundled.published("bert-squad@t4").machine
    curve = bundled.load("bert-squad@t4", machine)
    assert 8.0 in curve.epoch
    assert monotone_envelope(curve).widths == (1.0, 2.0, 4.0, 16.0)
    assert replace(curve, epoch={1.0: Measurement(1.0)}).source == curve.source
