"""What the members of a group say to each other: frames of JSON and bytes over a Unix socket."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FUSED_VARIABLE: Final = "CLOUDTUNE_FUSED"
"""In the environment of a worker with a share of a GPU: the folder where those on it meet."""
_LENGTHS = struct.Struct("!IQ")


def send(to: socket.socket, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Send a frame.

    Raises:
        OSError: nobody is there to have it.
    """
    head = json.dumps(header).encode()
    to.sendall(_LENGTHS.pack(len(head), len(payload)) + head)
    to.sendall(payload)


def receive(source: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for a frame; returns its header and its payload.

    Raises:
        OSError: the other end is gone.
    """
    head, rest = _LENGTHS.unpack(_exactly(source, _LENGTHS.size))
    header: dict[str, Any] = json.loads(_exactly(source, head))
    return header, bytes(_exactly(source, rest))


def _exactly(source: socket.socket, count: int) -> bytearray:
    found = bytearray(count)
    view = memoryview(found)
    while view:
        got = source.recv_into(view)
        if not got:
            raise ConnectionError("the other end is gone")
        view = view[got:]
    return found


def end(connection: socket.socket) -> None:
    """Close a connection, also for who waits in another thread or a fork of this process."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class Place:
    """Where the members of one group on one GPU meet: a socket, and a lock for who listens there.

    The lock is this process's, and goes with it. A socket without anybody behind it is nothing.
    """

    def __init__(self, folder: Path, key: str) -> None:
        for each in (folder.parent, folder):  # parents that mkdir makes are open to others
            each.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._key = key

    def connect(self) -> socket.socket | None:
        """Return a connection to who listens; None where nobody does."""
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._short() as name:
                found.connect(name)
        except OSError:
            found.close()
            return None
        return found

    def listen(self) -> tuple[socket.socket, int] | None:
        """Return a socket that listens, and the lock; None where another process has the lock."""
        lock = os.open(self._folder / f"{self._key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        (self._folder / self._key).unlink(missing_ok=True)  # of who has died
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._short() as name:
            listener.bind(name)
        listener.listen(128)
        return listener, lock

    def leave(self, listener: socket.socket, lock: int) -> None:
        """Listen no longer, so that another may."""
        (self._folder / self._key).unlink(missing_ok=True)
        end(listener)
        os.close(lock)

    @contextlib.contextmanager
    def _short(self) -> Iterator[str]:
        """Give the socket a name that is short enough for one, however deep its folder lies."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{folder}/{self._key}"
        finally:
            os.close(folder)
