from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.catalog import InstanceType
from cloudtune.profiles.ratios import SAME_GPU_SPREAD, between, derive, measured_ratios
from tests.builders import profile
from tests.builders.values import present

GPUS = sorted({gpu for pair in measured_ratios() for gpu in pair})


def machine(gpu: str, gpus: int, memory: int = 16384) -> InstanceType:
    return InstanceType(f"{gpus}x{gpu}", gpus, gpu, memory, 8, 65536)


V100, A100 = machine("v100", 4), machine("a100", 4)
EPOCH = {0.5: 12.0, 1.0: 8.0, 2.0: 4.7, 4.0: 2.5, 8.0: 3.8, 12.0: 3.0}


def test_a_ratio_is_the_median_with_the_spread_over_programs() -> None:
    result = present(between("v100", "A100"))
    assert (result.ratio, result.spread, result.n) == (2.505, 0.413, 10)
    assert "Lambda" in result.source


def test_two_steps_are_as_uncertain_as_both() -> None:
    result = present(between("t4", "v100"))
    assert result.ratio == pytest.approx(3.065 / 2.505)
    assert result.spread == pytest.approx((0.514**2 + 0.413**2) ** 0.5)
    assert result.source.startswith("over a100: ")


@given(st.sampled_from(GPUS), st.sampled_from(GPUS))
def test_there_and_back_is_one(one: str, other: str) -> None:
    there, back = between(one, other), between(other, one)
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert there.ratio * back.ratio == pytest.approx(1.0)
        assert there.spread == back.spread


def test_a_derived_profile_is_faster_and_less_sure() -> None:
    here = replace(profile(EPOCH, spread=0.1), error=0.1)
    there = present(derive(here, V100, A100))
    assert there.instance_type == "4xa100"
    assert there.epoch_seconds(1.0) == pytest.approx(8.0 / 2.505)
    assert there.epoch[1.0].sd == pytest.approx(0.8 / 2.505)
    assert there.error == pytest.approx((0.1**2 + 0.413**2) ** 0.5)
    assert there.source.startswith("derived from 4xv100: a100 2.50 times as fast as v100 ±41%")
    assert there.source.endswith("; made up")
    assert (there.boot, there.script_hash) == (here.boot, here.script_hash)


@pytest.mark.parametrize(
    ("to_type", "widths"),
    [
        (A100, (1.0, 2.0, 4.0, 8.0, 12.0)),
        (machine("a100", 8), (1.0, 2.0, 4.0)),
        (machine("a100", 2), (1.0, 2.0)),
        (machine("a100", 1), (1.0,)),
        (machine("v100", 2), (0.5, 1.0, 2.0)),
    ],
)
def test_only_measured_layouts_stay(to_type: InstanceType, widths: tuple[float, ...]) -> None:
    result = present(derive(profile(EPOCH), V100, to_type))
    assert result.widths == widths


def test_the_same_gpu_elsewhere_is_as_fast_within_error() -> None:
    result = present(derive(profile(EPOCH), V100, machine("V100", 8)))
    assert result.epoch_seconds(1.0) == 8.0
    assert result.error == SAME_GPU_SPREAD


def test_memory_stays_with_the_widths_that_stay() -> None:
    here = replace(profile(EPOCH), memory={0.5: 7000.0, 1.0: 6500.0, 8.0: 2000.0})
    packed = present(derive(here, V100, machine("v100", 2)))
    assert packed.memory == {0.5: 7000.0, 1.0: 6500.0}
    faster = present(derive(here, V100, A100))
    assert faster.memory == {1.0: 6500.0, 8.0: 2000.0}, "no shares of another GPU"


def test_a_smaller_memory_is_said() -> None:
    result = present(derive(profile(EPOCH), V100, machine("k80", 1, memory=12288)))
    assert "whether the batch fits is not known" in result.source


@pytest.mark.parametrize("to_type", [machine("l40s", 4), machine("a100", 0)])
def test_nothing_is_derived_where_nothing_is_known(to_type: InstanceType) -> None:
    assert derive(profile(EPOCH), V100, to_type) is None
