"""The member that trains for all: it takes an epoch of every member that is ready, together.

One of the processes of a group is its host. It trains in a thread of its own, so that its own trial
is a member like any other. Each member has a connection, asks there for an epoch with its state,
and gets its new state and its metrics at the epoch's end. Between epochs members come and go.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from cloudtune.train.fused.group import Group
from cloudtune.train.fused.optimizers import optimizer_of
from cloudtune.train.fused.state import MemberState, from_bytes, to_bytes
from cloudtune.train.shared_input.place import end
from cloudtune.train.torch_state import own_memory_mib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.train.fused.script import Script
    from cloudtune.train.shared_input.place import Meeting

GATHER_SECONDS = 0.5
"""The first epoch waits for more members until this long after the last one joined."""
WAIT_SHARE = 0.1
"""The part of an epoch that the next one waits for members that aren't ready."""
WAIT_SECONDS = (0.1, 1.0)
"""Bounds of that wait. A member is waited for once: it may be waiting for its strategy."""
_TICK_SECONDS = 0.05
_LENGTH = struct.Struct("!Q")


def send(to: socket.socket, message: Mapping[str, Any]) -> None:
    """Send tensors, numbers and names.

    Raises:
        OSError: the other end is gone.
    """
    data = to_bytes(message)
    to.sendall(_LENGTH.pack(len(data)))
    to.sendall(data)


def receive(source: socket.socket) -> dict[str, Any]:
    """Wait for what `send` was given; no objects.

    Raises:
        OSError: the other end is gone.
    """
    (size,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
    return from_bytes(_exactly(source, size))


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:  # once, unless a signal comes in between
        part = source.recv(count - len(data), socket.MSG_WAITALL)
        if not part:
            raise ConnectionError("the other end is gone")
        data += part
    return data


@dataclass(eq=False)
class _Seat:
    """A member as the host sees it; `request` is the epoch that it has asked for, until it has it.

    `late`: an epoch has begun without it.
    """

    connection: socket.socket
    request: dict[str, Any] | None = None
    asked_at: float = 0.0
    late: bool = False


class Host:
    """Trains the members that connect to a place, until it is closed, or fails."""

    def __init__(
        self, place: Meeting, held: tuple[socket.socket, int], script: Script, device: str
    ) -> None:
        self._place = place
        self._listener, self._lock = held
        self._script = script
        self._model = script.model()
        self._device = device
        self._seats: list[_Seat] = []
        self._joined_at = 0.0
        self._closing = False
        self._ending = threading.Lock()
        self._training = 0  # the number of members in the epoch under way
        self._epoch_seconds: float | None = None
        self.error: BaseException | None = None
        """What ended it, if anything of the script's did."""
        self._thread = threading.Thread(target=self._run, name="fused epochs", daemon=True)
        self._thread.start()

    def close(self, seconds: float, *, own: bool) -> None:
        """End: an epoch with others in it is finished first, within these seconds.

        `own` says whether the trial of this process is in it. Any thread may call.
        """
        self._closing = True
        self._thread.join(seconds if self._training > own else 2 * _TICK_SECONDS)
        self._end_all()

    def _run(self) -> None:
        try:
            while members := self._gather():
                began = time.monotonic()
                self._training = len(members)
                self._train(members)
                self._training = 0
                self._epoch_seconds = time.monotonic() - began
        except BaseException as error:  # noqa: BLE001  raised again where the host's trial waits
            self.error = error
        finally:
            self._end_all()

    def _gather(self) -> list[_Seat]:
        """Wait for the members of the next epoch; none where there is to be no more."""
        while not self._closing:
            ready = [seat for seat in self._seats if seat.request is not None]
            patience = self._due(ready) - time.monotonic() if ready else _TICK_SECONDS
            if patience <= 0:
                for seat in self._seats:
                    seat.late = seat.request is None
                return ready
            self._hear(min(patience, _TICK_SECONDS))
        return []

    def _due(self, ready: list[_Seat]) -> float:
        """Return when the next epoch begins, even without the members that aren't ready."""
        if self._epoch_seconds is None:
            return self._joined_at + GATHER_SECONDS
        if all(seat.late for seat in self._seats if seat.request is None):
            return 0.0
        least, most = WAIT_SECONDS
        wait = min(most, max(least, WAIT_SHARE * self._epoch_seconds))
        return min(seat.asked_at for seat in ready) + wait

    def _hear(self, seconds: float) -> None:
        """Take what members send within these seconds: they join, ask for an epoch, or are gone."""
        by_connection = {seat.connection: seat for seat in self._seats}
        for source in connection.wait([self._listener, *by_connection], seconds):
            assert isinstance(source, socket.socket)
            if source is self._listener:
                self._seats.append(_Seat(source.accept()[0]))
                self._joined_at = time.monotonic()
                continue
            seat = by_connection[source]
            try:
                seat.request = receive(source)
            except OSError:
                self._seats.remove(seat)
                end(source)
            seat.asked_at = time.monotonic()
            seat.late = False

    def _train(self, members: list[_Seat]) -> None:
        """Train an epoch, and give each member what is its own."""
        requests = [seat.request for seat in members if seat.request is not None]
        group = Group(
            self._model,
            [MemberState(**request["state"]) for request in requests],
            [optimizer_of(request["kind"], request["options"]) for request in requests],
            self._device,
        )
        metrics = self._script.epoch(group, max(request["epoch"] for request in requests))
        memory = own_memory_mib(self._device)
        for at, (seat, state) in enumerate(zip(members, group.states(), strict=True)):
            seat.request = None  # it asks again for the next epoch
            answer = {
                "metrics": {name: values[at].item() for name, values in metrics.items()},
                "state": vars(state),
                "members": len(members),
                "mib": None if memory is None else memory / len(members),
            }
            with contextlib.suppress(OSError):  # it is gone, which is heard next
                send(seat.connection, answer)

    def _end_all(self) -> None:
        with self._ending:
            held = self._lock
            self._lock = -1
            if held >= 0:
                self._place.leave()
                end(self._listener)
                os.close(held)
                for seat in self._seats:
                    end(seat.connection)
