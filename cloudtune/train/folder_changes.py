"""The folder of a command's checkpoints: which of its files have changed."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

# Time of the last change, size and inode of each file, by its path.
State: TypeAlias = dict[str, tuple[int, int, int]]


def leads_out(link: Path, folder: Path) -> bool:
    """Whether a link in a folder is to something outside of it."""
    return not link.resolve().is_relative_to(folder.resolve())


def list_below(folder: Path) -> Iterator[Path]:
    """Return what is below a folder, without what is deleted meanwhile.

    `Path.rglob` raises where a folder goes while it is read, as when a trainer deletes an old save.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(parent, name)


class Changes:
    """Tracks which files of a folder have changed since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self.state()

    def state(self) -> State:
        """Return the present state of the folder's files, without links that lead out of it."""
        state: State = {}
        for path in list_below(self.path):
            with contextlib.suppress(OSError):  # it has just been deleted
                if path.is_symlink() and leads_out(path, self.path):
                    continue
                it = path.stat()
                if stat.S_ISREG(it.st_mode):
                    state[str(path)] = (it.st_mtime_ns, it.st_size, it.st_ino)
        return state

    def since(self, state: State | None = None) -> list[Path]:
        """Return the files that are new or changed since `news` was called, up to a `state`."""
        return self.between(self._seen, self.state() if state is None else state)

    @staticmethod
    def between(before: State, after: State) -> list[Path]:
        """Return the files that are new or changed in the second of two states."""
        return [Path(name) for name, it in after.items() if before.get(name) != it]

    def take(self, state: State) -> list[Path]:
        """Return the files that are new or changed in a state since the last call of `news`.

        What has changed since that state counts for the next call.
        """
        changed = self.between(self._seen, state)
        self._seen = state
        return changed

    def news(self) -> list[Path]:
        """Return the files that are new or changed since the last call."""
        return self.take(self.state())
