"""The agent of a node: starts, controls and ends the workers of all sessions there.

Every node has one, and it outlives the controller: it keeps the reports of its workers, numbered,
until a controller acknowledges them. `ray_agent.py` makes it a Ray actor; nothing here knows Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra.node import messages
from cloudtune.infra.node.data import NodeData
from cloudtune.infra.node.forks import Forks, describe_exit
from cloudtune.infra.node.gpu_sharing import NodeGpus
from cloudtune.infra.node.gpus import GpuSlots
from cloudtune.infra.node.lease import Ends, Lease
from cloudtune.infra.node.process_group import environment
from cloudtune.infra.node.variables import SecretError, add_to, with_wandb_mode
from cloudtune.infra.node.worker import STACKS, STOP_SECONDS
from cloudtune.train import node_copies
from cloudtune.train.saved_files import AGENT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from cloudtune.infra.node.messages import Body, Described, Message, Order, Part, Training

_TICK_SECONDS = 0.5
# Seconds that `hello` waits for the zygote's imports.
WARM_SECONDS = 60.0
# Seconds after an order to stop: a worker ends by itself before that, or never.
_KILL_SECONDS = STOP_SECONDS + 2.0
# Seconds to wait for the last messages of a dead worker.
_DRAIN_SECONDS = 5.0
# Seconds until a GPU whose spare worker died gets another: a broken one would be forked in a loop.
_SPARE_PAUSE = 30.0
# Seconds that a session waits for GPUs that another will leave.
_SLOT_SECONDS = 120.0
_TAIL_BYTES = 400
_STACKS = "cloudtune ends this worker, as nothing was reported for too long. It was here:"
_FAULT = "a fault ended all that share GPU"


@dataclass(eq=False)
class _Worker:
    """A worker process: its name, its connection, and its GPU."""

    name: str
    connection: Connection[Order, Body]
    gpu: int
    share: float = 1.0
    session: str = ""  # a spare one has none yet
    rank: int = 0
    log: str = ""
    has_reported: bool = False
    """Whether the worker has reported why it ends."""
    listener: threading.Thread | None = None


@dataclass
class _Local:
    """The part of a session on this node. A message about a session may come before the session."""

    part: Part | None = None
    rendezvous: str = ""
    socket: socket.socket | None = None
    workers: dict[int, _Worker] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    epoch: int = 0
    granted: int = 0
    asked_at: float = 0.0
    stopping_since: float | None = None
    stacks_at: float | None = None
    """When its workers were told to write their stacks; they end after that."""
    begun: bool = False
    gone: int | None = None
    """The number of the session's last message."""

    def is_overdue(self) -> bool:
        """Whether the session's workers should have ended long ago."""
        since = self.stopping_since
        return since is not None and time.monotonic() >= since + _KILL_SECONDS

    def lacks_gpus(self) -> bool:
        """Whether the session has waited for GPUs longer than the previous one can take to end."""
        waits = self.part is not None and not self.begun and self.stopping_since is None
        return waits and time.monotonic() >= self.asked_at + _SLOT_SECONDS


@contextlib.contextmanager
def _errors_to_stderr() -> Iterator[None]:
    """Log errors where a person finds them, and continue."""
    try:
        yield
    except CloudtuneError as error:
        sys.stderr.write(f"{error}\n")


