"""What readers, the process that serves them and its loaders say to each other, by the packet."""

import os
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from cloudtune.train.shared_input.frames import Frame

_FIELDS = struct.Struct("!Bqqqq")
# Bytes of a packet: below what a Unix socket's default buffer takes.
_MOST = 64 * 1024


class Kind(IntEnum):
    """What a message is: the first two are a reader's, the others an answer."""

    ASK = 1
    REST = 2
    """It reads no more of this epoch."""
    BATCH = 3
    ELSEWHERE = 4
    """It isn't to be had here."""
    FAILED = 5


class InputMessage(NamedTuple):
    """One packet: of which batch it is, a frame if it has one, what went wrong if anything did."""

    kind: Kind
    epoch: int = 0
    number: int = 0
    frame: Frame | None = None
    text: str = ""


def send(to: socket.socket, message: InputMessage) -> None:
    """Send a message; its frame stays this process's too.

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
