"""The member that trains for all: it takes an epoch of every member that is ready, together.

One of the processes of a group is its host. It trains in a thread of its own, so that its own trial
is a member like any other: each has a connection, says when it is ready for an epoch, and gets its
state and its metrics back at the epoch's end. Members come and go between epochs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtune.train.fused import wire
from cloudtune.train.fused.group import Group
from cloudtune.train.fused.optimizers import optimizer_of
from cloudtune.train.fused.state import MemberState, from_bytes
from cloudtune.train.shared_input.place import end
from cloudtune.train.torch_state import own_memory_mib

if TYPE_CHECKING:
    import socket

    import torch

    from cloudtune.train.fused.optimizers import Optimizer
    from cloudtune.train.fused.script import Script
    from cloudtune.train.shared_input.place import Meeting

GATHER_SECONDS = 0.5
"""So long after the last member joined the first epoch waits for more."""
WAIT_SHARE, WAIT_SECONDS = 0.1, (0.1, 1.0)
"""So much of an epoch the next one waits for members that aren't ready, so long at least and most.

Nobody is waited for twice: who waits for its strategy's word may wait long.
"""


@dataclass(eq=False)
class _Seat:
    """One member as the host sees it; `ready` is the epoch that it may train, with its numbers."""

    connection: socket.socket
    name: str = ""
    ready: int | None = None
    optimizer: Optimizer | None = None
    parked: MemberState | None = None
    """Its state, while it has one here and isn't in the group."""
    late: bool = False
    """Whether an epoch has begun without it."""
    gone: bool = False


@dataclass
class _Table:
    """All seats; whatever changes is told to who waits."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    seats: list[_Seat] = field(default_factory=list)
    joined_at: float = 0.0
    ready_at: float = 0.0
    closing: bool = False

    def ready(self) -> list[_Seat]:
        """Return who waits for an epoch."""
        return [seat for seat in self.seats if seat.ready is not None]


class Host:
    """Trains the members that connect to a place, until it is closed, or fails."""

    def __init__(
        self, place: Meeting, held: tuple[socket.socket, int], script: Script, device: str
    ) -> None:
        self._place = place
        self._listener, self._lock = held
        self._script = script
        self._device = device
        self._table = _Table()
        self._names = 0
        self._training = 0  # so many members are in the epoch under way
        self._epoch_seconds: float | None = None
        self.error: BaseException | None = None
        """What ended it, if anything of the script's did."""
        threading.Thread(target=self._accept, name="fused members", daemon=True).start()
        self._thread = threading.Thread(target=self._run, name="fused epochs", daemon=True)
        self._thread.start()

    def close(self, seconds: float, *, own: bool) -> None:
        """End: an epoch with others in it is finished first, but for so long at most.

        `own` says whether the trial of this process is in it.
        """
        with self._table.changed:
            self._table.closing = True
            others = self._training > own
            self._table.changed.notify_all()
        self._thread.join(seconds if others else 0.0)
        self._end_all()

    # ---- members ---------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                seat = _Seat(connection)
                threading.Thread(target=self._hear, args=(seat,), daemon=True).start()

    def _hear(self, seat: _Seat) -> None:
        """Take down what a member says, until it is gone."""
        table = self._table
        with contextlib.suppress(OSError):
            while True:
                header, payload = wire.receive(seat.connection)
                with table.changed:
                    now = time.monotonic()
                    if header["kind"] == "join":
                        seat.parked = _state_of(header, payload, self._device)
                        self._names += 1
                        seat.name, table.joined_at = f"{self._names}:{header['trial']}", now
                        table.seats.append(seat)
                    else:
                        seat.optimizer = optimizer_of(header["optimizer"], header["options"])
                        table.ready_at = table.ready_at if table.ready() else now
                        seat.ready, seat.late = header["epoch"], False
                    table.changed.notify_all()
        with table.changed:
            seat.gone, seat.ready = True, None
            table.changed.notify_all()

    def _gather(self) -> list[_Seat]:
        """Wait for the members of the next epoch; none where there is to be no more."""
        table = self._table
        with table.changed:
            while not table.closing:
                wait = self._wait(time.monotonic())
                if wait is not None and wait <= 0:
                    return table.ready()
                table.changed.wait(wait)
        return []

    def _wait(self, now: float) -> float | None:
        """Return how long to wait for other members yet; None while none is ready."""
        table = self._table
        here = [seat for seat in table.seats if not (seat.gone or seat.late)]
        ready = table.ready()
        if not ready:
            return None
        if self._epoch_seconds is None:
            return table.joined_at + GATHER_SECONDS - now
        if len(ready) >= len(here):
            return 0.0
        least, most = WAIT_SECONDS
        wait = min(most, max(least, WAIT_SHARE * self._epoch_seconds))
        return table.ready_at + wait - now

    # ---- training --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            group: Group | None = None
            while members := self._gather():
                if group is None:
                    assert members[0].optimizer is not None
                    group = Group(self._script.model(), members[0].optimizer, self._device)
                began, self._training = time.monotonic(), len(members)
                self._arrange(group, members)
                self._train(group, members)
                self._epoch_seconds, self._training = time.monotonic() - began, 0
        except BaseException as error:  # noqa: BLE001  raised again where the host's trial waits
            self.error = error
        finally:
            self._end_all()

    def _arrange(self, group: Group, members: list[_Seat]) -> None:
        """Have exactly the members of the next epoch in the group."""
        with self._table.changed:
            seats = list(self._table.seats)
            self._table.seats = [seat for seat in seats if not seat.gone]
            for seat in self._table.seats:
                seat.late = seat.ready is None
        for seat in seats:
            if seat not in members and seat.name in group.members:
                seat.parked = group.remove(seat.name)
        for seat in members:
            assert seat.optimizer is not None
            if seat.name in group.members:
                group.set_optimizer(seat.name, seat.optimizer)
            else:
                assert seat.parked is not None
                group.add(seat.name, seat.parked, seat.optimizer)
                seat.parked = None

    def _train(self, group: Group, members: list[_Seat]) -> None:
        """Train an epoch, and give each member what is its own."""
        epoch = max(seat.ready or 0 for seat in members)
        found = self._script.epoch_of(group, epoch)
        memory = own_memory_mib(self._device)
        each = None if memory is None else memory / len(members)
        with self._table.changed:
            for seat in members:
                seat.ready = None  # it says anew when it may train on
        for seat in members:
            at = group.members.index(seat.name)
            metrics = {name: values[at].item() for name, values in found.items()}
            told = {"metrics": metrics, "members": len(members), "mib": each}
            with contextlib.suppress(OSError):
                wire.send(seat.connection, told, group.state(seat.name).to_bytes())

    def _end_all(self) -> None:
        with self._table.changed:
            self._table.closing = True
            seats, self._table.seats = self._table.seats, []
            held, self._lock = self._lock, -1
        if held >= 0:
            self._place.leave()
            end(self._listener)
            os.close(held)
        for seat in seats:
            end(seat.connection)


def _state_of(header: dict[str, Any], payload: bytes, device: str) -> MemberState:
    settings: dict[str, torch.Tensor] = from_bytes(payload[: header["settings"]], device)
    state = MemberState.from_bytes(payload[header["settings"] :], device)
    return MemberState(state.model, state.optimizer, settings)
