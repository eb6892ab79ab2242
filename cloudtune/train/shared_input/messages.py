"""The packets between readers, the process that serves them, and its loaders."""

import os
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from cloudtune.train.shared_input.frames import Frame

_FIELDS = struct.Struct("!Bqqqq")
# The maximum size of a packet in bytes: fits the default buffer of a Unix socket.
_MOST = 64 * 1024


class Kind(IntEnum):
    """The kind of a message: the first two come from readers, the others are answers."""

    ASK = 1
    REST = 2
    """The reader wants no more of this epoch."""
    BATCH = 3
    ELSEWHERE = 4
    """The batch isn't available here."""
    FAILED = 5


class InputMessage(NamedTuple):
    """One packet: the batch that it is about, with a frame or an error if there is one."""

    kind: Kind
    epoch: int = 0
    number: int = 0
    frame: Frame | None = None
    text: str = ""


def send(to: socket.socket, message: InputMessage) -> None:
    """Send a message; this process keeps its frame too.

    Raises:
        OSError: the other end is gone, or doesn't read.
    """
    frame = message.frame
    size, head = (0, 0) if frame is None else (frame.size, frame.head)
    packet = _FIELDS.pack(message.kind, message.epoch, message.number, size, head)
    packet += message.text.encode(errors="replace")[: _MOST // 2]
    socket.send_fds(to, [packet], [] if frame is None else [frame.file])


def receive(source: socket.socket) -> InputMessage:
    """Wait for a message.

    Raises:
        OSError: the other end is gone.
    """
    packet, files, _, _ = socket.recv_fds(source, _MOST, 1)
    if not packet:
        raise ConnectionError("the other end is gone")
    kind, epoch, number, size, head = _FIELDS.unpack_from(packet)
    frame = Frame(files[0], size, head) if files else None
    if frame is not None:
        os.set_inheritable(frame.file, False)
    return InputMessage(Kind(kind), epoch, number, frame, packet[_FIELDS.size :].decode())
