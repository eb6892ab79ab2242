from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import InstanceType
from cloudtune.profiles.ratios import SAME_GPU_SPREAD, between, derive, gpu_speeds
from tests.builders import profile
from tests.builders.values import present

GPUS = sorted(gpu_speeds().logs)


def machine(gpu: str, gpus: int, memory: int = 16384) -> InstanceType:
    return InstanceType(f"{gpus}x{gpu}", gpus, gpu, memory, 8, 65536)


V100, A100 = machine("v100", 4), machine("a100", 4)
EPOCH = {0.5: 12.0, 1.0: 8.0, 2.0: 4.7, 4.0: 2.5, 8.0: 3.8, 12.0: 3.0}


def test_every_gpu_that_aws_rents_has_a_speed() -> None:
    rented = {kind.gpu for kind in pricing.instance_types().values() if kind.gpu_maker == "nvidia"}
    assert rented <= set(GPUS)
    assert between("v100", "gaudi-hl-205") is None


@given(st.sampled_from(GPUS), st.sampled_from(GPUS))
def test_there_and_back_is_one(one: str, other: str) -> None:
    there = present(between(one, other))
    back = present(between(other, one.upper()))
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.spread == pytest.approx(back.spread)
    assert (there.spread > 0) == (one != other)


@given(st.sampled_from(GPUS), st.sampled_from(GPUS), st.sampled_from(GPUS))
def test_all_gpus_are_on_one_scale(one: str, middle: str, other: str) -> None:
    first, second = present(between(one, middle)), present(between(middle, other))
    both = present(between(one, other))
    assert both.ratio == pytest.approx(first.ratio * second.ratio)
    assert both.spread <= (first.spread**2 + second.spread**2) ** 0.5 + 1e-9


def test_derived_profile_is_less_sure() -> None:
    ratio = present(between("v100", "a100"))
    here = replace(profile(EPOCH, spread=0.1), error=0.1)
    there = present(derive(here, V100, A100))
    assert there.instance_type == "4xa100"
    assert there.epoch_seconds(1.0) == pytest.approx(8.0 / ratio.ratio)
    assert there.epoch[1.0].sd == pytest.approx(0.8 / ratio.ratio)
    assert (there.error, there.gpu_error) == (0.1, ratio.spread)
    assert there.speed_error == pytest.approx((0.1**2 + ratio.spread**2) ** 0.5)
    assert there.source.startswith("derived from 4xv100: a100 3.28 times as fast as v100 ±43%")
    assert there.source.endswith("; made up")
    assert (there.boot, there.script_hash) == (here.boot, here.script_hash)


@pytest.mark.parametrize("one", GPUS)
def test_a_profile_derived_there_and_back_is_as_fast(one: str) -> None:
    other = machine(one, 4)
    there = present(derive(profile(EPOCH), V100, other))
    back = present(derive(there, other, V100))
    assert back.epoch_seconds(4.0) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("to_type", "widths"),
    [
        (A100, (1.0, 2.0, 4.0, 8.0, 12.0)),
        (machine("a100", 8), (1.0, 2.0, 4.0, 8.0)),
        (machine("k80", 16), (1.0, 2.0, 4.0, 8.0, 16.0)),
        (machine("a100", 2), (1.0, 2.0)),
        (machine("a100", 1), (1.0,)),
        (machine("v100", 2), (0.5, 1.0, 2.0)),
        (machine("v100", 6), (0.5, 1.0, 2.0, 4.0, 6.0)),
    ],
)
def test_measured_layouts_stay_and_wider_ones_are_predicted(
    to_type: InstanceType, widths: tuple[float, ...]
) -> None:
    result = present(derive(profile(EPOCH), V100, to_type))
    assert result.widths == widths
    predicted = [width for width in widths if width > 4 and to_type.gpus > 4]
    assert [width for width in widths if not result.epoch[width].n] == predicted
    assert all(result.epoch[width].error > 0 for width in predicted)
    seconds = [result.epoch_seconds(width) for width in widths if width <= to_type.gpus]
    assert seconds == sorted(seconds, reverse=True)


def test_a_script_that_knows_one_gpu_stays_there() -> None:
    result = present(derive(profile({1.0: 8.0}), V100, machine("a100", 8)))
    assert result.widths == (1.0,)


def test_the_same_gpu_elsewhere_is_as_fast_within_error() -> None:
    result = present(derive(profile(EPOCH), V100, machine("V100", 8)))
    assert result.epoch_seconds(1.0) == 8.0
    assert (result.error, result.gpu_error) == (0.0, SAME_GPU_SPREAD)


def test_memory_stays_with_the_widths_that_stay() -> None:
    here = replace(profile(EPOCH), memory={0.5: 7000.0, 1.0: 6500.0, 8.0: 2000.0})
    packed = present(derive(here, V100, machine("v100", 2)))
    assert packed.memory == {0.5: 7000.0, 1.0: 6500.0}
    faster = present(derive(here, V100, A100))
    assert faster.memory == {1.0: 6500.0, 8.0: 2000.0}, "no shares of another GPU"


def test_a_smaller_memory_is_said() -> None:
    result = present(derive(profile(EPOCH), V100, machine("k80", 1, memory=12288)))
    assert "whether the batch fits is not known" in result.source


@pytest.mark.parametrize("to_type", [machine("radeon-pro-v520", 4), machine("a100", 0)])
def test_nothing_is_derived_where_nothing_is_known(to_type: InstanceType) -> None:
    assert derive(profile(EPOCH), V100, to_type) is None
