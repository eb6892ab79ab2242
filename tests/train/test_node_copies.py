"""What a node keeps of checkpoints beside their storage."""

import shutil
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cloudtune
from cloudtune.train import checkpoint as checkpoints
from cloudtune.train import node_copies, saved_files, storage
from cloudtune.train.checkpoint import Checkpoint, CheckpointStore, usable
from cloudtune.train.saved_files import SavedFile
from tests.builders.values import present
from tests.train.sessions import run_to_grant

Reads = list[str]


def train(config: dict[str, Any]) -> None:
    """Write the epochs into a file, from the checkpoint on, and that into `seen`."""
    epochs = ""
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            epochs = Path(folder, "deep/epochs").read_text()
    for epoch in cloudtune.epochs():
        epochs += f"{epoch} "
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "deep").mkdir()
            Path(folder, "deep/epochs").write_text(epochs)
            cloudtune.report({"acc": epoch / 10}, Checkpoint.from_directory(folder))


def on_to(epoch: int, uri: str, restore: str | None) -> str:
    """Train in a session as far as that; return the last checkpoint."""
    store = CheckpointStore(uri)
    reports = run_to_grant(train, store=store, restore=restore, max_epoch=epoch)
    return present(reports[-1].checkpoint)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's folder, and its agent."""
    staging = tmp_path / "staging"
    staging.mkdir()
    monkeypatch.setenv("CLOUDTUNE_STAGING", str(staging))
    monkeypatch.setenv(saved_files.AGENT_VARIABLE, "here")
    return staging


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The names of the files that are read from the storage."""
    read = []
    real = checkpoints.open_file

    def open_file(path: str, manifest: Any, name: str) -> Any:
        read.append(name)
        return real(path, manifest, name)

    monkeypatch.setattr(checkpoints, "open_file", open_file)
    return read


def text(path: str, to: Path) -> str:
    checkpoints.load(path, to)
    return (to / "deep/epochs").read_text()


def test_a_trial_that_goes_on_here_downloads_nothing(
    node: Path, bucket: str, reads: Reads, tmp_path: Path
) -> None:
    second = on_to(2, bucket, None)
    fourth = on_to(4, bucket, second)
    assert reads == []
    assert text(fourth, tmp_path / "out") == "1 2 3 4 "
    assert len(list(node.rglob("epochs"))) == 1, "of a trial only the last save is kept"
    assert {path.stat().st_mode & 0o077 for path in node.iterdir()} == {0}


def test_node_downloads_a_checkpoint_once(
    node: Path, bucket: str, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = on_to(2, bucket, None)
    monkeypatch.setenv(saved_files.AGENT_VARIABLE, "another")
    on_to(3, bucket, second)
    assert reads == ["deep/epochs"]


def test_workers_of_a_node_download_once_together(
    node: Path, bucket: str, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = on_to(2, bucket, None)
    monkeypatch.setenv(saved_files.AGENT_VARIABLE, "another")
    threads = [threading.Thread(target=usable, args=(second,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reads == ["deep/epochs"]


def test_script_writes_harm_no_copy(node: Path, bucket: str, reads: Reads, tmp_path: Path) -> None:
    second = on_to(2, bucket, None)
    with Checkpoint.from_storage(second).as_directory() as folder:
        Path(folder, "deep/epochs").write_text("9 9 ")
    third = on_to(3, bucket, second)
    assert text(third, tmp_path / "out") == "1 2 3 "
    assert reads == ["deep/epochs"]


def test_damage_in_the_storage_is_noticed_by_another_node(
    node: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = on_to(1, bucket, None)
    second = on_to(2, bucket, first)
    monkeypatch.setattr(checkpoints, "copy_file", lambda *_, **__: SavedFile(4, "crc32:00000000"))
    monkeypatch.setenv(saved_files.AGENT_VARIABLE, "another")
    assert usable(second) is None
    assert not list(Path(node, "cloudtune-another").glob("*/*/")), "and it keeps none of it"


def test_without_room_for_copies_workers_download(
    node: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, reads: Reads
) -> None:
    second = on_to(2, bucket, None)
    monkeypatch.setenv(saved_files.AGENT_VARIABLE, "another")
    monkeypatch.setattr(node_copies, "_SHARE", 0)
    on_to(3, bucket, second)
    assert reads == 2 * ["deep/epochs"], "to check it, and to load it"
    assert not list(Path(node, "cloudtune-another").rglob("epochs"))


def test_copy_runs_beside_the_script(node: Path) -> None:
    def makes_a_model(config: dict[str, Any]) -> None:
        give_up = time.monotonic() + 60
        while not list(node.glob("cloudtune-here/whole/*/*/files/deep/epochs")):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        train(config)

    uri = str(node.parent / "store")
    second = on_to(2, uri, None)
    assert not list(node.rglob("epochs")), "staged where it stays"
    run_to_grant(makes_a_model, store=CheckpointStore(uri), restore=second, max_epoch=3)


def test_local_workers_share_a_copy(
    node: Path,
) -> None:
    """Neither what one writes into its folder nor what it deletes there harms the checkpoint."""
    second = on_to(2, str(node.parent / "store"), None)
    stored = Checkpoint.from_storage(second)
    [saved] = Path(second).rglob("epochs")
    with stored.as_directory() as one, stored.as_directory() as other:
        inodes = {Path(folder, "deep/epochs").stat().st_ino for folder in (one, other)}
        assert len(inodes) == 1
        assert saved.stat().st_ino not in inodes
        Path(one, "deep/epochs").write_text("9 9 ")
        Path(one, "deep/epochs").unlink()
    with stored.as_directory() as folder:
        assert Path(folder, "deep/epochs").read_text() == "1 2 "


@pytest.mark.parametrize(("free", "kept"), [(10**6, True), (10**3, False)])
def test_copies_make_room_for_the_next_save(
    node: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, free: int, kept: bool
) -> None:
    disk = SimpleNamespace(free=free + storage._SPARE_BYTES)
    on_to(1, bucket, None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    node_copies.make_room(storage._SPARE_BYTES)
    assert len(list(node.rglob("epochs"))) == kept
