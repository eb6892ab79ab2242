"""The GPUs of one node for its agent: which worker sees which, packed or alone."""

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
# Seconds within which clients of a failed server notice its end.
_ECHO_SECONDS = 5.0


class NodeGpus:
    """The GPUs of a node, by number: real ones, or only numbers on a machine without GPUs.

    MPS starts with the first packed worker, so a run without any doesn't use it. Trials that share
    an input meet in `folder`, wherever they train on the machine. Thread-safe.
    """

    def __init__(self, count: int, folder: Path | None = None) -> None:
        self._folder = folder
        visible = gpus(os.environ.get(GPUS_VARIABLE))
        self.lack = "" if len(visible) >= count else f"{len(visible)} of its {count} GPUs"
        """Which GPUs there are, if some are missing; otherwise ""."""
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
        """Whether all requested GPUs exist."""
        return bool(self._gpus)

    def gpu_problem(self, training: Training) -> str:
        """Return why a training can't use this node's GPUs; "" if it can.

        If a function trains, a separate process checks whether torch can use them, which takes
        seconds.
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
        """Why packed workers share a GPU by time slicing; "" if there are none, or with MPS."""
        return "" if self._mps is None else self._mps.notice

    def environment(self, gpus: tuple[int, ...], share: float) -> Mapping[str, str]:
        """Return a worker's environment for that share of each GPU, set before CUDA starts.

        One of several workers sees the GPUs of all of them here, in order: scripts use the one of
        their local rank.
        """
        meets = {} if self._folder is None else {INPUT_VARIABLE: str(self._folder / "input")}
        if not self._gpus:
            return {VISIBLE: "", **meets}
        if share >= 1.0:
            return {VISIBLE: ",".join(self._gpus[gpu].uuid for gpu in gpus), **meets}
        (gpu,) = gpus
        with self._lock:
            if self._mps is None:
                # Sockets need short paths, unlike the folder for logs.
                folder = Path(tempfile.mkdtemp(prefix="m"))
                self._mps = MpsDaemons(folder, self._gpus)
            return {**self._mps.environment(gpu, share), **meets}

    def threads(self, share: float) -> int:
        """Return the number of CPU threads of a worker with that share of a GPU.

        It is a fair share of the node's cores, because Ray gives every worker one; the node's own
        OMP_NUM_THREADS takes precedence. Emulated machines share the cores of one.
        """
        threads = os.environ.get(THREADS_VARIABLE, "")
        if threads.isdecimal() and int(threads):
            return int(threads)
        return 1 if self._emulated else max(1, int(physical_cores() * share / self._count))

    def is_fault(self, gpu: int, error: str) -> bool:
        """Return whether a packed worker's error comes from the end of its GPU's MPS server.

        One faulting client ends all. Which one can't be known: the server's status is normal again
        as soon as the last client is gone. So any CUDA error counts, except cuBLAS errors about
        arguments, and every error for a while after a fault.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._faulted_at.get(gpu, -math.inf) + _ECHO_SECONDS:
                return True
            if self._mps is None or not self._mps.has_daemon(gpu):
                return False
            faulted = bool(_CUDA_ERROR.search(error)) or self._mps.has_fault(gpu)
            if faulted:
                self._faulted_at[gpu] = now
            return faulted

    def check(self) -> list[int]:
        """Replace failed daemons; return their GPUs, whose packed workers are lost.

        It checks at most every two seconds, even if it is called more often.
        """
        with self._lock:
            if self._mps is None or time.monotonic() < self._checked_at + _CHECK_SECONDS:
                return []
            restarted = self._mps.check()
            self._checked_at = time.monotonic()
            self._faulted_at |= dict.fromkeys(restarted, self._checked_at)
            return restarted

    def release(self, pid: int) -> None:
        """Remove a worker's work from its GPU, so that it can be killed without harming others."""
        with self._lock:
            if self._mps is not None:
                self._mps.release(pid)

    def close(self) -> None:
        with self._lock:
            if self._mps is not None:
                self._mps.stop()
                self._mps = None
