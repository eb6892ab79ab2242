"""The folder of a command's checkpoints: which of its files have changed."""

import contextlib
import stat
from pathlib import Path


class Changes:
    """Tracks which files of a folder have changed since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._state()

    def _state(self) -> dict[str, tuple[int, int, int]]:
        state = {}
        for path in self.path.rglob("*"):
            with contextlib.suppress(OSError):  # it has just been deleted
                it = path.stat()
                if stat.S_ISREG(it.st_mode):
                    state[str(path)] = (it.st_mtime_ns, it.st_size, it.st_ino)
        return state

    def since(self) -> list[Path]:
        """Return the files that are new or changed since the last call of `news`."""
        before = self._seen
        return [Path(name) for name, it in self._state().items() if before.get(name) != it]

    def news(self) -> list[Path]:
        """Return the files that are new or changed since the last call."""
        changed = self.since()
        self._seen = self._state()
        return changed
