"""The process from which all workers of a node are forked, so that their imports happen once.

The zygote has one thread, runs no torch operation and uses no GPU, so a fork of it is as good as a
fresh process: it takes milliseconds instead of seconds, and shares the imported pages. The user's
module is imported too, if that keeps these properties; otherwise the process restarts without it.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import selectors
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

from cloudtune.infra.node import worker
from cloudtune.infra.node.early_zygote import Early
from cloudtune.infra.node.messages import Exited, Fork, Forked, Warm
from cloudtune.infra.node.process_group import Watch
from cloudtune.private_files import be_as_our_user
from cloudtune.train.programs.process_tree import die_with_parent

MESSAGE_BYTES = 1 << 17
_PROBE_SECONDS = 10.0
_STRAY_SECONDS = 2.0
_PR_SET_CHILD_SUBREAPER = 36


class Zygote:
    """Forks on request, and reports ends, until the agent at the other end is gone.

    Processes that a script detaches (setsid, a double fork) become children of their worker, and of
    the zygote once that has ended. So they are found, and end with their worker.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, str] = {}
        self._wake, self._waker = socket.socketpair()
        _adopt_orphans()
        self._imported = _children()  # processes that importing the user's module started

    def serve(self, without: str) -> None:
        """Fork until the agent is gone, then end all workers."""
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._tell(Warm(without))
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            try:
                while self._turn({key.fileobj for key, _ in selector.select()}):
                    pass
            except BrokenPipeError:
                pass
        for pid in self._children:
            _kill_group(pid)
        give_up = time.monotonic() + _STRAY_SECONDS
        while self._end_strays() and time.monotonic() < give_up:
            time.sleep(0.01)

    def _turn(self, readable: set[Any]) -> bool:
        if self._wake in readable:
            self._wake.recv(4096)
            self._reap()
        if self._control in readable:
            data, fds, *_ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
            if not data:
                return False
            self._fork(pickle.loads(data), fds[0])  # noqa: S301  the agent is our parent
        return True

    def _tell(self, message: Warm | Forked | Exited) -> None:
        self._control.sendall(pickle.dumps(message))

    def _fork(self, order: Fork, fd: int) -> None:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_worker(order, fd, parent)
        os.close(fd)
        self._children[pid] = order.name
        self._tell(Forked(order.name, pid))

    def _become_worker(self, order: Fork, fd: int, parent: int) -> NoReturn:
        try:
            die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            _adopt_orphans()
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for inherited in (self._control, self._wake, self._waker):
                inherited.close()
            os.environ.update(order.environment)
            os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
            if order.warm:
                worker.warm_up()
            worker.Worker(Connection(fd)).run()
        except BaseException:  # noqa: BLE001  the exit status and the log report it
            faulthandler.dump_traceback(all_threads=False)
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        worker.leave()
        raise AssertionError

    def _reap(self) -> None:
        for pid in list(self._children):
            # Until it is reaped its pid isn't reused, so everything in its group is its own.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                _kill_group(pid)
                _, status = os.waitpid(pid, 0)
                name = self._children.pop(pid)
                self._end_strays()
                self._tell(Exited(name, os.waitstatus_to_exitcode(status)))
        self._end_strays()

    def _end_strays(self) -> bool:
        """End processes left by dead workers; return whether there were any.

        Their own children become ours at the next SIGCHLD.
        """
        strays = _children() - self._children.keys() - self._imported
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return bool(strays)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def import_all() -> None:
    """Import what every worker needs, and what torch would import at the first step."""
    import pyarrow.fs  # noqa: F401, PLC0415
    import torch._dynamo  # noqa: PLC0415  a second, at the first step of an optimizer
    import torch.distributed  # noqa: PLC0415
    import torch.nn.parallel  # noqa: F401, PLC0415


def import_users(train: str) -> str:
    """Import the user's module; return why this process can't fork workers now, or ""."""
    if not train:
        return ""
    threads = _threads()
    watch = Watch()
    try:
        with watch:
            worker.preload(train)
    except BaseException as error:  # noqa: BLE001  each worker meets it again, and tells of it
        return f"its import raised {type(error).__name__}"
    if watch.asked:
        return (
            f"its import reads {', '.join(sorted(watch.asked))}, which each worker has its own of"
        )
    if _threads() > threads:
        return "its import starts threads"
    if _has_cuda():
        return "its import initialises CUDA"
    return "" if _fork_can_train() else "after its import, forked processes can't train"


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _has_cuda() -> bool:
    """Whether this process has a CUDA context or has called the driver."""
    import torch  # noqa: PLC0415

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "nvidia-uvm" in str(link.readlink()):
                return True
    return False


def _fork_can_train() -> bool:
    """Whether a forked process can take a step: autograd's and OpenMP's threads don't survive."""
    import torch  # noqa: PLC0415

    pid = os.fork()
    if pid == 0:
        try:
            weights = torch.ones(256, 256, requires_grad=True)
            (weights @ weights).exp().sum().backward()  # type: ignore[no-untyped-call]
            os._exit(0)
        finally:
            os._exit(1)
    give_up = time.monotonic() + _PROBE_SECONDS
    while time.monotonic() < give_up:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def main() -> None:
    """Import, and serve the agent whose socket is given, or the one that comes."""
    parser = argparse.ArgumentParser(prog="cloudtune.infra.node.zygote")
    parser.add_argument("--control", type=int)
    parser.add_argument("--train")
    parser.add_argument("--early", help="where to listen for an agent that says the two above")
    parser.add_argument("--gpus", type=int, help="how many a node with an early zygote has")
    parser.add_argument("--without", default="", help="why the user's module is not imported")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    be_as_our_user()  # the script is theirs
    early = None
    if options.early:
        os.environ["OMP_NUM_THREADS"] = str(_threads_of_a_worker(options.gpus))
        early = Early(options.early)
    environment = dict(os.environ)
    # Without this, checking for a GPU would break CUDA in every forked process.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import_all()
    if early is not None:
        options.control, options.train, environment = early.obey(command)
    folder = Path.cwd()
    without = options.without or import_users(options.train)
    if without and not options.without:
        os.chdir(folder)
        # Restart in the same process: the agent's requests wait.
        again = command(options.control, options.train, without)
        os.execve(sys.executable, again, environment)  # noqa: S606
    gc.collect()
    gc.freeze()  # imported pages stay shared, because collections don't write to them
    control = socket.socket(fileno=options.control)
    Zygote(control).serve(without)


def _threads_of_a_worker(gpus: int) -> int:
    """Return the threads of a worker with one of a node's GPUs.

    Torch and NumPy read their number as they are imported.
    """
    from cloudtune.infra.node.gpu_sharing import NodeGpus  # noqa: PLC0415  half a second

    return NodeGpus(gpus).threads(1.0)


def command(control: int, train: str, without: str = "") -> list[str]:
    """Return the command of a zygote: its socket's descriptor, and the options of `main`."""
    program = [sys.executable, "-P", "-m", "cloudtune.infra.node.zygote"]
    return [*program, "--control", str(control), "--train", train, "--without", without]


if __name__ == "__main__":
    main()
