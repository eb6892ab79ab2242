"""How processes of one machine find their server: a socket, and a lock for its process."""

import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# In the environment of a worker: the folder where the workers of its machine meet.
INPUT_VARIABLE: Final = "CLOUDTUNE_INPUT"
_CREDENTIALS = struct.Struct("3i")


class Meeting:
    """The numbered places where processes with one key meet.

    A lock belongs to a process and ends with it; a socket without a listener doesn't count.
    """

    def __init__(self, folder: Path, key: str) -> None:
        for path in (folder.parent, folder):  # mkdir would create parents open to others
            path.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._key = key

    def places(self) -> list[int]:
        """Return the numbers of places where a process may be listening."""
        pattern = re.compile(rf"{re.escape(self._key)}\.(\d+)")
        matches = (pattern.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def connect(self, number: int) -> socket.socket | None:
        """Return a connection to the process listening there; None if none of this user does."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with short_name(self._folder, f"{self._key}.{number}") as name:
                connection.connect(name)
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
            _, user, _ = _CREDENTIALS.unpack(credentials)
            if user == os.geteuid():
                return connection
        except OSError:
            pass
        connection.close()
        return None

    def is_free(self, number: int) -> bool:
        lock = self._try_lock(number)
        if lock is not None:
            os.close(lock)
        return lock is not None

    def listen(self, number: int) -> tuple[socket.socket, int] | None:
        """Return a listening socket, and the lock; None if another process has the lock."""
        lock = self._try_lock(number)
        if lock is None:
            return None
        (self._folder / f"{self._key}.{number}").unlink(missing_ok=True)  # left by a dead process
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with short_name(self._folder, f"{self._key}.{number}") as name:
            listener.bind(name)
        listener.listen(128)
        return listener, lock

    def leave(self, number: int) -> None:
        """Let no more processes connect."""
        (self._folder / f"{self._key}.{number}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def beginning(self) -> Iterator[bool]:
        """Yield whether this process is the only one that is about to listen somewhere."""
        lock = self._try_lock("begins")
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def _try_lock(self, name: int | str) -> int | None:
        lock = os.open(self._folder / f"{self._key}.{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock


@contextlib.contextmanager
def short_name(folder: Path, name: str) -> Iterator[str]:
    """Yield a name for a socket within the limit of 108 bytes, however deep its folder is."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}/{name}"
    finally:
        os.close(number)


def end(connection: socket.socket) -> None:
    """Close a connection, also in forks of this process."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
