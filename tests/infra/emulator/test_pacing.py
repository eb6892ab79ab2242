import json
import math
import statistics
import time

import pytest

from cloudtune.infra.emulator import pacing
from cloudtune.model.catalog import InstanceType
from tests.builders import profile

T4 = InstanceType("g4dn.12xlarge", 4, "t4", 16384, 48, 196608)
V100 = InstanceType("p3.8xlarge", 4, "v100", 16384, 32, 249856)


def test_one_machine_scales_as_published() -> None:
    speedups = [round(pacing.speedup(width, 1), 3) for width in (1, 2, 4, 8)]
    assert speedups == [1.0, 1.854, 3.426, 5.398]


def test_more_machines_lose_what_pollux_lost() -> None:
    assert pacing.speedup(8, 2) == pytest.approx(2 * 3.426 * 5.40 / (2 * 3.56), rel=1e-3)
    assert pacing.speedup(16, 4) == pytest.approx(4 * 3.426 * 9.09 / (4 * 3.56), rel=1e-3)
    assert pacing.speedup(4, 1) < pacing.speedup(8, 2) < pacing.speedup(8, 1)


def test_pacing_noise_is_repeatable() -> None:
    pace = pacing.find_pace("v100", seed=7)
    many = [pacing.draw_seconds(pace, f"t{n % 20}", 1 + n // 20, 1, 1) for n in range(2000)]
    assert many[0] == pacing.draw_seconds(pace, "t0", 1, 1, 1)
    assert len(set(many)) == 2000
    assert statistics.median(many) == pytest.approx(5.0, rel=0.005)
    assert statistics.stdev(map(math.log, many)) == pytest.approx(pacing.NOISE, rel=0.1)
    other = pacing.find_pace("v100", seed=8)
    assert pacing.draw_seconds(other, "t0", 1, 1, 1) != many[0]


def test_the_hook_sleeps_only_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    settings = pacing.make_settings("t4", "7", scale=0.5)
    monkeypatch.setenv("CLOUDTUNE_PACE", settings["CLOUDTUNE_PACE"])

    hook = pacing.pacer_from_env()
    hook(trial="t3", epoch=2, width=2.0, nodes=1, elapsed=0.1)
    hook(trial="t3", epoch=2, width=2.0, nodes=1, elapsed=99.0)

    due = pacing.draw_seconds(pacing.find_pace("t4", seed=7, scale=0.5), "t3", 2, 2.0, 1)
    assert slept == [pytest.approx(due - 0.1), 0.0]


def test_gpus_compare_as_published() -> None:
    (v100, _), (h100, why), (t4, _) = (pacing.core_factor(gpu) for gpu in ("v100", "h100", "t4"))
    assert v100 / h100 == pytest.approx(5.643, rel=1e-3)
    assert (v100, t4) == (10.0, 12.236), "demos stay comparable"
    assert "Lambda GPU benchmarks" in why
    assert "2024-07-24" in why
    _, why = pacing.core_factor("rtx-pro-4500")
    assert "specifications of rtx-pro-4500 and rtx-a6000" in why
    unknown, why = pacing.core_factor("radeon-pro-v520")
    assert unknown == v100
    assert "no published ratio for radeon-pro-v520" in why


def test_epoch_includes_core_time() -> None:
    cheap, dear = (pacing.find_pace("v100", core_seconds=seconds) for seconds in (0.02, 0.5))
    assert (cheap.epoch_seconds, dear.epoch_seconds) == pytest.approx((0.2, 5.0))
    settings = pacing.make_settings("v100", pacing.make_tag(3, 0.5), scale=0.1)
    data = json.loads(settings["CLOUDTUNE_PACE"])
    assert (data["epoch_seconds"], data["seed"]) == (pytest.approx(0.5), 3)


def test_emulated_profile_respects_this_machine() -> None:
    actual = profile({0.5: 0.6, 1.0: 0.3, 2.0: 0.2, 4.0: 2.0}, start=0.3, resize=0.4)
    made = pacing.emulated_profile(actual, V100, 0.25)
    assert made.epoch[1.0].mean == pytest.approx(2.5)
    assert made.epoch[0.5].mean == pytest.approx(5.0)
    assert made.epoch[2.0].mean == pytest.approx(2.5 / 1.854)
    assert made.epoch[2.0].sd == pytest.approx(pacing.NOISE * 2.5 / 1.854)
    assert made.epoch[4.0] == actual.epoch[4.0], "0.73 s is more than two cores can do"
    assert "at 4 GPUs this machine can't keep that pace" in made.source
    assert (made.start.mean, made.resize.mean) == pytest.approx((1.0, 1.1))
    assert (made.launch, made.boot, made.release) == (actual.launch, actual.boot, actual.release)
    result = made.provenance
    assert (result.origin, result.core_seconds, result.factor) == ("emulated", 0.25, 10.0)


def test_pacing_reproduces_the_profile() -> None:
    timed = pacing.emulated_profile(profile({1.0: 0.3}), V100, 0.25, scale=0.1)
    other = profile({1.0: 70.0}, name="g4dn.12xlarge")
    assert pacing.core_seconds_by_profile([(other, T4), (timed, V100)], 0.1) == 0.25
    for known, machine in ((other, T4), (profile({2.0: 9.0, 4.0: 6.0}), V100)):
        alone = pacing.core_seconds_by_profile([(known, machine)], 0.1)
        pace = pacing.find_pace(machine.gpu, scale=0.1, core_seconds=alone)
        width = known.widths[0]
        seconds = pace.epoch_seconds / pacing.speedup(width, 1)
        assert seconds == pytest.approx(known.epoch_seconds(width))
    assert pacing.core_seconds_by_profile([]) is None
