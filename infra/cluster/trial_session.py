"""One session of a trial on the controller's side: parts on one or several nodes, one end.

It turns the agents' messages about a session into events for the policy. Nothing here waits.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from cloudtune.infra.node import messages
from cloudtune.infra.node.gpus import shares
from cloudtune.model import events
from cloudtune.model.commands import StartTrial


class Emit(Protocol):
    """Passes an event to the policy, and calls `settled` once that has handled it."""

    def __call__(
        self, make: Callable[[float], events.Event], settled: Sequence[Callable[[], None]] = ()
    ) -> None:
        """Return at once."""


def split_session(command: StartTrial, keep_from: int) -> dict[str, messages.Part]:
    """Return the part of a session on each instance, rank 0 first, with a node's ranks together."""
    workers = {piece.instance: shares(piece.gpus) for piece in command.placement}
    size = sum(len(gpu_shares) for gpu_shares in workers.values())
    parts: dict[str, messages.Part] = {}
    first = 0
    for node_rank, piece in enumerate(command.placement):
        gpu_shares = workers[piece.instance]
        slots = tuple(
            messages.WorkerSlot(first + local, local, size, len(workers), share, node_rank)
            for local, share in enumerate(gpu_shares)
        )
        parts[piece.instance] = messages.Part(command, piece, slots, keep_from)
        first += len(gpu_shares)
    return parts


class TrialSession:
    """A session from `start` until one of TrialStopped, TrialFailed or TrialLost was emitted.

    Args:
        command: the command that started it.
        known: the trial's checkpoints from this epoch on stay, until a later one is acknowledged.
        call: calls an instance's agent; returns None if the instance has no agent.
        emit: see `Emit`.
    """

    def __init__(
        self, command: StartTrial, keep_from: int, call: Callable[..., Any], emit: Emit
    ) -> None:
        self.command = command
        self.until_epoch = command.until_epoch
        self._parts = split_session(command, keep_from)
        self._call = call
        self._emit = emit
        self._lock = threading.RLock()
        self._open = set(self._parts)
        self._ready: set[int] = set()
        self._started = False
        self._stopping = False
        self._ends: list[messages.Failure | messages.Done | messages.Lost] = []
        self._unsettled: list[Callable[[], None]] = []
        self._over = threading.Event()

    def start(self) -> None:
        """Start the workers; return at once."""
        rendezvous: Any = ""
        for instance, part in self._parts.items():
            answer = self._call(instance, "start", part, rendezvous)
            if answer is None:
                self.note_lost(instance, f"{instance} has no agent")
            rendezvous = rendezvous or answer  # the first node's; Ray waits for it if necessary

    def adopt(self, ready: Iterable[int], alive: Iterable[str]) -> None:
        """Take over a session: these ranks are set up, these instances know it.

        Events that the other controller may not have recorded are emitted again.
        """
        with self._lock:
            self._ready.update(ready)
            self._note_ready()
            for instance in self._parts.keys() - set(alive):
                self.note_lost(instance, f"{instance} knows nothing of {self.command.session}")

    def extend(self, until_epoch: int) -> None:
        """Let the workers continue to that epoch; return at once."""
        self.until_epoch = until_epoch
        for instance in self._parts:
            self._call(instance, "grant", self.command.session, until_epoch)

    def acknowledge(self, epoch: int) -> None:
        """Tell the saving worker that the controller has recorded an epoch; return at once.

        Not after a stop: later reports aren't recorded.
        """
        if not self._stopping:
            first = next(iter(self._parts))
            self._call(first, "acknowledge", self.command.session, epoch)

    def stop(self, *, stacks: bool = False) -> None:
        """End the workers; return at once, TrialStopped follows.

        With `stacks` they first write their stacks to their logs.
        """
        with self._lock:
            self._stopping = True
            self._stop_parts(stacks=stacks)

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` until the session is over."""
        self._over.wait(seconds)

    def hear(self, instance: str, message: messages.Message, settle: Callable[[], None]) -> None:
        """Handle a message of the session; it is settled with the next event that follows."""
        with self._lock:
            self._unsettled.append(settle)
            match message.body:
                case messages.Ready():
                    self._ready.add(message.rank)
                    self._note_ready()
                case messages.Epoch(report):
                    session = self.command.session
                    self._tell(lambda at: events.EpochDone.of(at, session, report))
                case messages.Done() as end if message.rank > 0:
                    self._ends.append(end)  # rank 0 may have a report left
                case messages.Failure() | messages.Done() | messages.Lost() as end:
                    self._ends.append(end)
                    self._stop_parts()
                case messages.Gone():
                    self._note_gone(instance)

    def note_lost(self, instance: str, reason: str) -> None:
        """Record that the session's workers on an instance are gone."""
        with self._lock:
            if instance in self._open:
                self._ends.append(messages.Lost(reason))
                self._open.discard(instance)
                self._stop_parts()
                self._note_gone(instance)

    def _note_ready(self) -> None:
        size = sum(len(part.slots) for part in self._parts.values())
        if len(self._ready) == size and not self._started:
            self._started = True
            session = self.command.session
            self._tell(lambda at: events.TrialStarted(at, session))

    def _note_gone(self, instance: str) -> None:
        self._open.discard(instance)
        if not self._open and not self._over.is_set():
            self._over.set()
            self._tell(self._end())

    def _stop_parts(self, *, stacks: bool = False) -> None:
        for instance in self._open:
            self._call(instance, "stop", self.command.session, *([True] if stacks else []))

    def _tell(self, make: Callable[[float], events.Event]) -> None:
        settled = self._unsettled
        self._unsettled = []
        self._emit(make, settled)

    def _end(self) -> Callable[[float], events.Event]:
        session = self.command.session
        end = None if self._stopping else cause(self._ends)
        match end:
            case None:
                return lambda at: events.TrialStopped(at, session)
            case messages.Done():
                return lambda at: events.TrialStopped(at, session, by_itself=True)
            case messages.Lost(reason):
                return lambda at: events.TrialLost(at, session, reason)
            case messages.Failure():
                return lambda at: events.TrialFailed(
                    at, session, end.error, end.traceback, end.out_of_memory, end.unsynced
                )


def cause(ends: Sequence[messages.Body]) -> messages.Failure | messages.Lost | messages.Done:
    """Return why a session ended: the first cause among its workers, not a consequence."""
    for end in ends:
        match end:
            case messages.Failure(peer=False) | messages.Lost() | messages.Done():
                return end
    followed = (end.error for end in ends if isinstance(end, messages.Failure))
    return messages.Lost(f"a worker lost the others: {next(followed, 'nothing is known of it')}")
