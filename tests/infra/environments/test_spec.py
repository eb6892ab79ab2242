"""What an environment is made from: each mistake with its place, and a hash of all that counts."""

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtune.errors import ExperimentError, UsageError
from cloudtune.infra.environments import spec as specs
from cloudtune.infra.environments.release import CUDA_PREFIXES, release_pins
from cloudtune.infra.environments.spec import make_spec, requirement_files
from tests.infra.environments.conftest import experiment


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("tqdm\n\nto rch=>2\n", "requirements.txt:3: 'to rch=>2' is no requirement: "),
        ("tqdm \\\n  >=4\nto rch\n", "requirements.txt:3: 'to rch' is no requirement: "),
        ("-e .\n", "requirements.txt:1: -e .: what is editable stays where it is; leave out -e"),
        ("-r more.txt\n", "requirements.txt:1: no such file"),
    ],
)
def test_a_line_that_is_no_requirement(tmp_path: Path, text: str, mistake: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(UsageError) as refused:
        requirement_files(experiment(tmp_path, pip="requirements.txt"))
    assert str(refused.value).startswith(f"{tmp_path}/{mistake}")


def test_requirement_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "# comment\n--extra-index-url https://example.org/simple\n-r more/base.txt\n"
        'tqdm>=4 ; python_version >= "3.11"  # why\nnumpy==2.0 --hash=sha256:00\n'
        "thing @ https://example.org/thing-1.0-py3-none-any.whl\n"
    )
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("-c pins.txt\nscipy\n")
    (tmp_path / "more" / "pins.txt").write_text("scipy==1.14.1\n")
    files = requirement_files(experiment(tmp_path, pip="requirements.txt"))
    assert [path.name for path in files] == ["requirements.txt", "base.txt", "pins.txt"]


def test_the_dependencies_of_a_project_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\nname = "x"\ndependencies = [\n  "tqdm",\n  "to rch",\n]\n')
    with pytest.raises(UsageError, match=r"pyproject.toml:5: 'to rch' is no requirement"):
        requirement_files(experiment(tmp_path, pip="pyproject.toml"))
    path.write_text("[tool.x]\n")
    with pytest.raises(UsageError, match=r"pyproject.toml: it has no \[project\]"):
        requirement_files(experiment(tmp_path, pip="pyproject.toml"))


@pytest.mark.parametrize(
    ("setup", "mistake"),
    [
        ({"python": 3.12}, "setup.python: 3.12 is a number; write it in quotes"),
        ({"python": "3.9"}, "setup.python: 3.9 is too old: cloudtune needs 3.11 or later"),
        ({"pip": ["tqdm", "to rch"]}, "setup.pip[1]: 'to rch' is no requirement: "),
        ({"pip": {"a": 1}}, "setup.pip: {'a': 1} is neither a file nor a list"),
        (
            {"pip": [], "python_path": "/x"},
            "setup.python_path: is for an image that has everything",
        ),
        ({"python_path": "bin/python"}, "setup.python_path: 'bin/python' is no path from /"),
        ({"commands": ["ls"]}, "setup.commands: are for rented machines"),
    ],
)
def test_mistakes_in_the_section(tmp_path: Path, setup: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        experiment(tmp_path, **setup)
    assert str(refused.value).startswith(mistake)


def test_the_hash_is_of_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requirements.txt"

    def digest(root: str = "/opt/x", **setup: Any) -> str:
        wanted = experiment(tmp_path, **{"pip": "requirements.txt", **setup})
        return make_spec(wanted, Path(root)).digest

    path.write_text("tqdm\n")
    first = digest()
    (tmp_path / "train.py").write_text("more = 1\n")
    assert digest() == first, "the script itself isn't part of it"
    others = [digest("/opt/y"), digest(python="3.99"), digest(pip=["tqdm"])]
    path.write_text("tqdm\n-r base.txt\n")
    (tmp_path / "base.txt").write_text("numpy\n")
    others.append(digest())
    (tmp_path / "base.txt").write_text("numpy==2\n")
    others.append(digest())
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://example.org/simple")
    others.append(digest())
    monkeypatch.setattr(specs, "code_hash", lambda: "another cloudtune")
    others.append(digest())
    monkeypatch.setattr(specs, "version", lambda name: "9.9")
    others.append(digest())
    assert len({first, *others}) == 1 + len(others)


def test_a_head_has_the_releases_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    pins, unhashed = release_pins()
    names = {line.partition("==")[0] for line in pins}
    assert {"ray", "torch", "sympy", "boto3", "nvidia-cublas", "triton"} <= names
    assert all(" --hash=sha256:" in line for line in pins)
    assert unhashed == ""
    other = {"ray": "2.58.0", "torch": "2.6.0"}
    monkeypatch.setattr("cloudtune.infra.environments.spec.version", other.get)
    lines = {line.partition("==")[0]: line for line in release_pins()[0]}
    assert lines["torch"] == "torch==2.6.0"
    assert lines["ray"].startswith(f"ray=={version('ray')} --hash")
    assert "sympy" not in lines, "torch 2.6 wants 1.13.1"
    assert "typing-extensions" not in lines
    assert not [name for name in lines if name.startswith(CUDA_PREFIXES)]
    assert lines["boto3"].startswith(f"boto3=={version('boto3')} --hash")


def test_a_newer_python_goes_without_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = SimpleNamespace(version_info=SimpleNamespace(minor=99))
    monkeypatch.setattr("cloudtune.infra.environments.release.sys", newer)
    pins, unhashed = release_pins()
    assert f"boto3=={version('boto3')}" in pins
    assert unhashed == "all, as this release was not tested with Python 3.99"
    uv = next(line for line in pins if line.startswith("uv=="))
    assert " --hash=" in uv, "its wheels are for any Python, and pip wants hashes"
