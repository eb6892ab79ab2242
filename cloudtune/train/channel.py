"""The connection between a worker and its command: lines of JSON over a Unix socket.

The socket is in a folder that only its user can read.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cloudtune.train.shared_input.place import end, short_name

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
        """Yield messages until the other end is gone."""
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                yield json.loads(line)

    def close(self) -> None:
        end(self._socket)


def listen(folder: Path) -> socket.socket:
    """Return a listening socket in the folder."""
    listener = socket.socket(socket.AF_UNIX)
    with short_name(folder, NAME) as name:
        listener.bind(name)
    listener.listen()
    return listener


def connect(folder: Path) -> Channel:
    """Return the connection to the worker that listens in a folder.

    Raises:
        OSError: none does.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_name(folder, NAME) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    return Channel(connection)
