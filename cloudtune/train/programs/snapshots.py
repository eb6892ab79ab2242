"""The folder of a command's checkpoints: whether it has changed, and when it is whole."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PATIENCE: Final = 60.0
_PAUSE: Final = 0.01


class Changes:
    """Tells whether files of a folder have changed since it was last asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._state()

    def _state(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for path in self.path.rglob("*"):
            with contextlib.suppress(OSError):  # it has just gone
                it = path.stat()
                if stat.S_ISREG(it.st_mode):
                    found[str(path)] = (it.st_mtime_ns, it.st_size, it.st_ino)
        return found

    def news(self) -> bool:
        """Whether there are files, and other ones than when this was last asked."""
        before, self._seen = self._seen, self._state()
        return bool(self._seen) and self._seen != before


def being_written(folder: Path, pids: Iterable[int]) -> bool:
    """Whether one of these processes has a file below the folder open to write."""
    inside = f"{folder.resolve()}{os.sep}"
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    if str(link.readlink()).startswith(inside) and _writes(pid, link.name):
                        return True
    return False


def _writes(pid: int, number: str) -> bool:
    text = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="ascii")
    flags = next(line.split()[1] for line in text.splitlines() if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def wait_until_whole(
    folder: Path, pids: Callable[[], Iterable[int]], ended: Callable[[], bool]
) -> bool:
    """Wait while something is being written there; whether that came to its end."""
    give_up = time.monotonic() + _PATIENCE
    while being_written(folder, pids()):
        if time.monotonic() > give_up or ended():
            return False
        time.sleep(_PAUSE)
    return True
