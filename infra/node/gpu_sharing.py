"""The GPUs of one node as its agent sees them: which worker sees which, packed or alone."""

import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from cloudtune.infra.node.gpus import (
    COUNTED_VARIABLE,
    GPUS_VARIABLE,
    STAND_IN,
    THREADS_VARIABLE,
    VISIBLE,
    gpus,
)
from cloudtune.infra.node.messages import Training
from cloudtune.infra.node.mps import MpsDaemons
from cloudtune.infra.node.this_machine import physical_cores
from cloudtune.train.shared_input.place import INPUT_VARIABLE

_CHECK_SECONDS = 2.0
_ASK_TORCH = """\
import torch
print(torch.__version__, torch.cuda.device_count() if torch.cuda.is_available() else 0)
"""
# CUDA's error 802, in torch's warning, while the fabric manager of p4d, p5 or p6 starts.
_NOT_YET = "system not yet initialized"
_FABRIC_SECONDS = 180.0
_FABRIC_PAUSE = 2.0
# torch's words for errors that end a process's use of the GPU.
_CUDA_ERROR = re.compile(r"CUDA error: (?!CUBLAS_STATUS_(INVALID_VALUE|NOT_SUPPORTED))")
# Within it a client of a server that is gone has met its end.
_ECHO_SECONDS = 5.0


class NodeGpus:
    """The GPUs of a node, by number: real ones, or only numbers on a machine that lacks them.

    MPS is started when the first packed worker comes, so that a run without any has none of it.
    Trials that read one input meet in `folder`, wherever on the machine they train. Any thread may
    call.
    """

    def __init__(self, count: int, folder: Path | None = None) -> None:
        self._folder = folder
        visible = gpus(os.environ.get(GPUS_VARIABLE))
        self.lack = "" if len(visible) >= count else f"{len(visible)} of its {count} GPUs"
        """What is there where there isn't what was asked for; empty where there is."""
        real = [gpu for gpu in visible if gpu.name != STAND_IN]
        self._count = max(1, count)
        self._emulated = len(real) < len(visible)
        self._gpus = tuple(real[:count]) if len(real) >= count else ()
        self._mps: MpsDaemons | None = None
        self._checked_at = 0.0
        self._faulted_at: dict[int, float] = {}
        self._lock = threading.Lock()

    @property
    def are_real(self) -> bool:
        """Whether there are as many as were asked for."""
        return bool(self._gpus)

    def gpu_problem(self, training: Training) -> str:
        """Return what makes this node's GPUs of no use for a training; "" if nothing does.

        Where a function trains, a process of its own asks whether torch can use them: seconds.
        """
        if not training.has_gpus or COUNTED_VARIABLE in os.environ:
            return ""
        if self.lack or training.program is not None or not self._gpus:
            return self.lack
        give_up = time.monotonic() + _FABRIC_SECONDS
        while True:
            answer = subprocess.run(
                [sys.executable, "-c", _ASK_TORCH],
                env={**os.environ, VISIBLE: ",".join(gpu.uuid for gpu in self._gpus)},
                capture_output=True,
                text=True,
                check=False,
            )
            if _NOT_YET not in answer.stderr or time.monotonic() > give_up:
                break
            time.sleep(_FABRIC_PAUSE)
        words = answer.stdout.split()
        version = (words or ["of an unknown version"])[0]
        seen = (words or ["", "0"])[-1]
        few = seen != str(len(self._gpus))
        return f"GPUs of which its torch {version} can use {seen}" if few else ""

    @property
    def notice(self) -> str:
        """Why packed workers share a GPU by time-slicing; empty where none are, or MPS does it."""
        return "" if self._mps is None else self._mps.notice

    def environment(self, gpus: tuple[int, ...], share: float) -> Mapping[str, str]:
        """Return what a worker with that share of each GPU needs in its environment before CUDA.

        A worker of several sees the GPUs of all of them here, in their order: scripts take the one
        of their local rank.
        """
        meets = {} if self._folder is None else {INPUT_VARIABLE: str(self._folder / "input")}
        if not self._gpus:
            return {VISIBLE: "", **meets}
        if share >= 1.0:
            return {VISIBLE: ",".join(self._gpus[gpu].uuid for gpu in gpus), **meets}
        (gpu,) = gpus
        with self._lock:
            if self._mps is None:
                # Sockets need short names, which the folder for logs doesn't have.
                folder = Path(tempfile.mkdtemp(prefix="m"))
                self._mps = MpsDaemons(folder, self._gpus)
            return {**self._mps.environment(gpu, share), **meets}

    def threads(self, share: float) -> int:
        """Return how many threads a worker with that share of a GPU computes with on the CPU.

        Its fair share of the node's cores, as Ray gives every worker one; what the node's own
        environment says (OMP_NUM_THREADS) goes first. Emulated machines share the cores of one.
        """
        said = os.environ.get(THREADS_VARIABLE, "")
        if said.isdecimal() and int(said):
            return int(said)
        return 1 if self._emulated else max(1, int(physical_cores() * share / self._count))

    def is_faulted(self, gpu: int, error: str) -> bool:
        """Return whether a packed worker's error is the end of its GPU's MPS server.

        One faulting client ends all. Whose fault it was can't be known: the server's status is back
        to normal as soon as the last client has gone. So any error of CUDA counts, but for those of
        cuBLAS about what it was given, and every error for a while after a fault.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._faulted_at.get(gpu, -math.inf) + _ECHO_SECONDS:
                return True
            if self._mps is None or not self._mps.has_daemon(gpu):
                return False
            faulted = bool(_CUDA_ERROR.search(error)) or self._mps.is_faulted(gpu)
            if faulted:
                self._faulted_at[gpu] = now
            return faulted

    def check(self) -> list[int]:
        """Replace the daemons that have failed; return their GPUs, whose packed workers are lost.

        Called more often, it looks every two seconds.
        """
        with self._lock:
            if self._mps is None or time.monotonic() < self._checked_at + _CHECK_SECONDS:
                return []
            restarted = self._mps.check()
            self._checked_at = time.monotonic()
            self._faulted_at |= dict.fromkeys(restarted, self._checked_at)
            return restarted

    def release(self, pid: int) -> None:
        """Take a worker's work off its GPU, so that it may be killed without harm to others."""
        with self._lock:
            if self._mps is not None:
                self._mps.release(pid)

    def close(self) -> None:
        with self._lock:
            if self._mps is not None:
                self._mps.stop()
                self._mps = None
