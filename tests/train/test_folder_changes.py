"""Which files of a folder have changed, also while others go."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtune.train.folder_changes import Changes


@contextmanager
def saves_that_come_and_go(folder: Path) -> Iterator[None]:
    """Write saves of some files beside others, and delete them, as trainers with a limit do."""
    over = threading.Event()

    def save() -> None:
        while not over.is_set():
            for step in range(8):
                inner = folder / f"checkpoint-{step}" / "adapter"
                inner.mkdir(parents=True)
                (inner / "model.bin").write_bytes(b"x")
            for step in range(8):
                shutil.rmtree(folder / f"checkpoint-{step}")

    thread = threading.Thread(target=save)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_folders_may_be_deleted_while_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "model.bin").write_bytes(b"y")
    changes = Changes(tmp_path)
    with saves_that_come_and_go(tmp_path):
        states = [changes.state() for _ in range(500)]
    assert all(str(tmp_path / "kept" / "model.bin") in state for state in states)
    assert max(map(len, states)) > 1, "none was seen"