class Agent:
    """The sessions of one node. Methods return at once, except `hello` and `messages`, which wait.

    Args:
        address: where the workers of other nodes reach this one.
        gpus: how many this node has; without CUDA they are only numbers.
        training: the common settings of the sessions.
        logs: the folder for the output of workers: <session>.<rank>.log, and zygote.log.
        spares: whether to keep a worker ready on each free GPU; by default with CUDA.
        lease: the lease of the node; by default the one in its environment, if any.
    """

    def __init__(
        self,
        address: str,
        gpus: int,
        training: Training,
        logs: Path,
        *,
        spares: bool | None = None,
        lease: Ends | None = None,
    ) -> None:
        self._address = address
        self._lease = lease or Lease.of_this_node()
        self._training = training
        self._logs = logs
        self._gpus = NodeGpus(gpus, logs)
        self._keeps_spares = self._gpus.are_real if spares is None else spares
        self._slots = GpuSlots(gpus)
        self._outbox = messages.Outbox()
        self._locals: dict[str, _Local] = {}
        self._workers: dict[str, _Worker] = {}  # by name
        self._spares: dict[int, _Worker] = {}  # by GPU
        self._no_spare_before: dict[int, float] = {}  # by GPU, if it breaks spare workers
        self._forked = 0
        # Orders, listeners and the tick run in their own threads.
        self._lock = threading.RLock()
        self._remarked = ""
        self._leased_until = math.inf  # the machine keeps the first lease by itself
        self._closing = threading.Event()
        logs.mkdir(parents=True, exist_ok=True)
        # The user's variables, which the user's module may read as it is imported.
        self._refusal = ""
        self._variables = self._read_variables()
        seen = self._environment((0,), 1.0)  # one GPU, if any, like its forks
        folder = training.folder
        self._data = NodeData(training.data, training.storage)
        if problem := self._data.problem(Path(folder or Path.cwd())):
            self._refusal = problem  # all trials here fail
        # As Ray has it for a folder that it has copied.
        found = {**os.environ} if not folder else add_to(os.environ, {"PYTHONPATH": folder})
        found = with_wandb_mode(add_to(found, self._variables))
        # Its workers trust each other's checksums; see `train/saved_files.py`.
        self._name = uuid.uuid4().hex
        environment = {**found, **seen, AGENT_VARIABLE: self._name}
        self._forks = Forks(
            training.module, environment, logs / "zygote.log", self._note_exit, folder or None
        )
        threading.Thread(target=self._tick, name="tick", daemon=True).start()

    def _read_variables(self) -> dict[str, str]:
        """Return the variables of the trials; if a secret can't be read, all trials here fail."""
        try:
            return self._training.variables.read()
        except SecretError as error:
            self._refusal = str(error)
            return {}

    def hello(self) -> dict[str, str | int]:
        """Return the state of this agent: its pid, the zygote's pid and its state.

        Waits up to a minute until workers start at once: see `Forks.wait_until_warm`. `mps`: why
        packed workers take turns on a GPU, "" if they don't. `lack`: which GPUs the node has, if
        that makes it useless.
        """
        forks = self._forks
        gpus = self._gpus
        forks.wait_until_warm(WARM_SECONDS)
        facts: dict[str, str | int] = {"pid": os.getpid(), "zygote": forks.pid, "note": forks.note}
        return {**facts, "mps": gpus.notice, "lack": gpus.gpu_problem(self._training)}

    def renew(self, until: float) -> None:
        """Postpone the end of this node to that time (Unix), by a lease at most."""
        if self._lease is not None:
            with _errors_to_stderr():  # asked again in a minute
                self._leased_until = self._lease.renew(until)

    def power_off(self) -> None:
        """Shut down the node now, if it is rented, in case EC2 may not be called to end it."""
        if self._lease is not None:
            with _errors_to_stderr():
                self._lease.end_now()

    def note_interruption(self, due: float) -> None:
        """Report an interruption of this node at `due` (Unix time) to controller and workers."""
        self._outbox.add("", 0, messages.Interruption(due))
        with self._lock:
            for worker in self._workers.values():
                self._send(worker, messages.Leave())

    def start(self, part: Part, rendezvous: str = "") -> str:
        """Start this node's workers of a session; return where its workers meet.

        The agent without a given `rendezvous` has rank 0, and chooses it. A repeated call starts
        nothing. Without room, the session waits, and is lost if there is none in time.
        """
        with self._lock:
            local = self._locals.setdefault(part.session, _Local())
            if local.part is None:  # otherwise a repeated call, because the answer was lost
                local.part, local.asked_at = part, time.monotonic()
                local.granted = max(local.granted, part.command.until_epoch)
                local.rendezvous = rendezvous
                if not rendezvous and part.slots[0].world_size > 1:
                    local.socket = socket.create_server((self._address, 0))
                    local.rendezvous = f"{self._address}:{local.socket.getsockname()[1]}"
                self._place_waiting()
            return local.rendezvous

    def grant(self, session: str, until_epoch: int) -> None:
        with self._lock:
            local = self._locals.setdefault(session, _Local())
            local.granted = max(local.granted, until_epoch)
            for worker in local.workers.values():
                self._send(worker, messages.Grant(local.granted))

    def acknowledge(self, session: str, epoch: int) -> None:
        """Allow a session to drop its checkpoints of earlier epochs."""
        with self._lock:
            local = self._locals.get(session)
            if local is not None and 0 in local.workers:
                self._send(local.workers[0], messages.Acknowledge(epoch))

    def stop(self, session: str, stacks: bool = False) -> None:
        """End a session's workers on this node; `Gone` is the message about it.

        With `stacks` each worker first writes the stacks of its threads to its log.
        """
        with self._lock:
            local = self._locals.setdefault(session, _Local())
            if stacks and local.workers and local.stopping_since is None:
                self._write_stacks(local)
            elif local.stopping_since is None:
                self._end(local)
                self._place_waiting()

    def messages(self, after: int, acknowledged: int, seconds: float) -> list[Message]:
        """Return the messages after that number, once there are any; none after `seconds`.

        Acknowledged messages are dropped.
        """
        with self._lock:
            # A new controller asks for everything: an end that no controller has acknowledged must
            # still be reported.
            for name, local in list(self._locals.items()):
                if local.gone is not None and local.gone <= acknowledged:
                    del self._locals[name]
        return self._outbox.wait(after, acknowledged, seconds)

    def describe(self) -> dict[str, Described]:
        """Return the sessions with processes or unacknowledged messages here."""
        with self._lock:
            return {
                name: messages.Described(
                    frozenset(local.ready), local.epoch, local.gone is not None
                )
                for name, local in self._locals.items()
                if local.part is not None
            }

    def held_files(self, folder: str) -> dict[str, int]:
        """Return the files of a checkpoint that couldn't be saved, with their bytes."""
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}

    def read_held(self, path: str, offset: int, size: int) -> bytes:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def drop_held(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._closing.set()
        self._forks.close()
        self._outbox.close()
        self._gpus.close()
        self._data.close()
        node_copies.drop_all(self._name)

    def _place_waiting(self) -> None:
        """Start the sessions for which there is room, in the order of their requests."""
        for local in list(self._locals.values()):
            if local.part is None or local.begun:
                continue
            if local.stopping_since is not None:
                # Stopped before there was room: it ends without ever having a worker.
                local.begun = True
                self._finish(local)
                continue
            piece = local.part.piece
            gpus = self._slots.take(local.part.session, piece.gpus, piece.gpu)
            if gpus is not None:
                self._begin(local, local.part, gpus)
        self._keep_spares()

    def _begin(self, local: _Local, part: Part, gpus: tuple[int, ...]) -> None:
        local.begun = True
        command = dataclasses.replace(part.command, until_epoch=local.granted)
        for number, (slot, gpu) in enumerate(zip(part.slots, gpus, strict=True)):
            worker = self._spares.pop(gpu, None)
            # A spare worker sees only its GPU, and holds memory of it.
            alone = len(gpus) == 1 or not self._gpus.are_real
            if worker is not None and not (slot.share == 1.0 and alone):
                self._send(worker, messages.Stop())
                worker = None
            worker = worker or self._fork(gpu, self._environment(gpus, slot.share), warm=False)
            worker.session = part.session
            worker.rank = slot.rank
            worker.share = slot.share
            worker.log = str(self._logs / f"{part.session}.{slot.rank}.log")
            local.workers[slot.rank] = worker
            listens = local.socket is not None and slot.rank == 0
            begin = messages.Begin(
                training=self._training,
                slot=slot,
                command=command,
                keep_from=part.keep_from,
                rendezvous=local.rendezvous,
                listens=listens,
                log=worker.log,
                asked_at=time.time(),
                environment=environment(slot, len(part.slots), local.rendezvous),
                gpu=number,
                refusal=self._refusal,
            )
            self._send(worker, begin)
            if listens and local.socket is not None:
                with contextlib.suppress(OSError):  # it is gone; its end is reported
                    send_handle(worker.connection, local.socket.fileno(), os.getpid())
                local.socket.close()

    def _environment(self, gpus: tuple[int, ...], share: float) -> dict[str, str]:
        """Return the environment of a worker with that share of GPUs, for before CUDA starts."""
        threads = self._variables.get("OMP_NUM_THREADS") or f"{self._gpus.threads(share)}"
        own = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": threads}
        return {**self._gpus.environment(gpus, share), **own}

    def _fork(self, gpu: int, environment: dict[str, str], *, warm: bool) -> _Worker:
        self._forked += 1
        name = f"worker-{self._forked}"
        worker = _Worker(name, self._forks.fork(name, environment, warm=warm), gpu)
        self._workers[name] = worker
        worker.listener = threading.Thread(
            target=self._listen, args=(worker,), name=name, daemon=True
        )
        worker.listener.start()
        return worker

    def _keep_spares(self) -> None:
        if not self._keeps_spares or self._closing.is_set():
            return
        now = time.monotonic()
        for gpu in self._slots.free():
            if gpu not in self._spares and now >= self._no_spare_before.get(gpu, now):
                seen = self._environment((gpu,), 1.0)
                warm = self._gpus.are_real and self._training.program is None
                self._spares[gpu] = self._fork(gpu, seen, warm=warm)

    def _send(self, worker: _Worker, order: Order) -> None:
        with contextlib.suppress(OSError):  # it is gone; its end is reported
            worker.connection.send(order)

    def _listen(self, worker: _Worker) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._hear(worker, worker.connection.recv())

    def _hear(self, worker: _Worker, body: Body) -> None:
        with self._lock:
            local = self._locals[worker.session]
            if isinstance(body, messages.Ready):
                local.ready.add(worker.rank)
            elif isinstance(body, messages.Epoch):
                local.epoch = max(local.epoch, body.report.epoch)
            elif isinstance(body, messages.Failure) and worker.share < 1.0:
                text = f"{body.error}\n{body.traceback}"
                # If a fault on the GPU ended all packed workers, that is what to report.
                if not body.out_of_memory and self._gpus.is_fault(worker.gpu, text):
                    body = messages.Lost(f"{_FAULT} {worker.gpu}; it said: {body.error}")
            self._outbox.add(worker.session, worker.rank, body)
            if isinstance(body, messages.Failure | messages.Done | messages.Lost):
                # The others would wait for it in a collective until a timeout.
                worker.has_reported = True
                self._end(local)

    def _note_exit(self, name: str, status: int | None) -> None:
        worker = self._workers[name]
        if worker.listener is not None:
            worker.listener.join(_DRAIN_SECONDS)  # earlier messages come first
        with self._lock:
            del self._workers[name]
            worker.connection.close()
            if self._spares.get(worker.gpu) is worker:
                del self._spares[worker.gpu]
                self._no_spare_before[worker.gpu] = time.monotonic() + _SPARE_PAUSE
            local = self._locals.get(worker.session)
            if local is None:
                return
            # After a stop it exits with 0, or is killed if that takes too long.
            asked = local.stopping_since is not None and (status in (0, None) or local.is_overdue())
            if not worker.has_reported and not asked:
                cause = self._training.variables.hide(_cause(worker, status), self._variables)
                self._outbox.add(worker.session, worker.rank, messages.Lost(cause))
                self._end(local)
            del local.workers[worker.rank]
            if not local.workers:
                self._finish(local)
                self._place_waiting()

    def _end(self, local: _Local) -> None:
        """Tell the workers of a session to end; those that don't are killed later."""
        if local.stopping_since is None:
            local.stopping_since = time.monotonic()
            for worker in local.workers.values():
                self._send(worker, messages.Stop())

    def _finish(self, local: _Local) -> None:
        assert local.part is not None
        self._slots.give(local.part.session)
        if local.socket is not None:
            local.socket.close()
        local.gone = self._outbox.add(local.part.session, local.part.slots[0].rank, messages.Gone())

    def _write_stacks(self, local: _Local) -> None:
        """Make the workers of a session write their stacks, for which they don't need the GIL."""
        local.stacks_at = time.monotonic()
        for worker in local.workers.values():
            pid = self._forks.find_pid(worker.name)
            if pid is not None:
                with Path(worker.log).open("a", encoding="utf-8") as log:
                    log.write(f"{_STACKS}\n")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, STACKS)

    def _tick(self) -> None:
        while not self._closing.wait(_TICK_SECONDS):
            with self._lock:
                for local in self._locals.values():
                    at = local.stacks_at
                    if at is not None and time.monotonic() >= at + _TICK_SECONDS:
                        local.stacks_at = None
                        self._end(local)
                self._kill_stubborn()
                self._give_up_waiting()
                self._keep_spares()
            self._end_after_fault()
            if unix_time() >= self._leased_until:  # to the second
                self.power_off()
            remark = self._gpus.notice  # why packed workers take turns on their GPU
            if remark and remark != self._remarked:
                self._remarked = remark
                self._outbox.add("", 0, messages.Remark(remark))

    def _kill_stubborn(self) -> None:
        for local in filter(_Local.is_overdue, self._locals.values()):
            for worker in local.workers.values():
                pid = self._forks.find_pid(worker.name)
                if pid is not None:
                    self._gpus.release(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)

    def _give_up_waiting(self) -> None:
        """Report as lost the sessions for which no GPU became free."""
        late = [local for local in self._locals.values() if local.lacks_gpus()]
        for local in late:
            assert local.part is not None
            reason = f"no room on this node's GPUs for {_SLOT_SECONDS:g} s; others still hold them"
            self._outbox.add(local.part.session, local.part.slots[0].rank, messages.Lost(reason))
            self._end(local)
        if late:
            self._place_waiting()

    def _end_after_fault(self) -> None:
        """End the packed workers of a GPU whose MPS had to be restarted: they are lost."""
        for gpu in self._gpus.check():
            with self._lock:
                for worker in list(self._workers.values()):
                    if worker.gpu == gpu and worker.share < 1.0 and not worker.has_reported:
                        worker.has_reported = True
                        self._outbox.add(
                            worker.session, worker.rank, messages.Lost(f"{_FAULT} {gpu}")
                        )
                        self._end(self._locals[worker.session])


def _cause(worker: _Worker, status: int | None) -> str:
    """Return how a worker ended, with the last line of its output."""
    cause = f"the worker of rank {worker.rank} {describe_exit(status)}; see {worker.log}"
    with contextlib.suppress(OSError):
        lines = Path(worker.log).read_bytes()[-_TAIL_BYTES:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{cause}, which ends: {last}" if last else cause
    return cause
