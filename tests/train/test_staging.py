"""Where checkpoints wait for the storage: the node's own disk, if it has one with room."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from cloudtune.train.checkpoint import Checkpoint, CheckpointStore
from tests.builders.values import present

Usage = namedtuple("Usage", "total used free")
STATE = b"0123456789" * 100


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the node's own disk; the usual one is another."""
    (tmp_path / "usual").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "state.pt").write_bytes(STATE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "usual"))
    monkeypatch.setattr(CheckpointStore, "_is_on_local_disk", False)
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("CLOUDTUNE_STAGING", str(folder))
    return folder


def free(monkeypatch: pytest.MonkeyPatch, **mib: float) -> None:
    """Let n MiB be free, by the names of folders."""

    def usage(path: str | os.PathLike[str]) -> Usage:
        left = int(mib[Path(path).name] * 2**20)
        return Usage(2**40, 2**40 - left, left)

    monkeypatch.setattr(shutil, "disk_usage", usage)


def test_staged_checkpoint_is_read(own: Path) -> None:
    store = CheckpointStore(str(own.parent / "store"), ())
    staged = present(store.stage("t", 1, own.parent / "in"))
    assert Path(staged.files).parent == own
    path = present(store.commit(staged, {}))
    assert list(own.iterdir()) == [], "nothing stays there"
    with Checkpoint(path, 1).as_directory() as folder:
        assert Path(folder).parent == own
        assert Path(folder, "state.pt").read_bytes() == STATE


@pytest.mark.parametrize("why", ["full", "gone", "none"])
def test_else_with_temporary_files(own: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "full":
        free(monkeypatch, own=64.0, usual=1.0)
    elif why == "gone":
        own.rmdir()
    else:
        monkeypatch.setenv("CLOUDTUNE_STAGING", "")
    staged = present(
        CheckpointStore(str(own.parent / "store"), ()).stage("t", 1, own.parent / "in")
    )
    assert Path(staged.files).parent == own.parent / "usual"


def test_without_room_an_epoch_is_not_saved_and_reported(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free(monkeypatch, own=1.0, usual=0.0)
    assert CheckpointStore(str(own.parent / "store"), ()).stage("t", 1, own.parent / "in") is None
    result = capsys.readouterr().err
    assert "epoch 1 is not saved" in result
    assert f"a checkpoint of 0 MiB, and 0 MiB free in {own.parent / 'usual'}" in result
    assert str(own) in result
    assert list(own.iterdir()) == list((own.parent / "usual").iterdir()) == []
