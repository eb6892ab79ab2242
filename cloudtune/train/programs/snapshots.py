"""The folder of a command's checkpoints: when its files are complete, and whether any was read."""

import contextlib
import ctypes
import os
import struct
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import psutil

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# Flags of <sys/inotify.h>.
_IN_ACCESS: Final = 0x1
_IN_CLOSE_NOWRITE: Final = 0x10
_IN_ISDIR: Final = 0x40000000
_EVENT: Final = struct.Struct("iIII")  # inotify(7): watch, mask, cookie, length of the name
_ZIP: Final = b"PK\x03\x04"
# Seconds after a report for which a program may keep files open until they count as unsaved.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.01
# A file that stays open for a second and grows by less than this is a log, not a checkpoint.
_LOG_SECONDS: Final = 1.0
_LOG_BYTES: Final = 2**20


def torn(files: Iterable[Path]) -> Path | None:
    """Return the first file that can't be whole: an empty one, or an archive without its end.

    `torch.save` writes a zip archive, whose directory comes last.
    """
    for path in files:
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                return path
            with path.open("rb") as file:
                begins = file.read(len(_ZIP))
            if begins == _ZIP and not zipfile.is_zipfile(path):
                return path
    return None


class ReadWatch:
    """Tracks whether any file below a folder has been read since its creation, by inotify(7)."""

    def __init__(self, folder: Path) -> None:
        self._file = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        mask = _IN_ACCESS | _IN_CLOSE_NOWRITE
        watches = [_LIBC.inotify_add_watch(self._file, os.fsencode(path), mask) for path in folders]
        self.works = self._file >= 0 and min(watches) >= 0

    def was_read(self) -> bool:
        """Whether any file has been read; True if the system can't tell."""
        if not self.works:
            return True
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._file, 1 << 16)
        at = 0
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            if not mask & _IN_ISDIR:
                return True
            at += _EVENT.size + length
        return False

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class OpenFiles:
    """The files below a folder that the processes of a command have open for writing.

    A file that stays open while the script trains, and hardly grows, is a log, not a save.
    """

    def __init__(self, folder: Path, tree: Callable[[], Iterable[psutil.Process]]) -> None:
        self._inside = f"{folder.resolve()}{os.sep}"
        self._tree = tree
        self.logs: set[str] = set()

    def saving(self) -> set[str]:
        """Return those that aren't logs."""
        names = set()
        for process in self._tree():
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{process.pid}/fd").iterdir():
                    with contextlib.suppress(OSError, ValueError, StopIteration):
                        name = str(link.readlink())
                        if name.startswith(self._inside) and _writes(process.pid, link.name):
                            names.add(name)
        self.logs &= names
        return names - self.logs

    def wait(self, ended: Callable[[], bool]) -> bool:
        """Wait until no save is under way; return False if the script has ended before that."""
        began = time.monotonic()
        sizes: dict[str, tuple[float, int]] = {}
        while names := self.saving():
            now = time.monotonic()
            if now > began + _PATIENCE or ended():
                return False
            for name in names:
                since, size = sizes.setdefault(name, (now, _size(name)))
                if now > since + _LOG_SECONDS and _size(name) < size + _LOG_BYTES:
                    self.logs.add(name)
            time.sleep(_PAUSE)
        return True


def _size(name: str) -> int:
    try:
        return Path(name).stat().st_size
    except OSError:
        return 0


def _writes(pid: int, number: str) -> bool:
    text = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="ascii")
    flags = next(line.split()[1] for line in text.splitlines() if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
