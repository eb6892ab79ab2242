"""From a name in an experiment file to what it does: how wide trials train, and when they move."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.experiment import Experiment
from cloudtune.model.scaling import Measurement
from cloudtune.policy.registry import ALLOCATORS
from cloudtune.runs.job import make_policy
from tests.builders import NO_LIMITS, Played, Setting, offer, play, profile

EXPERIMENT = """
name: names
train: train.py:train
metric: {{name: score, mode: max}}
search: {{x: {{grid: {grid}}}}}
trials: {trials}
epochs: {{min: {epochs}, max: {epochs}}}
strategy: {{name: grid, allocator: "{allocator}", fleet: "constant:1"}}
cloud: {{provider: emulated, instances: [g5.xlarge], max_instances: 1}}
"""
SUBLINEAR = {0.25: 28.0, 0.5: 15.0, 1.0: 8.0, 2.0: 5.0, 3.0: 4.2, 4.0: 4.0}
LINEAR = {0.25: 32.0, 0.5: 16.0, 1.0: 8.0, 2.0: 4.0, 3.0: 8 / 3, 4.0: 2.0}


def run(
    folder: Path,
    allocator: str,
    slower: Sequence[float],
    *,
    gpus: int,
    curve: dict[float, float] = SUBLINEAR,
    epochs: int = 24,
    start: float = 0.0,
    resize: float = 1.0,
    really: float | None = None,
) -> Played:
    """Play an experiment file whose trial n is n times slower than its profile says.

    `really` is what a resize takes, where that isn't what the profile says.
    """
    file = folder / "experiment.yaml"
    grid = list(range(len(slower)))
    file.write_text(
        EXPERIMENT.format(allocator=allocator, grid=grid, trials=len(grid), epochs=epochs)
    )
    measured = profile(curve, start=start, resize=resize, boot=0.0, launch=0.0, release=0.0)
    setting = Setting(
        len(grid),
        offer=offer(gpus),
        profile=measured,
        max_instances=1,
        metric=lambda number, epoch: number + epoch / 1000,
        pace=lambda config, _epoch: slower[int(str(config["x"]))],
    )
    if really is not None:
        true = replace(measured, resize=Measurement(really))
        setting = setting.but(real=(replace(setting.rentables[0], profile=true),))
    return play(setting, make_policy(Experiment.load(file), setting.rentables, NO_LIMITS))


def widths(played: Played) -> list[list[float]]:
    result: dict[str, list[float]] = {}
    for start in played.starts:
        result.setdefault(start.trial, []).append(start.width)
    return [result[name] for name in sorted(result)]


def test_each_of_fluids_names_is_a_rule_of_its_own(tmp_path: Path) -> None:
    """Six GPUs; the first trial is twice as slow as the others, which is unknown beforehand."""
    result = {
        name: widths(run(tmp_path, name, [3.0, 1.5, 1.5], gpus=6, curve=LINEAR))
        for name in ALLOCATORS
        if "fluid" in name or name == "same"
    }
    assert result == {
        "same": [[1], [1], [1]],
        # By the profile alone, for what it is to learn comes after they have begun.
        "static-fluid": [[2], [2], [2]],
        # An epoch at one GPU, then the share by what was measured.
        "static-fluid:published": [[1, 3], [1], [1]],
        # The first, when the others are done.
        "fluid": [[2, 4], [2], [2]],
        "dynamic-fluid": [[2, 4], [2], [2]],
        "dynamic-fluid:published": [[1, 3], [1, 3], [1, 3]],
        "dynamic-fluid:published-idle": [[1, 3, 4], [1, 3], [1, 3]],
    }


@pytest.mark.parametrize(
    ("start", "resize", "resizes"),
    [(0.0, 10_000.0, 0), (10_000.0, 0.0, 2), (0.0, 0.0, 2), (1.0, 120.0, 0), (120.0, 1.0, 2)],
)
def test_f06_resizes_arent_starts(
    tmp_path: Path, start: float, resize: float, resizes: int
) -> None:
    played = run(
        tmp_path, "dynamic-fluid", [1, 3], gpus=5, curve=LINEAR, start=start, resize=resize
    )
    assert played.policy.resizes == resizes


def test_f06_resizes_that_were_seen_count_more_than_the_profile(tmp_path: Path) -> None:
    """The profile says a second; in truth a resize takes ten minutes, which the first shows."""
    cheap = run(tmp_path, "dynamic-fluid", [1, 3], gpus=5, curve=LINEAR)
    dear = run(tmp_path, "dynamic-fluid", [1, 3], gpus=5, curve=LINEAR, really=600.0)
    assert cheap.policy.resizes == 2
    assert dear.policy.resizes == 1


def test_f07_as_published_the_resize_is_paid_for(tmp_path: Path) -> None:
    """A quarter for a whole GPU saves some, but less than the GPU-seconds of a long resize."""
    for resize, after in ((1.0, [1, 0.25]), (1000.0, [1])):
        published = run(tmp_path, "dynamic-fluid:published", [0.5, 1, 1], gpus=4, resize=resize)
        assert widths(published)[0][:2] == after


def test_f20_an_idle_gpu_is_kept_until_all_are_replanned(tmp_path: Path) -> None:
    """It is sublinear, so to shrink would save GPU-seconds: it would grow and shrink for ever."""
    played = run(tmp_path, "dynamic-fluid:published-idle", [2, 1], gpus=4)
    assert widths(played) == [[1, 2, 3, 4], [1]]


@pytest.mark.parametrize(("name", "after"), [("dynamic-fluid", 2), ("dynamic-fluid:published", 1)])
def test_f10_a_slow_trial_is_planned_as_slow(tmp_path: Path, name: str, after: int) -> None:
    """Once it has been measured, and not when others end."""
    played = run(tmp_path, name, [1, 1, 1, 10], gpus=8)
    slow = [item for item in played.starts if item.trial == played.starts[3].trial]
    assert [item.start_epoch for item in slow] == [0, after]
    assert slow[-1].width == 4
