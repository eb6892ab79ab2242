"""How a worker and the command that it has started speak: lines of JSON over a Unix socket.

The socket is in a folder that is its user's alone. Names of sockets are short (108 bytes), those of
folders aren't: it is reached by the number of the open folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "worker"


class Channel:
    """One end of a connection: messages are mappings; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone.
        """
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            self._socket.sendall(data)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Give what arrives, until the other end is gone."""
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                yield json.loads(line)

    def close(self) -> None:
        """End it: who listens hears of it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def listen(folder: Path) -> socket.socket:
    """Return a socket in the folder that takes connections."""
    found = socket.socket(socket.AF_UNIX)
    with _opened(folder) as short:
        found.bind(short)
    found.listen()
    return found


def connect(folder: Path) -> Channel:
    """Return the connection to who listens in a folder.

    Raises:
        OSError: nobody does.
    """
    found = socket.socket(socket.AF_UNIX)
    try:
        with _opened(folder) as short:
            found.connect(short)
    except OSError:
        found.close()
        raise
    return Channel(found)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[str]:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}/{NAME}"
    finally:
        os.close(number)
