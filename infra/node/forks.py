"""The agent's side of the zygote: start it, fork workers, notice their ends, restart it."""

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from cloudtune.infra.node import early_zygote, zygote
from cloudtune.infra.node.messages import Body, Exited, Fork, Forked, Order, Warm

_MAX_STARTS = 4
_LONG_ENOUGH = 60.0
_END_SECONDS = 5.0


class Forks:
    """Forks worker processes, in milliseconds once it is warm; earlier requests wait.

    Args:
        train: the user's function, "file.py:function" in the folder.
        environment: added to the zygote's: which GPU the user's module sees there.
        log: the file for the zygote's output, and for workers' before they train.
        on_end: called with a worker's name and exit status when it and all that it started are
            gone; the status is None if the zygote died with it.
        folder: where they run; None for the current folder.
    """

    def __init__(
        self,
        train: str,
        environment: Mapping[str, str],
        log: Path,
        on_end: Callable[[str, int | None], None],
        folder: str | None = None,
    ) -> None:
        self._folder = folder
        self._train = train
        self._environment = environment
        self._log = log
        self._on_end = on_end
        self._lock = threading.Lock()
        self._pids: dict[str, int | None] = {}
        self._closing = False
        self._settled = threading.Event()  # it can fork at once, or never will
        self._starts = 0
        self.note = "warming up"
        """The state of the zygote in words."""
        self._start("")

    def _start(self, without: str) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, **self._environment}
        folder = self._folder or str(Path.cwd())
        with its, self._log.open("ab") as log:
            # The first one only: then it is taken.
            sent = [its.fileno(), log.fileno()]
            early = early_zygote.take(self._train, folder, environment, sent)
            self._zygote = early or subprocess.Popen(
                zygote.command(its.fileno(), self._train, without),
                cwd=folder,
                env=environment,
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._control = ours
        self._starts += 1
        self._started = time.monotonic()
        self._settled.clear()
        threading.Thread(target=self._listen, args=(ours,), name="zygote", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._zygote.pid

    def wait_until_warm(self, seconds: float) -> None:
        """Wait until a fork takes milliseconds, but not for a zygote older than `seconds`."""
        self._settled.wait(max(0.0, self._started + seconds - time.monotonic()))

    def fork(
        self, name: str, environment: Mapping[str, str], *, warm: bool = False
    ) -> "Connection[Order, Body]":
        """Return the connection to a new worker of that name, which waits for its trial.

        A worker that couldn't be forked is reported as ended.
        """
        ours, its = socket.socketpair()
        with self._lock, its:
            self._pids[name] = None
            with contextlib.suppress(OSError):  # it has just died, which will be reported
                request = pickle.dumps(Fork(name, environment, warm=warm))
                socket.send_fds(self._control, [request], [its.fileno()])
        return Connection(ours.detach())

    def find_pid(self, name: str) -> int | None:
        return self._pids.get(name)

    def close(self) -> None:
        """End the zygote, and with it all workers."""
        with self._lock:
            self._closing = True
            self._settled.set()
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._zygote.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it is still importing
            self._zygote.kill()
            self._zygote.wait()

    def _listen(self, control: socket.socket) -> None:
        with contextlib.suppress(OSError), control:
            while data := control.recv(zygote.MESSAGE_BYTES):
                self._hear(pickle.loads(data))  # noqa: S301  the zygote is our child
        self._zygote.wait()
        with self._lock:
            orphans = dict(self._pids)
            self._pids.clear()
            if time.monotonic() - self._started > _LONG_ENOUGH:
                self._starts = 0
            if not self._closing and self._starts < _MAX_STARTS:
                self._start("the zygote died with it")
            elif not self._closing:
                self.note = f"the zygote has died {self._starts} times; see {self._log}"
                self._settled.set()
        self._end(orphans)

    def _end(self, orphans: Mapping[str, int | None]) -> None:
        """End the remains of a dead zygote's workers, and report each once it is gone.

        The kernel has killed the workers, but it takes a while until they release their GPU; and it
        hasn't killed the processes that they started.
        """
        with selectors.DefaultSelector() as selector:
            for name, pid in orphans.items():
                handle = None  # becomes readable when a process that isn't our child ends
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        handle = os.pidfd_open(pid)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                if handle is None:
                    self._on_end(name, None)
                else:
                    selector.register(handle, selectors.EVENT_READ, name)
            while selector.get_map():
                for key, _ in selector.select():
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    self._on_end(key.data, None)

    def _hear(self, message: Warm | Forked | Exited) -> None:
        match message:
            case Warm(without):
                self.note = f"warm, without the user's module: {without}" if without else "warm"
                self._settled.set()
            case Forked(name, pid):
                self._pids[name] = pid
            case Exited(name, status):
                self._pids.pop(name, None)
                self._on_end(name, status)


def describe_exit(status: int | None) -> str:
    """Return how a process ended, in words; None means that its zygote died first."""
    if status is None:
        return "died with the process that it was forked from"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # Python has no names for most real-time signals
        return f"was killed by signal {-status}"
