"""A zygote that imports while its machine still joins the cluster, and then waits for its agent.

A machine's boot starts it beside Ray. The agent, which comes minutes or seconds later, takes it
over through a Unix socket: it says what to be, and passes the zygote's ends of its own sockets.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from cloudtune.train.programs.process_tree import die_with_parent

# The address at which a machine's early zygote listens.
VARIABLE = "CLOUDTUNE_ZYGOTE"
_ORDER_BYTES = 1 << 20
_KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET
_CREDENTIALS = struct.Struct("3i")  # of the process at the other end: its pid, user and group
# Variables that Ray and the agent set, and none of the imports reads.
_OWN = (
    *("RAY_", "SPT_NOENV", "PYTHONBREAKPOINT", "PWD", "OLDPWD"),
    *("CLOUDTUNE_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "WANDB_MODE"),
)


class Adopted:
    """A process that isn't a child of this one, with the methods of a `Popen` that a child has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it hasn't ended within `timeout` seconds.
        """
        ended, *_ = select.select([self._handle], [], [], timeout)
        if not ended:
            raise subprocess.TimeoutExpired("zygote", timeout or 0.0)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)


@contextlib.contextmanager
def started_early(environment: Mapping[str, str], gpus: int) -> Iterator[dict[str, str]]:
    """Start one for a node with that environment; yield what to add to it for its agent."""
    folder = tempfile.mkdtemp(prefix="z")
    address = f"{folder}/socket"
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "cloudtune.infra.node.zygote", "--train", ""),
            *("--early", address, "--gpus", str(gpus)),
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509  it takes no lock
    )
    try:
        yield {VARIABLE: address}
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def take(
    train: str, folder: str, environment: Mapping[str, str], descriptors: Iterable[int]
) -> Adopted | None:
    """Take a node's early zygote over; None if there is none, or none any more.

    It gets the function to import, the folder and the environment, and the `descriptors` of its
    control socket and of its log. If it dies before it has read them, that socket is closed.
    """
    address = os.environ.get(VARIABLE)
    if not address:
        return None
    order = json.dumps([train, folder, dict(environment)]).encode()
    with contextlib.suppress(OSError), socket.socket(*_KIND) as agent:
        agent.connect(address)
        credentials = agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        zygote = Adopted(_CREDENTIALS.unpack(credentials)[0])
        socket.send_fds(agent, [order], list(descriptors))
        return zygote
    return None


class Early:
    """An early zygote's own side: it listens from the start, and obeys once all is imported."""

    def __init__(self, address: str) -> None:
        self._began_with = dict(os.environ)
        self._listener = socket.socket(*_KIND)
        self._listener.bind(address)
        self._listener.listen(1)

    def obey(self, command: Callable[[int, str], list[str]]) -> tuple[int, str, dict[str, str]]:
        """Wait for the agent; return the control socket, the function to import, the environment.

        If the agent's environment differs in what an import may have read, this process begins
        again with the `command` for that socket and function.
        """
        agent, _ = self._listener.accept()
        with self._listener, agent:
            data, descriptors, *_ = socket.recv_fds(agent, _ORDER_BYTES, 2)
            credentials = agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        train, folder, environment = json.loads(data)
        _be_ranked_as(_CREDENTIALS.unpack(credentials)[0])
        control, log = descriptors
        os.set_inheritable(control, True)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.chdir(folder)
        changed = dict(environment.items() ^ self._began_with.items())
        changed.pop("PYTHONPATH", None)
        if not all(name.startswith(_OWN) for name in changed):
            again = command(control, train)
            os.execve(again[0], again, environment)  # noqa: S606
        self._take_on(environment)
        return control, train, environment

    def _take_on(self, environment: Mapping[str, str]) -> None:
        """Have an environment as if it had been there from the start."""
        for name in self._began_with.keys() - environment.keys():
            os.environ.pop(name, None)
        os.environ.update(dict(environment.items() - self._began_with.items()))
        before = _paths(self._began_with)
        sys.path[:] = [*_paths(environment), *(path for path in sys.path if path not in before)]


def _paths(environment: Mapping[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def _be_ranked_as(agent: int) -> None:
    """Have the priority of an agent, and be killed before others if memory is short, like it."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, agent))
    with contextlib.suppress(OSError):
        rank = Path(f"/proc/{agent}/oom_score_adj").read_text(encoding="ascii")
        Path("/proc/self/oom_score_adj").write_text(rank, encoding="ascii")
