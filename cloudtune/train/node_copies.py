"""Copies of checkpoints on a node's own disk, apart from the storage.

Of a trial's workers on a node only the first fetches what they resume from. Where the storage is
elsewhere, a trial that goes on where it was saved needn't download what its node has just uploaded.
A copy is no more than a shortcut: the storage says what a checkpoint is, and a copy that was
changed, or had to make room, is fetched again.

    <staging folder>/cloudtune-<agent>/whole/<trial>/<folder of the save>/stamps.json
    <staging folder>/cloudtune-<agent>/whole/<trial>/<folder of the save>/files/…
    <staging folder>/cloudtune-<agent>/begun/…

They last as long as the node's agent.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cloudtune.file_locks import lock_file
from cloudtune.train import storage
from cloudtune.train.saved_files import AGENT_VARIABLE, TICK_SECONDS, file_stamp

_WHOLE: Final = "whole"
_BEGUN: Final = "begun"
_STAMPS: Final = "stamps.json"
_FILES: Final = "files"
# Of the free room: beside its copy a trial needs room for the script's next save and for ours.
_SHARE: Final = 1 / 4


def are_kept() -> bool:
    """Whether this process works for a node's agent."""
    return bool(os.environ.get(AGENT_VARIABLE))


def find(trial: str, folder: str) -> Path | None:
    """Return the folder of this node's copy of a save; None if it has none, or a changed one."""
    if not are_kept():
        return None
    place = _root() / _WHOLE / trial / folder
    files = place / _FILES
    try:
        stamps = json.loads((place / _STAMPS).read_text())
        is_unchanged = all(_copy_stamp(files / name) == stamp for name, stamp in stamps.items())
    except (OSError, ValueError):
        return None
    return files if is_unchanged else None


def keep(trial: str, folder: str, files: Path) -> None:
    """Move the files of a save here, in place of the trial's older copies.

    They are deleted where that isn't possible: nothing depends on them.
    """
    place = _root() / _WHOLE / trial / folder
    try:
        if not are_kept():
            return
        time.sleep(TICK_SECONDS)  # a later change must show in the stamps
        paths = (path for path in files.rglob("*") if path.is_file())
        stamps = {path.relative_to(files).as_posix(): _copy_stamp(path) for path in paths}
        shutil.rmtree(place.parent, ignore_errors=True)
        _make_folder(_WHOLE)
        place.mkdir(parents=True)
        files.rename(place / _FILES)
        (place / _STAMPS).write_text(json.dumps(stamps))
        make_room()
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
    finally:
        shutil.rmtree(files, ignore_errors=True)


def link(files: Path, to_directory: Path) -> bool:
    """Give a process the files of a copy under names of its own; return False if that failed.

    If it writes into one, the copy has changed, and isn't used again.
    """
    try:
        for path in files.rglob("*"):
            if path.is_file():
                target = to_directory / path.relative_to(files)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)
    except OSError:  # it had to make room, or the folder is on another disk
        return False
    return True


def has_room(size: int) -> bool:
    """Whether a copy of that size can be kept, perhaps in place of others."""
    make_room(size)
    return size <= _SHARE * (shutil.disk_usage(_root()).free - size)


def make_room(size: int = 0) -> None:
    """Drop the oldest copies, so that they leave much more free than they take, and `size`."""
    with contextlib.suppress(OSError):  # another worker may be at it
        copies = list((_root() / _WHOLE).glob("*/*/"))
        copies.sort(key=lambda place: place.stat().st_mtime, reverse=True)
        while copies:
            taken = sum(path.stat().st_size for place in copies for path in place.rglob("*"))
            if taken <= _SHARE * (shutil.disk_usage(_root()).free - size):
                return
            shutil.rmtree(copies.pop(), ignore_errors=True)


@contextlib.contextmanager
def one_at_a_time(trial: str) -> Iterator[None]:
    """Wait until no other worker of this node fetches a checkpoint of the trial."""
    with lock_file(_make_folder(_WHOLE) / f"{trial}.lock"):
        yield


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """Yield a folder for a copy that isn't whole yet."""
    with tempfile.TemporaryDirectory(dir=_make_folder(_BEGUN)) as folder:
        yield Path(folder)


def drop_all(agent: str) -> None:
    """Delete the copies of an agent that ends."""
    shutil.rmtree(_root(agent), ignore_errors=True)


def _make_folder(name: str) -> Path:
    """Return a folder in that of the agent, which only this user may read."""
    root = _root()
    root.mkdir(mode=0o700, exist_ok=True)
    (root / name).mkdir(exist_ok=True)
    return root / name


def _copy_stamp(path: Path) -> str:
    return file_stamp(path).rpartition("/")[0]  # without the ctime, which changes with each link


def _root(agent: str | None = None) -> Path:
    return Path(storage.staging_folder(), f"cloudtune-{agent or os.environ.get(AGENT_VARIABLE)}")
