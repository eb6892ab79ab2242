"""The messages between the controller, the agents of the nodes, and the workers."""

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cloudtune.infra.node.variables import Variables
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochReport
from cloudtune.model.plain_text import clean
from cloudtune.model.trial import Slice
from cloudtune.train.programs.program import Program
from cloudtune.train.progress_cursor import Progress


@dataclass(frozen=True)
class Training:
    """The common settings of a run's sessions.

    `train` is the user's "file.py:function", or the command that `program` describes.
    """

    train: str
    metric_name: str
    metric_mode: str
    max_epoch: int
    storage: str
    seed: int
    compared: bool = True
    """Whether to check that the workers of a trial train one model."""
    has_gpus: bool = False
    """Whether its nodes must have the GPUs of their types."""
    losses_per_hour: float = 0.0
    """How often an instance that it may rent is interrupted per hour."""
    program: Program | None = None
    progress: Progress = dataclasses.field(default_factory=Progress)
    variables: Variables = dataclasses.field(default_factory=Variables)
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Where each folder of data is that nodes have beside the script."""
    folder: str = ""
    """The folder to train in, where the node is the user's machine; "" for the current one."""

    @property
    def module(self) -> str:
        """The function whose module every worker imports; "" if there is none."""
        return self.train if self.program is None else ""


@dataclass(frozen=True)
class WorkerSlot:
    """The place of a worker: rank among all workers, local rank among those of its instance.

    `share` is its share of a GPU: 1 unless trials are packed. `node_rank` is the rank of the
    instance among the `nodes` of the trial.
    """

    rank: int
    local_rank: int
    world_size: int
    nodes: int
    share: float = 1.0
    node_rank: int = 0


@dataclass(frozen=True)
class Part:
    """The part of a session on one node: a slice of its trial, and the slots of its workers.

    Checkpoints that the workers saved themselves, from epoch `keep_from` on, stay.
    """

    command: StartTrial
    piece: Slice
    slots: tuple[WorkerSlot, ...]
    keep_from: int = 0

    @property
    def session(self) -> str:
        return self.command.session


@dataclass(frozen=True)
class Begin:
    """Train the trial of a command; requested at `asked_at` (Unix time).

    The workers meet at `rendezvous`, "host:port", "" for a single one. The listening socket follows
    this message, for the worker that `listens`. Output goes to `log`. `environment` is set before
    any of the user's code is imported; `gpu` is the index among the GPUs that the worker sees.
    `refusal` is why the node can train nothing, "" if it can.
    """

    training: Training
    slot: WorkerSlot
    command: StartTrial
    keep_from: int
    rendezvous: str
    listens: bool
    log: str
    asked_at: float
    environment: Mapping[str, str]
    gpu: int = 0
    refusal: str = ""


@dataclass(frozen=True)
class Grant:
    """Continue to that epoch."""

    until_epoch: int


@dataclass(frozen=True)
class Acknowledge:
    """The controller has recorded that epoch, and will resume from no earlier one."""

    epoch: int


@dataclass(frozen=True)
class Stop:
    """End once all reports are stored, even in the middle of an epoch."""


@dataclass(frozen=True)
class Leave:
    """The machine is about to be interrupted: a script that can, saves in mid-epoch."""


Order: TypeAlias = Begin | Grant | Acknowledge | Stop | Leave


@dataclass(frozen=True)
class Ready:
    """The worker is set up."""


@dataclass(frozen=True)
class Epoch:
    """Rank 0 finished an epoch."""

    report: EpochReport


def plain(text: str, most: int) -> str:
    """Return a script's text without escapes, and of at most `most` bytes in UTF-8.

    It has no direction marks either. A longer text loses its middle, with a note. Invalid
    characters become escapes.
    """
    data = clean(text).encode("utf-8", "backslashreplace")
    if len(data) > most:
        half = most // 2
        note = f"\n[{len(data) - 2 * half:,} bytes left out]\n".encode()
        data = data[:half] + note + data[-half:]
    return data.decode("utf-8", "ignore")


@dataclass(frozen=True)
class Failure:
    """An error of the user's code: one line, and the traceback.

    `peer`: it looks like the consequence of another worker's end. `unsynced`: the workers of the
    trial don't train one model.
    """

    error: str
    traceback: str
    out_of_memory: bool = False
    peer: bool = False
    unsynced: bool = False


@dataclass(frozen=True)
class Done:
    """The training function has returned."""


@dataclass(frozen=True)
class Lost:
    """The worker's process is gone without reporting why."""

    reason: str


@dataclass(frozen=True)
class Gone:
    """No process of the session is left on the node, and its GPUs are free. The last message."""


Body: TypeAlias = Ready | Epoch | Failure | Done | Lost | Gone


@dataclass(frozen=True)
class Interruption:
    """The cloud interrupts the node's instance at `due` (Unix time). Belongs to no session."""

    due: float


@dataclass(frozen=True)
class AtRisk:
    """The cloud says that it may soon interrupt the instance. Belongs to no session."""


@dataclass(frozen=True)
class Remark:
    """A note about the node for the user, once. Belongs to no session."""

    text: str


OfNode: TypeAlias = Interruption | AtRisk | Remark


@dataclass(frozen=True)
class Message:
    """A message of an agent, numbered from 1, which it keeps until it is acknowledged."""

    number: int
    session: str
    rank: int
    body: Body | OfNode


@dataclass(frozen=True)
class Described:
    """A session on a node as its agent sees it: ranks that are set up, last epoch, its end."""

    ready: frozenset[int]
    epoch: int
    gone: bool


@dataclass(frozen=True)
class Fork:
    """Fork a worker with this environment; its socket comes along.

    `warm`: it initialises its GPU at once, before it knows what to train.
    """

    name: str
    environment: Mapping[str, str]
    warm: bool = False


@dataclass(frozen=True)
class Warm:
    """Everything is imported. `without` says why the user's module isn't; "" if it is."""

    without: str


@dataclass(frozen=True)
class Forked:
    """The worker runs, as the leader of its own process group."""

    name: str
    pid: int


@dataclass(frozen=True)
class Exited:
    """The worker and all that it started are gone; `status` is as os.waitstatus_to_exitcode's."""

    name: str
    status: int


class Outbox:
    """The messages of an agent; any thread may add to it, or wait for more."""

    def __init__(self) -> None:
        self._kept: list[Message] = []
        self.last = 0
        """The number of the latest message."""
        self._closed = False
        self._changed = threading.Condition()

    def add(self, session: str, rank: int, body: Body | OfNode) -> int:
        """Add a message; return its number."""
        with self._changed:
            self.last += 1
            self._kept.append(Message(self.last, session, rank, body))
            self._changed.notify_all()
            return self.last

    def wait(self, after: int, acknowledged: int, seconds: float) -> list[Message]:
        """Return the messages after a number, once there are any; none after that many seconds.

        Messages up to the acknowledged number are dropped.
        """
        with self._changed:
            self._kept = [message for message in self._kept if message.number > acknowledged]
            self._changed.wait_for(lambda: self._closed or self.last > after, seconds)
            return [message for message in self._kept if message.number > after]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Acks:
    """Up to which number all messages are handled, if they are handled in any order."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.received = 0
        """The number of the latest received message."""

    def receive(self, number: int) -> None:
        self._open.add(number)
        self.received = max(self.received, number)

    def settle(self, number: int) -> None:
        self._open.discard(number)

    @property
    def acknowledged(self) -> int:
        """The number up to which all are handled."""
        return min(self._open, default=self.received + 1) - 1
