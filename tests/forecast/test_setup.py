"""What `setup:` adds to a plan, and what is reported before anything is rented."""

from pathlib import Path
from typing import Any

import pytest

from cloudtune.api.experiments import load_experiment
from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.forecast.problem import _with_fetch, stored_profiles
from cloudtune.infra.environments.delivery import Delivery, Pack
from cloudtune.infra.provider import Cloud, Endpoint
from cloudtune.lifecycle import runner
from cloudtune.lifecycle.runner import Runner
from tests.builders.experiments import small_experiment

TRAIN = "def train(config):\n    pass\n"
AWS = {"cloud": {"provider": "aws", "instances": ["p3.2xlarge"]}, "storage": "s3://bucket/runs"}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(TRAIN)


def experiment(folder: Path, **more: Any) -> Experiment:
    return small_experiment(folder, **{**AWS, **more})


@pytest.mark.parametrize(
    ("setup", "more"), [({"pip": []}, True), ({"python_path": "/x/python"}, False), ({}, False)]
)
def test_published_figures_get_a_fetch(tmp_path: Path, setup: dict[str, Any], more: bool) -> None:
    wanted = experiment(tmp_path, setup=setup)
    profiles = stored_profiles(wanted, "resnet50-cifar10@v100")
    result, notes = _with_fetch(profiles, wanted)
    longer = [
        after.boot.mean - before.boot.mean for before, after in zip(profiles, result, strict=True)
    ]
    assert longer == [26.0 if more else 0.0]
    assert [note.partition(":")[0] for note in notes] == (["setup"] if more else [])


def test_published_figures_get_a_copy_of_the_data(tmp_path: Path) -> None:
    charges = {"data": {"region": "us-east-1", "gb": 3}}
    wanted = experiment(tmp_path, data={"train": "s3://bucket/sets"}, charges=charges)
    profiles = stored_profiles(wanted, "resnet50-cifar10@v100")
    result, notes = _with_fetch(profiles, wanted)
    assert result[0].boot.mean == profiles[0].boot.mean + 24.0
    assert [note.partition(":")[0] for note in notes] == ["data"]


def test_where_instances_are_this_machine_nothing_is_fetched(tmp_path: Path) -> None:
    wanted = experiment(tmp_path, setup={"pip": []}, cloud={"provider": "emulated"})
    profiles = stored_profiles(experiment(tmp_path), "resnet50-cifar10@v100")
    assert _with_fetch(profiles, wanted) == (profiles, [])


def test_a_mistake_in_requirements_is_shown_by_plan(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(
        "name: x\ntrain: train.py:train\nmetric: {name: loss, mode: min}\n"
        "search: {lr: {uniform: [0, 1]}}\ntrials: 2\nepochs: {max: 2}\n"
        "setup: {pip: requirements.txt}\n"
    )
    with pytest.raises(ExperimentError) as refused:
        load_experiment(path, {})
    there = tmp_path / "requirements.txt"
    assert str(refused.value) == f"{path}:7: setup.pip: {there}: no such file"
    there.write_text("torch\nto rch\n")
    with pytest.raises(ExperimentError) as refused:
        load_experiment(path, {})
    assert str(refused.value).startswith(
        f"{path}:7: setup.pip: {there}:2: 'to rch' is no requirement: "
    )


def test_a_run_keeps_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for again, a launch must be the very same, whatever the requirements say by now."""
    wanted = experiment(tmp_path, setup={"pip": []})
    driver = Runner(tmp_path, wanted, (), Cloud(Endpoint("x"), {}, {}), 0.0, 1.0, 1.0, 1.0, 1)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(b"12345")
    first = Delivery("/e/python", pack=Pack(str(path), "0", 5, "/e", "3.11.7", 1.0))
    given = iter([first, Delivery("/f/python")])
    monkeypatch.setattr(runner, "environment", lambda _experiment: (next(given), None))
    assert [driver._delivery() for _ in range(3)] == [first] * 3
    path.unlink()  # the bucket's rule has deleted it
    assert driver._delivery() == driver._delivery() == Delivery("/f/python")
