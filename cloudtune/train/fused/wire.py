"""What the members of a group say to each other: frames of JSON and bytes over a Unix socket."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

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
