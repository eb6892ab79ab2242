"""A trial as a member of a group: each epoch it gives its state, and gets it back trained."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.train.fused.host import Host, receive, send
from cloudtune.train.fused.state import MemberState
from cloudtune.train.shared_input.place import end

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from cloudtune.train.fused.optimizers import Optimizer
    from cloudtune.train.fused.script import Script
    from cloudtune.train.shared_input.place import Meeting

_RETRY_SECONDS = 0.02
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


@dataclass(frozen=True)
class MemberEpoch:
    """What an epoch gave: metrics, state, the members of its group, and the GPU's MiB of each."""

    metrics: Mapping[str, float]
    state: MemberState
    members: int
    mib: float | None


@dataclass
class Member:
    """One trial in the group that meets at a place; if it has no host, this process is.

    Args:
        place: where those of its shape on its GPU meet.
        script: what its host trains by.
        device: where a host trains.
    """

    place: Meeting
    script: Script
    device: str
    _connection: socket.socket | None = None

    def train(self, epoch: int, state: MemberState, optimizer: Optimizer) -> MemberEpoch:
        """Train an epoch with the others. Where their host goes meanwhile, it is begun again.

        Raises:
            BaseException: what the script raised, in the process of the host.
        """
        request = {
            "epoch": epoch,
            "kind": type(optimizer).__name__,
            "options": optimizer.options(),
            "state": vars(state),
        }
        while True:
            try:
                if self._connection is None:
                    self._connection = self._join()
                send(self._connection, request)
                answer = receive(self._connection)
            except OSError:
                self._lose()
            else:
                return MemberEpoch(**{**answer, "state": MemberState(**answer["state"])})

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
        errors = [host.error for host in _hosts if host.error is not None]
        hand_over(0.0)
        if errors:
            raise errors[0]

    def _join(self) -> socket.socket:
        while (connection := self.place.connect()) is None:
            held = self.place.listen()
            if held is None:
                time.sleep(_RETRY_SECONDS)  # whoever has the lock listens in a moment, or is gone
            else:
                sys.stderr.write("fused: this process trains for all that join it\n")
                _hosts.append(Host(self.place, held, self.script, self.device))
        return connection
