"""What the controller, the agents of the nodes and the workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.infra.trainer import Assignment, Seat, Training


@dataclass(frozen=True)
class Part:
    """What one node has of a session: the seats of its workers, on `gpus` of its GPUs.

    Shares with the same `gpu` sit on the same one, as in `cloudtune.trial.Slice`.
    """

    session: str
    seats: tuple[Seat, ...]
    gpus: float
    assignment: Assignment
    gpu: int = -1


# ---- to a worker -------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Train; asked for at `asked_at` (Unix time).

    The workers meet at `meeting`, "host:port", empty where there is one only. The socket that
    listens there follows this message, for the worker that `listens`. Output goes to `log`.
    """

    training: Training
    seat: Seat
    assignment: Assignment
    meeting: str
    listens: bool
    log: str
    asked_at: float


@dataclass(frozen=True)
class Grant:
    """Train on to that epoch."""

    until_epoch: int


@dataclass(frozen=True)
class Acknowledge:
    """The controller knows of that epoch, and will go on from no earlier one."""

    epoch: int


@dataclass(frozen=True)
class Stop:
    """End: once what was reported is stored, in the middle of an epoch too."""


@dataclass(frozen=True)
class Leave:
    """The machine is about to be taken back: a script that can saves in mid-epoch."""


Order: TypeAlias = Begin | Grant | Acknowledge | Stop | Leave

# ---- from a worker, and of it ------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The worker is set up."""


@dataclass(frozen=True)
class Epoch:
    """Rank 0 finished an epoch; `report` has the fields of `cloudtune.training.Report`."""

    report: Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """An error of the user's code: one line, and the traceback.

    `peer`: it looks like what a worker meets when another has gone.
    """

    error: str
    traceback: str
    out_of_memory: bool = False
    peer: bool = False


@dataclass(frozen=True)
class Done:
    """The training function has returned."""


@dataclass(frozen=True)
class Lost:
    """The worker's process is gone, and has said nothing of why."""

    reason: str


@dataclass(frozen=True)
class Gone:
    """No process of the session is left on the node, and its GPUs are free. The last news."""


Body: TypeAlias = Ready | Epoch | Failure | Done | Lost | Gone


@dataclass(frozen=True)
class Interruption:
    """The cloud takes the node's instance back at `due` (Unix time). News of no session."""

    due: float


@dataclass(frozen=True)
class Remark:
    """What a person should know of the node, once. News of no session."""

    text: str


@dataclass(frozen=True)
class News:
    """What an agent tells, numbered from 1 on; it keeps it until that number is acknowledged."""

    number: int
    session: str
    rank: int
    body: Body | Interruption | Remark


@dataclass(frozen=True)
class Described:
    """A session on a node as its agent sees it: set-up ranks, last epoch, and what is granted."""

    ready: frozenset[int]
    epoch: int
    granted: int
    gone: bool
    last_news: int


# ---- to the zygote, and from it ----------------------------------------------------------


@dataclass(frozen=True)
class Fork:
    """Fork a worker with this environment; the socket that it is to speak through comes along.

    `warm`: it makes its GPU ready at once, before it is told what to train.
    """

    name: str
    environment: Mapping[str, str]
    warm: bool = False


@dataclass(frozen=True)
class Warm:
    """All is imported. `without` says why the user's module isn't; empty where it is."""

    without: str


@dataclass(frozen=True)
class Forked:
    """The worker runs, the leader of a process group of its own."""

    name: str
    pid: int


@dataclass(frozen=True)
class Exited:
    """The worker and all that it started are gone; `status` is as os.waitstatus_to_exitcode's."""

    name: str
    status: int
