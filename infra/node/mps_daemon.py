"""The control daemon of CUDA MPS on one GPU: started, queried and ended by its pid.

Facts from NVIDIA's "Multi-Process Service" (docs.nvidia.com/deploy/mps, legacy v2 interface):

- A daemon answers in its CUDA_MPS_PIPE_DIRECTORY; nvidia-cuda-mps-control.pid there has its pid.
  It starts a server with the first client.
- A client's fatal fault ends all clients of its server, which refuses new ones (status FAULT) until
  all are gone. With a daemon per GPU, only one GPU is affected.
- A client killed in the middle of its work may leave the server in an undefined state. After
  `terminate_client` it has no work left on the GPU, and can be killed.
- A daemon renumbers devices, so daemon and clients identify them by UUID.

No GPU is reset, compute modes don't change, and nothing here needs root.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from cloudtune.infra.node.gpus import VISIBLE, Gpu
from cloudtune.infra.processes import is_running

CONTROL = "nvidia-cuda-mps-control"
_PID_FILE = "nvidia-cuda-mps-control.pid"
# A Unix socket's path has up to 107 characters; a daemon uses names of up to 40 in its folder.
LONGEST_FOLDER = 60
START_SECONDS = 10.0
ANSWER_SECONDS = 5.0
QUIT_SECONDS = 5.0
_POLL_SECONDS = 0.02


class NoAnswerError(Exception):
    """A daemon is gone, hangs, or refused a command; the message says which."""


class Daemon:
    """The control daemon of one GPU, in its own folder."""

    def __init__(self, control: str, folder: Path, gpu: Gpu, patience: float) -> None:
        self._control = control
        self._pipes = folder
        self._logs = folder / "log"
        self._gpu = gpu
        self._patience = patience
        self._leader: psutil.Process | None = None
        self._helpers: set[psutil.Process] = set()  # its servers, which may outlive it

    @property
    def directories(self) -> dict[str, str]:
        """The variables by which clients and commands find this daemon."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self._logs),
        }

    def start(self) -> None:
        """Start it, replacing one left in its folder; return when it answers.

        Raises:
            NoAnswerError: it doesn't start.
        """
        self._leader = self._written()
        self.stop()
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / "start.log").open("ab") as output:  # a pipe would stay open forever
            try:
                done = subprocess.run(
                    [self._control, "-d"],
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=START_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NoAnswerError(f"its daemon doesn't start: {error}") from error
        self._leader = self._written()
        if done.returncode != 0 or self._leader is None:
            raise NoAnswerError(f"its daemon doesn't start; see {self._logs}")
        self._ask("get_server_list")

    def is_well(self) -> bool:
        """Whether the daemon answers, and none of its servers has faulted."""
        if self._leader is None or not is_running(self._leader):
            return False
        self._helpers.update(_children(self._leader))
        try:
            return not any(
                "FAULT" in self._ask(f"get_server_status {server}").upper()
                for server in self._servers()
            )
        except NoAnswerError:
            return False

    def release(self, pid: int) -> bool:
        """Remove a client's work from the GPU; return whether it is a client of this daemon."""
        try:
            for server in self._servers():
                if pid in _numbers(self._ask(f"get_client_list {server}")):
                    self._ask(f"terminate_client {server} {pid}")
                    return True
        except NoAnswerError:  # its clients have no work on the GPU either
            return False
        return False

    def stop(self) -> None:
        """End it and its servers, by request and then by pid, and remove its folder."""
        if self._leader is not None:
            doomed = [self._leader, *{*_children(self._leader), *self._helpers}]
            with contextlib.suppress(NoAnswerError):
                # Forced after a second: otherwise it would wait for clients that can't work.
                self._ask("quit -t 1")
                wait_until(lambda: not any(map(is_running, doomed)))
            for process in filter(is_running, doomed):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            wait_until(lambda: not any(map(is_running, doomed)))
        self._leader = None
        self._helpers.clear()
        shutil.rmtree(self._pipes, ignore_errors=True)

    def _servers(self) -> list[int]:
        return _numbers(self._ask("get_server_list"))

    def _ask(self, command: str) -> str:
        """Return the daemon's answer to a command.

        Raises:
            NoAnswerError: it is gone, it hangs, or it refused.
        """
        try:
            done = subprocess.run(
                [self._control],
                input=command + "\n",
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=self._patience,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoAnswerError(f"its daemon doesn't answer: {error}") from error
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise NoAnswerError(f"its daemon is gone: {lines[-1] if lines else 'it says nothing'}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if "CUDA_MPS" not in name}
        # The commands are those of version 2, NVIDIA's default.
        ours = {VISIBLE: self._gpu.uuid, "CUDA_MPS_PROTOCOL_VERSION": "2"}
        return {**others, **self.directories, **ours}

    def _written(self) -> psutil.Process | None:
        """Return the running daemon of this folder, by the pid that it has written there."""
        try:
            process = psutil.Process(int((self._pipes / _PID_FILE).read_text()))
            ours = process.environ().get("CUDA_MPS_PIPE_DIRECTORY") == str(self._pipes)
        except (OSError, ValueError, psutil.Error):
            return None
        return process if ours and is_running(process) else None


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def _numbers(answer: str) -> list[int]:
    return [int(line) for line in answer.split() if line.isdecimal()]


def wait_until(condition: Callable[[], bool], seconds: float = QUIT_SECONDS) -> bool:
    """Return whether a condition became true in time."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(_POLL_SECONDS)
    return True
