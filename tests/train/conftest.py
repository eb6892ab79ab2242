"""A storage of checkpoints, and this process as a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtune.train.checkpoint import CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def as_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts find their neighbours, and torch has one thread."""
    import torch

    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
