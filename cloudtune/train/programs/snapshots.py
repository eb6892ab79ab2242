"""The folder of a command's checkpoints: when its files are complete, and whether any was read."""

import contextlib
import ctypes
import os
import struct
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import psutil

from cloudtune.train.folder_changes import list_below

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# Flags of <sys/inotify.h>.
_IN_ACCESS: Final = 0x1
_IN_CLOSE_NOWRITE: Final = 0x10
_IN_ISDIR: Final = 0x40000000
_IN_MODIFY: Final = 0x2
_IN_CLOSE_WRITE: Final = 0x8
_IN_MOVED_TO: Final = 0x80
_IN_CREATE: Final = 0x100
_IN_Q_OVERFLOW: Final = 0x4000
_WRITES: Final = _IN_MODIFY | _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE
_EVENT: Final = struct.Struct("iIII")  # inotify(7): watch, mask, cookie, length of the name
# Seconds after a report for which a program may keep files open until they count as unsaved.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.01
# A file that stays open for a second and grows by less than this is a log, not a checkpoint.
_LOG_SECONDS: Final = 1.0
_LOG_BYTES: Final = 2**20


class ReadWatch:
    """Tracks whether any file below a folder has been read since its creation, by inotify(7)."""

    def __init__(self, folder: Path) -> None:
        self._file = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        folders = [folder, *(path for path in list_below(folder) if path.is_dir())]
        mask = _IN_ACCESS | _IN_CLOSE_NOWRITE
        watches = [_LIBC.inotify_add_watch(self._file, os.fsencode(path), mask) for path in folders]
        self.works = self._file >= 0 and min(watches) >= 0

    def was_read(self) -> bool:
        """Whether any file has been read; True if the system can't tell."""
        if not self.works:
            return True
        return any(not mask & _IN_ISDIR for _, mask, _ in _events(self._file))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _events(file: int) -> list[tuple[int, int, str]]:
    """Return the watch, the mask and the name of what inotify(7) has seen, some of it at a time."""
    data = b""
    with contextlib.suppress(BlockingIOError):
        data = os.read(file, 1 << 16)
    events = []
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
        events.append((watch, mask, os.fsdecode(name)))
        at += _EVENT.size + length
    return events


def last_write(path: Path) -> float:
    """Return when a file was last written, in Unix time; 0 if it isn't there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class WriteOrder:
    """Tracks which files below a folder were written after the last line of a log, by inotify(7).

    `log` returns the log, as each report may come in a new file. Times of files don't tell: a file
    that is written right after a line has the same.
    """

    def __init__(self, log: Callable[[], Path], folder: Path) -> None:
        self._log = log
        self._watched = log()
        self._file = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, Path] = {}
        self._log_watch = -1
        self._after: set[str] = set()
        self._marked: set[str] = set()  # files since the mark, up to the last line
        self._pending: set[str] = set()  # those after it, or after the mark
        self._between_lines: list[set[str]] = [set()]  # the files written between two lines each
        self._watch(folder)
        self._watch_log()

    def _watch(self, folder: Path) -> None:
        below = (path for path in list_below(folder) if path.is_dir() and not path.is_symlink())
        for path in [folder, *below]:
            watch = _LIBC.inotify_add_watch(self._file, os.fsencode(path), _WRITES)
            if watch >= 0:
                self._folders[watch] = path

    def _watch_log(self) -> None:
        self._watched = self._log()
        name = os.fsencode(self._watched)
        self._log_watch = _LIBC.inotify_add_watch(self._file, name, _IN_MODIFY)

    def written_after(self) -> set[str] | None:
        """Return the files that were written after the log's last line; None if unknown."""
        return self._after if self._update() else None

    def mark(self) -> None:
        """Let `written_since_mark` begin here."""
        self._update()
        self._marked.clear()
        self._pending.clear()

    def written_since_mark(self) -> set[str] | None:
        """Return the files that were written between the mark and the last line of the log."""
        return self._marked if self._update() else None

    def forget(self, *, but: Collection[str] = ()) -> None:
        """Let `between_lines` begin here, with the last writes of some files."""
        self._update()
        written = self._between_lines[-2:]
        self._between_lines = [files & set(but) for files in written]

    def between_lines(self) -> list[set[str]]:
        """Return the files that were written without a line in between, in their order."""
        return self._between_lines if self._update() else []

    def _update(self) -> bool:
        """Take in what has happened; return whether that is known."""
        if self._file < 0:
            return False
        if self._log_watch < 0 or self._log() != self._watched:
            self._begin_log()
            return False
        return self._take_events()

    def _begin_log(self) -> None:
        """Watch a log that wasn't there before; times tell what was written after its last line."""
        self._watch_log()
        self._take_events()
        line = last_write(self._watched)
        self._after = {name for name in self._after if last_write(Path(name)) > line}
        self._pending &= self._after

    def _take_events(self) -> bool:
        """Take in the events until now; return whether there were all of them."""
        while events := _events(self._file):
            for watch, mask, name in events:
                if mask & _IN_Q_OVERFLOW:
                    self._note_line()
                    return False
                if watch == self._log_watch:
                    self._note_line()
                elif watch in self._folders and not self._is_log_close(watch, mask, name):
                    self._note_file(self._folders[watch] / name, is_folder=bool(mask & _IN_ISDIR))
        return True

    def _is_log_close(self, watch: int, mask: int, name: str) -> bool:
        """Whether a file was closed that hasn't changed since the last line: a log, at the end."""
        if mask & _WRITES != _IN_CLOSE_WRITE:
            return False
        return last_write(self._folders[watch] / name) < last_write(self._watched)

    def _note_line(self) -> None:
        if self._between_lines[-1]:
            self._between_lines.append(set())
        self._after.clear()
        self._marked |= self._pending
        self._pending.clear()

    def _note_file(self, path: Path, *, is_folder: bool) -> None:
        files = {str(path)}
        if is_folder:
            self._watch(path)
            files |= set(map(str, list_below(path)))
        self._after |= files
        self._pending |= files
        self._between_lines[-1] |= files

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
