"""The best model as plain files: whole or not there, whatever breaks."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtune.train import best, saved_files
from cloudtune.train.best import keep_best, read_note
from cloudtune.train.checkpoint import Checkpoint, CheckpointStore
from cloudtune.train.saved_files import copy_file
from cloudtune.train.storage import CheckpointError, StorageError, delete
from tests.builders.values import present

FILES = {"state.pt": "first", "tokenizer/vocab.txt": "a b c"}
ABOUT = {"run": "r-1", "config": {"lr": 0.1}}


def save_best(tmp_path: Path, epoch: int = 3, **files: Any) -> str:
    folder = tmp_path / f"made-{epoch}"
    for name, text in {**FILES, **files}.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    metrics = {"acc": 0.5, "loss": math.inf}
    return CheckpointStore(str(tmp_path / "store")).save("t07", epoch, metrics, folder)


def content(folder: str | Path) -> dict[str, str]:
    root = Path(folder)
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != best.NOTE
    }


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "_WAITS", ())


def test_the_files_lie_there_as_the_script_wrote_them(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    path = keep_best(store, save_best(tmp_path), ABOUT)
    assert path == f"{store}/best"
    assert content(path) == FILES
    assert json.loads(Path(path, "cloudtune.json").read_text()) == {
        "trial": "t07",
        "epoch": 3,
        "metrics": {"acc": 0.5, "loss": "inf"},
        **ABOUT,
    }
    with Checkpoint(path).as_directory() as folder:
        assert content(folder) == FILES


def test_next_best_replaces_everything(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    keep_best(store, save_best(tmp_path, old="1"), ABOUT)
    path = keep_best(store, save_best(tmp_path, 4, new="2"), ABOUT)
    assert content(path) == {**FILES, "new": "2"}
    assert {item.name for item in Path(store).iterdir()} == {"best", "t07"}


class BreaksAt:
    """A disk whose n-th write, rename or deletion ends the process, as a kill does."""

    def __init__(self, number: int) -> None:
        self.left = number

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return real(*given, **options)

        return called


@pytest.mark.parametrize("number", range(8))
def test_a_kill_at_any_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    store = str(tmp_path / "store")
    first, second = save_best(tmp_path, state="old"), save_best(tmp_path, 4, state="new")
    keep_best(store, first, ABOUT)
    breaks = BreaksAt(number)
    with monkeypatch.context() as patch:
        patch.setattr("cloudtune.train.best.copy_file", breaks.around(copy_file))
        patch.setattr(Path, "rename", breaks.around(Path.rename))
        patch.setattr("cloudtune.train.best.delete", breaks.around(delete))
        try:
            keep_best(store, second, ABOUT)
        except KeyboardInterrupt:
            pass
        else:
            assert number >= 5, "three files, two renames"
    note = read_note(f"{store}/best")
    if note is None:
        assert not Path(store, "best").exists(), "none at all"
    else:
        assert content(f"{store}/best")["state"] == {3: "old", 4: "new"}[note["epoch"]]
    assert keep_best(store, second, ABOUT)
    assert content(f"{store}/best")["state"] == "new"
    assert {path.name for path in Path(store).iterdir()} == {"best", "t07"}, "nothing is left over"


def test_a_file_that_looks_unchanged_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a resume by the same node's workers trusts isn't enough for what is delivered."""
    monkeypatch.setattr(saved_files, "file_stamp", lambda _path: "of this agent")
    source = tmp_path / "made"
    source.mkdir()
    (source / "state.pt").write_text("first")
    store = CheckpointStore(str(tmp_path / "store"))
    pending = present(store.stage("t", 1, source))
    time.sleep(0.05)  # what was written this instant has no stamp
    checkpoint = present(store.commit(pending, {}))
    [state] = Path(checkpoint).rglob("state.pt")
    state.write_text("First")
    assert store.is_intact(checkpoint)
    with pytest.raises(CheckpointError, match="is corrupt"):
        keep_best(store.uri, checkpoint, ABOUT)


def test_damage_leaves_what_stood_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = str(tmp_path / "store")
    keep_best(store, save_best(tmp_path), ABOUT)
    second = save_best(tmp_path, 4)
    [state] = Path(second).glob("*/state.pt")
    state.write_text("other")
    with pytest.raises(CheckpointError, match=r"state\.pt of the checkpoint .* is corrupt"):
        keep_best(store, second, ABOUT)
    assert (read_note(f"{store}/best") or {})["epoch"] == 3

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(best, "copy_file", full)
    with pytest.raises(StorageError, match="No space left"):
        keep_best(store, save_best(tmp_path, 5), ABOUT)
    assert content(f"{store}/best") == FILES
    assert {path.name for path in Path(store).iterdir()} == {"best", "t07"}


def test_note_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the script saves a file cloudtune\.json"):
        keep_best(str(tmp_path / "store"), save_best(tmp_path, 3, **{best.NOTE: "{}"}), ABOUT)


def test_without_its_note_it_is_not_whole(tmp_path: Path) -> None:
    path = keep_best(str(tmp_path / "store"), save_best(tmp_path), ABOUT)
    Path(path, best.NOTE).unlink()
    assert read_note(path) is None
    Path(path, best.NOTE).write_text("[]")
    assert read_note(path) is None
