"""Before anything is rented the environment is there, and packed; a command runs by its Python."""

import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.environments import ready as readying
from cloudtune.infra.environments.build import Built, built_at
from cloudtune.infra.environments.delivery import Delivery
from cloudtune.infra.environments.ready import enter, own_environment, ready
from tests.infra.environments.conftest import experiment

NEEDS = {"pip": ["tiny"], "commands": ["true"]}


def on_aws(folder: Path, **setup: Any) -> Experiment:
    wanted = experiment(folder).to_json()
    return type(experiment(folder)).from_json(
        {**wanted, "cloud": {"provider": "aws"}, "setup": setup, "storage": str(folder / "s")}
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(readying, "ROOT", tmp_path / "opt")
    return tmp_path / "opt"


def test_it_is_built_once_then_fetched_by_whoever_has_it_not(
    offline: Path, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    storage, wanted = str(tmp_path / "s"), on_aws(tmp_path, **NEEDS)
    delivery, built = ready(wanted, storage, tmp_path, said.append)
    assert built is not None
    assert built.place.parent == root
    assert delivery.pack is not None
    assert (delivery.pack.into, delivery.commands) == (str(built.place), ("true",))
    assert Delivery.of(delivery.to_json()) == delivery
    assert [line.partition(" ")[0] for line in said] == ["setup:"] * len(said)
    monkeypatch.setattr(readying, "build", lambda *_: pytest.fail("it was built again"))
    assert ready(wanted, storage, tmp_path, said.append) == (delivery, built)
    built.place.rename(tmp_path / "away")  # as on another machine
    assert ready(wanted, storage, tmp_path, said.append) == (delivery, built)
    assert said[-1].startswith("setup: fetching ")
    assert built_at(built.place) == built


def test_where_instances_are_this_machine_nothing_is_packed(offline: Path, tmp_path: Path) -> None:
    wanted = experiment(tmp_path, pip=["tiny"])
    delivery, built = ready(wanted, str(tmp_path / "s"), tmp_path / "home", lambda _line: None)
    assert built is not None
    assert built.place.parent == tmp_path / "home" / "environments"
    assert delivery == Delivery(str(built.python))
    assert not (tmp_path / "s").exists()


def test_without_the_section_a_python_is_looked_for(tmp_path: Path) -> None:
    assert ready(on_aws(tmp_path), "s", tmp_path, print) == (Delivery(), None)
    assert ready(experiment(tmp_path), "s", tmp_path, print) == (Delivery("python3"), None)
    named = on_aws(tmp_path, python_path="/opt/pytorch/bin/python", commands=["ls"])
    asked = Delivery("/opt/pytorch/bin/python", ("ls",))
    assert ready(named, "s", tmp_path, print) == (asked, None)


def test_instances_get_the_environment_that_their_controller_runs_in(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a head that has made its own: its instances boot the same image."""
    monkeypatch.setattr(readying, "ROOT", built.place.parent)
    assert own_environment() is None
    monkeypatch.setattr(sys, "prefix", str(built.place / "venv"))
    delivery, there = ready(on_aws(tmp_path), str(tmp_path / "s"), tmp_path, lambda _line: None)
    assert there == built
    assert delivery.pack is not None
    assert delivery.pack.into == str(built.place)
    named = on_aws(tmp_path, python_path="/opt/pytorch/bin/python")
    assert ready(named, "s", tmp_path, print)[0].pack is None


@pytest.mark.parametrize(("version", "goes_on"), [("3.99.1", True), (None, False)])
def test_a_command_goes_on_by_the_python_of_the_environment(
    built: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    goes_on: bool,
) -> None:
    other = replace(built, version=version or platform.python_version())
    monkeypatch.setattr(readying, "ready", lambda *_: (Delivery(), other))
    monkeypatch.setattr(sys, "argv", ["cloudtune", "run", "experiment.yaml", "--here"])
    begun: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _program, words: begun.append(words))
    enter(on_aws(tmp_path, pip=[]), "s", tmp_path, lambda _line: None)
    words = [str(built.python), "-m", "cloudtune", "run", "experiment.yaml", "--here"]
    assert begun == ([words] if goes_on else [])


def test_this_machines_instances_have_no_other_python(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(built, version="3.99.1")
    monkeypatch.setattr(readying, "build", lambda *_: other)
    with pytest.raises(UsageError, match=r"setup\.python: instances of provider emulated are this"):
        ready(experiment(tmp_path, python="3.99"), "s", tmp_path, print)
