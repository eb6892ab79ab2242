"""The folder of a command's checkpoints: which of its files have changed."""

import contextlib
import stat
from pathlib import Path


class Changes:
    """Tells whether files of a folder have changed since it was last asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._state()

    def _state(self) -> dict[str, tuple[int, int, int]]:
        state = {}
        for path in self.path.rglob("*"):
            with contextlib.suppress(OSError):  # it has just gone
                it = path.stat()
                if stat.S_ISREG(it.st_mode):
                    state[str(path)] = (it.st_mtime_ns, it.st_size, it.st_ino)
        return state

    def since(self) -> list[Path]:
        """Return the files that are new or changed since `news` was last asked."""
        before = self._seen
        return [Path(name) for name, it in self._state().items() if before.get(name) != it]

    def news(self) -> list[Path]:
        """Return the files that are new or changed since this was last asked."""
        changed = self.since()
        self._seen = self._state()
        return changed
