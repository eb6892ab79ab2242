"""Environments are built whole, once, and what a crash has left of one doesn't count."""

import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.environments import build as building
from cloudtune.infra.environments.build import Built, build, built_at
from cloudtune.infra.environments.delivery import COMPLETE
from cloudtune.infra.environments.spec import Spec, spec_of
from tests.infra.environments.conftest import experiment


def test_its_python_is_its_own_and_has_cloudtune_and_the_requirements(built: Built) -> None:
    told = "import cloudtune, sys, tiny, mine; print(cloudtune.__file__, sys.base_prefix)"
    where, base = subprocess.run(
        [built.python, "-I", "-c", told], capture_output=True, text=True, check=True
    ).stdout.split()
    assert where.startswith(f"{built.place}/venv/")
    assert base.startswith(f"{built.place}/python/")
    assert built.version == platform.python_version()
    assert {"tiny==1.5", "mine==0.1"} <= set(built.packages)
    assert built_at(built.place) == built


def test_what_is_there_is_not_built_again(
    built: Built, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "uv_program", lambda: pytest.fail("it was built again"))
    assert build(spec, print) == built


def test_what_a_crash_has_left_is_no_environment(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = replace(spec, root=tmp_path)
    (half.place / "venv" / "bin").mkdir(parents=True)
    (half.place / "left").touch()
    assert built_at(half.place) is None

    def crash(*_: object) -> None:
        assert not (half.place / "left").exists(), "the rest of before is gone"
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "_python", crash)
    with pytest.raises(KeyboardInterrupt):
        build(half, lambda _line: None)
    assert not half.place.exists()


def test_requirements_that_cant_be_had_are_a_persons_mistake(offline: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tiny>=2\n")
    wanted = spec_of(experiment(tmp_path, pip="requirements.txt"), tmp_path / "environments")
    with pytest.raises(UsageError) as refused:
        build(wanted, lambda _line: None)
    told = str(refused.value)
    assert told.startswith(f"{tmp_path}/requirements.txt: the requirements can't be had together")
    assert "nothing was launched" in told
    assert "tiny>=2" in told, "uv's own words"
    assert not (wanted.place / COMPLETE).exists()


def test_a_folder_that_cant_be_written_is_told_with_what_to_do(
    offline: Path, tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    wanted = spec_of(experiment(tmp_path, pip=[]), tmp_path / "taken" / "environments")
    with pytest.raises(UsageError, match=r"can't be written .*: sudo install -d"):
        build(wanted, print)


def test_another_python_is_found_where_it_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    own = f"3.{sys.version_info.minor}"
    beside = sorted(Path(sys.base_prefix).parent.glob("3.1[1-9]*/bin/python3.1?"))
    others = [each for each in beside if each.name != f"python{own}"]
    uv = building.uv_program()
    assert building._base_here(platform.python_version(), uv) == Path(sys.base_prefix)
    assert building._base_here(own, uv) == Path(sys.base_prefix)
    if not others:
        pytest.skip("there is no other Python beside this one")
    monkeypatch.setenv("PATH", f"{others[0].parent}:/usr/bin:/bin")
    wanted = others[0].name.removeprefix("python")
    assert building._base_here(wanted, uv) == others[0].parents[1]
    assert building._base_here("3.99", uv) is None
