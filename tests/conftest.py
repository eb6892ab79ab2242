"""What holds for every test: nothing is written outside its own folders, and nothing is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# The benchmarks are no package of the product's, and are tested as well.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# A test leaves no thread and no process, and pytest ends.
pytest_plugins = ["tests.guard"]

# The same examples each time: a run of the tests says something of the code alone. New ones are
# sought with `pytest --hypothesis-profile=explore`, and what they find becomes an example.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def torch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Torch makes its compiler's cache folder in /tmp at import, unless it is told another."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("torch"))
    yield
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
