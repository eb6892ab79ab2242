"""Environments are built whole, once, and packed before anything is rented."""

import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.environments import build as building
from cloudtune.infra.environments import ready as readying
from cloudtune.infra.environments.build import Built, build, read_built
from cloudtune.infra.environments.delivery import COMPLETE, Delivery
from cloudtune.infra.environments.ready import enter, own_environment, ready
from cloudtune.infra.environments.spec import Spec, make_spec
from cloudtune.model.serialization import decode, encode
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


@pytest.fixture
def at_once(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built has no files: `built` is a whole one, which takes seconds."""

    def build(spec: Spec, _say: object) -> Built:
        spec.place.mkdir(parents=True)
        shutil.copy(built.place / COMPLETE, spec.place)
        return replace(built, place=spec.place)

    monkeypatch.setattr(readying, "build", build)


def test_it_is_built_once_and_fetched_by_others(
    at_once: None, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    storage, wanted = str(tmp_path / "s"), on_aws(tmp_path, **NEEDS)
    delivery, built = ready(wanted, storage, tmp_path, said.append)
    assert built is not None
    assert built.place.parent == root
    assert delivery.pack is not None
    assert (delivery.pack.into, delivery.commands) == (str(built.place), ("true",))
    assert decode(Delivery, encode(delivery)) == delivery
    assert [line.partition(" ")[0] for line in said] == ["setup:"] * len(said)
    monkeypatch.setattr(readying, "build", lambda *_: pytest.fail("it was built again"))
    assert ready(wanted, storage, tmp_path, said.append) == (delivery, built)
    built.place.rename(tmp_path / "away")  # as on another machine
    assert ready(wanted, storage, tmp_path, said.append) == (delivery, built)
    assert said[-1].startswith("setup: fetching ")
    assert read_built(built.place) == built


def test_where_instances_are_this_machine_nothing_is_packed(at_once: None, tmp_path: Path) -> None:
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


def test_instances_get_the_controllers_environment(
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
def test_command_continues_in_environment_python(
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


def test_they_have_no_other(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(built, version="3.99.1")
    monkeypatch.setattr(readying, "build", lambda *_: other)
    with pytest.raises(UsageError, match=r"setup\.python: instances of provider emulated are this"):
        ready(experiment(tmp_path, python="3.99"), "s", tmp_path, print)


def test_environment_has_own_python(built: Built) -> None:
    result = "import cloudtune, sys, tiny, mine; print(cloudtune.__file__, sys.base_prefix)"
    where, base = subprocess.run(
        [built.python, "-I", "-c", result], capture_output=True, text=True, check=True
    ).stdout.split()
    assert where.startswith(f"{built.place}/venv/")
    assert base.startswith(f"{built.place}/python/")
    assert built.version == platform.python_version()
    assert {"tiny==1.5", "mine==0.1"} <= set(built.packages)
    assert read_built(built.place) == built


def test_it_is_built_once(built: Built, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "uv_program", lambda: pytest.fail("it was built again"))
    assert build(spec, print) == built


def test_debris_is_not_used(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = replace(spec, root=tmp_path)
    (half.place / "venv" / "bin").mkdir(parents=True)
    (half.place / "left").touch()
    assert read_built(half.place) is None

    def crash(*_: object) -> None:
        assert not (half.place / "left").exists(), "the rest of before is gone"
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "_python", crash)
    with pytest.raises(KeyboardInterrupt):
        build(half, lambda _line: None)
    assert not half.place.exists()


def test_missing_requirements_are_usage_errors(offline: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tiny>=2\n")
    wanted = make_spec(experiment(tmp_path, pip="requirements.txt"), tmp_path / "environments")
    with pytest.raises(UsageError) as refused:
        build(wanted, lambda _line: None)
    result = str(refused.value)
    assert result.startswith(f"{tmp_path}/requirements.txt: the requirements can't be had together")
    assert "nothing was launched" in result
    assert "tiny>=2" in result, "uv's own words"
    assert not (wanted.place / COMPLETE).exists()


def test_a_folder_that_cant_be_written_is_reported(offline: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    wanted = make_spec(experiment(tmp_path, pip=[]), tmp_path / "taken" / "environments")
    with pytest.raises(UsageError, match=r"can't be written .*: sudo install -d"):
        build(wanted, print)


def test_other_python_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    own = f"3.{sys.version_info.minor}"
    beside = sorted(Path(sys.base_prefix).parent.glob("3.1[1-9]*/bin/python3.1?"))
    others = [item for item in beside if item.name != f"python{own}"]
    uv = building.uv_program()
    assert building._base_here(platform.python_version(), uv) == Path(sys.base_prefix)
    assert building._base_here(own, uv) == Path(sys.base_prefix)
    if not others:
        pytest.skip("there is no other Python beside this one")
    monkeypatch.setenv("PATH", f"{others[0].parent}:/usr/bin:/bin")
    wanted = others[0].name.removeprefix("python")
    assert building._base_here(wanted, uv) == others[0].parents[1]
    assert building._base_here("3.99", uv) is None
