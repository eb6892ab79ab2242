"""A storage of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtune.train.checkpoint import (
    CheckpointStore,
)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))
