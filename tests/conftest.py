"""What holds for every test: nothing is written outside its own folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def torch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Torch makes its compiler's cache folder in /tmp at import, unless it is told another."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("torch"))
    yield
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
