"""An environment built once for all tests here, by uv, from tiny wheels and without a network."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cloudtune.experiment import Experiment
from cloudtune.infra.environments.build import Built, build
from cloudtune.infra.environments.spec import Spec, make_spec
from tests.builders.experiments import small_experiment
from tests.builders.wheels import stand_ins, wheel


def experiment(folder: Path, **setup: Any) -> Experiment:
    return small_experiment(folder, setup=setup)


@pytest.fixture(scope="session")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Let uv have nothing but tiny wheels; returns their folder."""
    if find_spec("uv") is None:
        pytest.skip("uv isn't installed")
    if sys.base_prefix in {"/usr", "/usr/local"}:
        pytest.skip("this Python is the system's, and can't be copied into an environment")
    top = tmp_path_factory.mktemp("uv")
    stand_ins(top / "wheels")
    wheel(top / "wheels", "tiny", "1.5", {"tiny.py": "answer = 42\n"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_OFFLINE", "1")
        patch.setenv("UV_NO_INDEX", "1")
        patch.setenv("UV_FIND_LINKS", str(top / "wheels"))
        patch.setenv("UV_CACHE_DIR", str(top / "cache"))
        yield top / "wheels"


@pytest.fixture(scope="session")
def spec(offline: Path, tmp_path_factory: pytest.TempPathFactory) -> Spec:
    folder = tmp_path_factory.mktemp("script")
    (folder / "mine").mkdir()
    wheel(folder / "mine", "mine", "0.1", {"mine.py": "answer = 43\n"})
    (folder / "requirements.txt").write_text("--find-links mine\ntiny>=1  # from afar\nmine\n")
    return make_spec(experiment(folder, pip="requirements.txt"), folder / "environments")


@pytest.fixture(scope="session")
def built(spec: Spec) -> Built:
    return build(spec, lambda _line: None)
