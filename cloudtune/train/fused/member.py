"""A trial as a member of a group: it says what it may train, and gets its state and its metrics."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.train.fused import wire
from cloudtune.train.fused.host import Host
from cloudtune.train.fused.state import to_bytes
from cloudtune.train.shared_input.place import end

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    import torch

    from cloudtune.train.fused.optimizers import Optimizer
    from cloudtune.train.fused.script import Script
    from cloudtune.train.shared_input.place import Meeting

_AGAIN_SECONDS = 0.02
HAND_OVER_SECONDS = 4.0
"""What the others of a group have to end an epoch in, when the trial of their host ends."""
_hosts: list[Host] = []
"""The host in this process, if it is one."""


def hand_over(seconds: float, *, own: bool = True) -> None:
    """End the host in this process, if it is one; its members go on with another.

    `own`: in the middle of an epoch of the trial of this process.
    """
    while _hosts:
        _hosts.pop().close(min(seconds, HAND_OVER_SECONDS), own=own)


@dataclass
class Told:
    """What an epoch gave: its metrics, of how many members, and the MiB of a GPU of each."""

    metrics: Mapping[str, float]
    members: int
    mib: float | None


class Member:
    """One trial in the group that meets at a place; where nobody hosts it, this process does.

    Args:
        place: where those of its shape on its GPU meet.
        trial: its name, for people.
        script: what its host trains by.
        device: where a host trains.
        state: model and optimizer, as `MemberState.to_bytes` gives them.
        settings: see `MemberState`.
    """

    def __init__(
        self,
        place: Meeting,
        trial: str,
        script: Script,
        device: str,
        *,
        state: bytes,
        settings: Mapping[str, torch.Tensor],
    ) -> None:
        self._place = place
        self._trial = trial
        self._script = script
        self._device = device
        self.state = state
        """As it is after the last epoch that it was told of."""
        self._settings = to_bytes(settings)
        self._connection: socket.socket | None = None

    def train(self, epoch: int, optimizer: Optimizer) -> Told:
        """Train an epoch with the others. Where their host goes meanwhile, it is begun again.

        Raises:
            BaseException: what the script raised, in the process of the host.
        """
        ready: dict[str, Any] = {"kind": "ready", "epoch": epoch}
        ready |= {"optimizer": type(optimizer).__name__, "options": optimizer.options()}
        while True:
            try:
                if self._connection is None:
                    self._connection = self._join()
                wire.send(self._connection, ready)
                told, self.state = wire.receive(self._connection)
                return Told(told["metrics"], told["members"], told["mib"])
            except OSError:
                self._lose()

    def close(self) -> None:
        """Leave the group; where this process hosts it, others do from now on."""
        if self._connection is not None:
            end(self._connection)
            self._connection = None
        hand_over(HAND_OVER_SECONDS, own=False)

    def _lose(self) -> None:
        """Forget a host that is gone; raise what went wrong if it was in this process."""
        if self._connection is not None:
            end(self._connection)
        self._connection = None
        failed = [host.error for host in _hosts if host.error is not None]
        hand_over(0.0)
        if failed:
            raise failed[0]

    def _join(self) -> socket.socket:
        header = {"kind": "join", "trial": self._trial, "settings": len(self._settings)}
        while True:
            found = self._place.connect()
            if found is not None:
                wire.send(found, header, self._settings + self.state)
                return found
            held = self._place.listen()
            if held is None:
                time.sleep(_AGAIN_SECONDS)  # who has the lock listens in a moment, or is gone
            else:
                sys.stderr.write("fused: this process trains for all that join it\n")
                _hosts.append(Host(self._place, held, self._script, self._device))
