import re

import pytest

from cloudtune.errors import UsageError
from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.profiles import bundled


def machine(gpu: str, gpus: int, name: str = "") -> InstanceType:
    return InstanceType(name or f"any.{gpus}x{gpu}", gpus, gpu, 16384, 8, 65536)


P3 = machine("v100", 8, "p3.16xlarge")
G4 = machine("t4", 4, "g4dn.12xlarge")


def speed_up(profile: ScalingProfile, width: float) -> float:
    return profile.epoch_seconds(1.0) / profile.epoch_seconds(width)


def test_resnet50_on_cifar10_at_707_images_a_second() -> None:
    profile = bundled.load("resnet50-cifar10@v100", P3)
    assert profile.epoch_seconds(1.0) == pytest.approx(50_000 / 707)
    assert profile.epoch_seconds(2.0) == pytest.approx(50_000 / 1322)
    assert speed_up(profile, 8.0) == pytest.approx(5.5983, abs=1e-4)
    assert profile.epoch[1.0].sd == pytest.approx(0.024 * 50_000 / 707)
    assert (profile.script_hash, profile.measured_at) == ("", "2019-11-20")
    assert profile.error == 0.2, "the unit of the source's figures is our reading"


def test_oversized_batch_takes_steps() -> None:
    """1600 images on a T4 are eight times 200, each in 0.9235 s."""
    profile = bundled.load("resnet50-imagenet@t4", G4)
    assert profile.epoch_seconds(1.0) == pytest.approx(1_281_167 / 1600 * 8 * 0.9235309, rel=1e-6)
    assert speed_up(profile, 16.0) == pytest.approx(12.79, abs=0.005), "near linear"


@pytest.mark.parametrize(
    ("name", "speed_ups"),
    [
        ("resnet50-imagenet@t4", (1.95, 3.68, 7.28, 12.79)),
        ("resnet50-imagenet-b400@t4", (1.95, 3.46, 3.21, 4.33)),
        ("resnet18-cifar10-b2048@t4", (1.68, 3.56, 5.40, 9.09)),
        ("resnet18-cifar10-b512@t4", (1.70, 3.23, 2.08, 2.33)),
        ("bert-squad@t4", (2.00, 3.86, 2.90, 4.10)),
    ],
)
def test_they_agree_with_the_research(name: str, speed_ups: tuple[float, ...]) -> None:
    profile = bundled.load(name, G4)
    result = [speed_up(profile, width) for width in (2.0, 4.0, 8.0, 16.0)]
    assert result == pytest.approx(speed_ups, abs=0.012)


@pytest.mark.parametrize(
    ("gpus", "widths"), [(1, (1.0,)), (4, (1.0, 2.0, 4.0, 8.0, 16.0)), (8, (1.0, 2.0, 4.0, 8.0))]
)
def test_several_nodes_with_as_many_gpus_as_measured(gpus: int, widths: tuple[float, ...]) -> None:
    result = bundled.load("bert-squad@t4", machine("t4", gpus))
    assert result.widths == widths
    assert [width for width in widths if not result.epoch[width].n] == [8.0] * (gpus == 8)


def test_published_speed_beats_ratio() -> None:
    result = bundled.load("bert-squad@t4", machine("a100", 8))
    assert result == bundled.load("bert-squad@a100", machine("a100", 8))
    assert "DGX A100" in result.source


def test_another_gpu_is_derived() -> None:
    here = bundled.load("resnet50-cifar10@v100", P3)
    there = bundled.load("resnet50-cifar10@v100", machine("h100", 8))
    assert there.epoch_seconds(8.0) == pytest.approx(here.epoch_seconds(8.0) / 5.643, rel=1e-3)
    assert there.error == 0.2
    assert there.gpu_error == pytest.approx(0.436, abs=1e-3)
    assert there.source.startswith("derived from p3.16xlarge: h100 5.64 times as fast as v100 ±44%")


@pytest.mark.parametrize("other", [machine("radeon-pro-v520", 4), machine("v100", 0)])
def test_uncompared_gpu_has_no_profile(other: InstanceType) -> None:
    assert bundled.find("resnet50-cifar10@v100", other) is None
    with pytest.raises(UsageError, match=r"nothing is published that compares .*; take instances"):
        bundled.load("resnet50-cifar10@v100", other)


@pytest.mark.parametrize("name", bundled.names())
def test_bundled_profiles_have_sources(name: str) -> None:
    figures = bundled.published_figures(name)
    profile = bundled.load(name, figures.machine)
    assert figures.layouts[0].width == 1.0
    assert name.endswith(f"@{figures.machine.gpu}")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", profile.measured_at)
    assert all(m.mean > 0 and m.sd > 0 for m in profile.epoch.values())
    assert len(figures.layouts) == len(profile.epoch)


def test_what_is_assumed_is_said() -> None:
    profile = bundled.load("bert-squad@t4", G4)
    assert profile.source.endswith("assumed: launch 20 ± 10 s, boot 90 ± 30 s, release 5 ± 3 s")
    assert profile.resize == Measurement(120.0, 24.0)
