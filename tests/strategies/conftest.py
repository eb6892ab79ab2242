"""What tests of strategies share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script and a home of its own."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("def train(config): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path
