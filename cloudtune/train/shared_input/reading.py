"""A trial's side: it reads batches from its machine's loading process, or loads them itself."""

import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from cloudtune.train.shared_input import serving
from cloudtune.train.shared_input.frames import Frame, read_batch
from cloudtune.train.shared_input.messages import InputMessage, Kind, receive, send
from cloudtune.train.shared_input.place import Meeting, end

_AGAIN_SECONDS: Final = 0.01
# After this many lost loading processes in an epoch, a trial loads for itself.
_MOST_LOST: Final = 3


class SharingError(Exception):
    """A loading process can't provide the batches; the message says why."""


class Reader:
    """Reads the batches of a loader's epochs, in their order, wherever they are loaded.

    Args:
        meeting: where readers of the same batches meet.
        loading: what to load if no process does so yet.
    """

    def __init__(self, meeting: Meeting, loading: serving.Loading) -> None:
        self._meeting = meeting
        self._loading = loading
        self._connection: socket.socket | None = None
        self._place = 0
        self._begun: dict[int, int] = {}  # place -> id of this process's fork there
        self._lost = 0

    def read(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch.

        Raises:
            SharingError: no more are available here; those yielded so far count.
        """
        self._lost = 0
        length = len(self._loading.batches)
        try:
            for number in range(length):
                frame = self._frame(epoch, number)
                if number + 1 < length:
                    self._say(Kind.ASK, epoch, number + 1)  # it arrives while this one trains
                yield read_batch(frame)
        finally:
            self._say(Kind.REST, epoch, length)

    def close(self) -> None:
        if self._connection is not None:
            end(self._connection)
            self._connection = None

    def _frame(self, epoch: int, number: int) -> Frame:
        """Return a batch from the process of the last one, or else from another."""
        if number and self._connection is not None:
            frame = self._answer(self._connection, epoch, number)
            if frame is not None:
                return frame
            self.close()
        while True:
            tried = set()
            for place in self._meeting.places():
                tried.add(place)
                frame = self._ask(place, epoch, number)
                if frame is not None:
                    return frame
            if not self._begin(tried):
                time.sleep(_AGAIN_SECONDS)  # another process is about to load

    def _ask(self, place: int, epoch: int, number: int) -> Frame | None:
        """Return a batch if that place provides it; later ones are then read there too."""
        old = self._connection is not None and place == self._place
        connection = self._connection if old else self._meeting.connect(place)
        if connection is None:
            return None
        frame = None
        with contextlib.suppress(OSError):
            send(connection, InputMessage(Kind.ASK, epoch, number))
            frame = self._answer(connection, epoch, number)
        if frame is None:
            end(connection)
            self._connection = None if old else self._connection
        elif not old:
            self.close()
            self._connection = connection
            self._place = place
            mine = place in self._begun
            whose = "this trial's loading process" if mine else "another trial's"
            tell(f"epoch {epoch} is read from batch {number + 1} on by {whose}")
        return frame

    def _answer(self, connection: socket.socket, epoch: int, number: int) -> Frame | None:
        """Wait for a requested batch; None if it isn't available there.

        Raises:
            SharingError: it couldn't be loaded.
        """
        try:
            while True:
                message = receive(connection)
                if message.kind is Kind.FAILED:
                    raise SharingError(message.text)
                if (message.epoch, message.number) == (epoch, number):
                    return message.frame
                if message.frame is not None:
                    message.frame.close()  # from an epoch that was abandoned
        except OSError as error:
            self._lost += 1
            if self._lost > _MOST_LOST:
                raise SharingError("loading processes were lost again and again") from error
            return None

    def _begin(self, tried: set[int]) -> bool:
        """Begin to load for all, unless another process does so by now; return whether one does."""
        self._begun = {place: pid for place, pid in self._begun.items() if not _is_over(pid)}
        with self._meeting.beginning() as alone:
            if not alone:
                return False
            if set(self._meeting.places()) - tried:
                return True
            place = next(place for place in itertools.count() if self._meeting.is_free(place))
            pid = serving.begin(self._meeting, place, self._loading)
            if pid is not None:
                self._begun[place] = pid
            return pid is not None

    def _say(self, kind: Kind, epoch: int, number: int) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # a lost process is noticed at the answer
                send(self._connection, InputMessage(kind, epoch, number))


def tell(text: str) -> None:
    """Write a line to the trial's log."""
    sys.stderr.write(f"shared input: {text}\n")


def _is_over(pid: int) -> bool:
    """Whether a fork of this process has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
