"""MPS for the packed trials of this machine: shares, checks, clean ends.

Every GPU has its own daemon (`mps_daemon`), so that a client's fault only affects one GPU. Without
MPS, trials share a GPU by time slicing.
"""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from cloudtune.infra.node import mps_daemon
from cloudtune.infra.node.gpus import VISIBLE, Gpu

_SLICED = "packed trials share it by time-slicing, one after the other and with no memory limits"


class MpsDaemons:
    """The daemons of this machine's GPUs; a GPU without one is shared by time slicing.

    A GPU is identified by its index in `gpus`. End the daemons with `stop`. Not thread-safe.

    Args:
        folder: an exclusive folder for pipes and logs, with a short path (`LONGEST_FOLDER`).
        gpus: each gets a daemon.
        patience: seconds within which a daemon must answer.
    """

    def __init__(
        self, folder: Path, gpus: Sequence[Gpu], *, patience: float = mps_daemon.ANSWER_SECONDS
    ) -> None:
        self._folder = folder
        self._gpus = tuple(gpus)
        self._daemons: dict[int, mps_daemon.Daemon] = {}
        self.notice = ""
        """Why trials share GPUs by time slicing; "" with MPS."""
        control = shutil.which(mps_daemon.CONTROL)
        if not self._gpus:
            self.notice = "no NVIDIA GPU: packed trials share CPU cores"
        elif control is None:
            self.notice = f"{mps_daemon.CONTROL} is not installed: {_SLICED}"
        elif len(str(folder.absolute())) > mps_daemon.LONGEST_FOLDER:
            self.notice = f"{folder} is too long a path for MPS's sockets: {_SLICED}"
        else:
            for place, gpu in enumerate(self._gpus):
                pipes = folder.absolute() / f"m{place}"
                daemon = mps_daemon.Daemon(control, pipes, gpu, patience)
                try:
                    daemon.start()
                    self._daemons[place] = daemon
                except mps_daemon.NoAnswerError as error:
                    self._give_up(place, daemon, error)

    def environment(self, gpu: int, share: float) -> dict[str, str]:
        """Return the variables of a client with a share (up to 1) of a GPU.

        With MPS it gets that share of the GPU's threads and memory, rounded down. A client with a
        whole GPU needs no MPS, and isn't affected by the faults of others.
        """
        alone = {VISIBLE: self._gpus[gpu].uuid}
        daemon = self._daemons.get(gpu)
        if daemon is None or share >= 1.0:
            return alone
        memory = math.floor(share * self._gpus[gpu].memory_mib)
        limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory}MB"} if memory else {}
        threads = max(1, math.floor(100 * share + 1e-9))
        return {
            **alone,
            **daemon.directories,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(threads),
            **limit,
        }

    def check(self) -> list[int]:
        """Restart each daemon that is gone, hangs or has a faulted server; return their GPUs.

        Only the clients on those GPUs have lost their work: end and resume them. If a daemon can't
        be restarted, its GPU is shared by time slicing, with a notice.
        """
        restarted = []
        for place, daemon in list(self._daemons.items()):
            if daemon.is_well():
                continue
            restarted.append(place)
            try:
                daemon.stop()
                daemon.start()
            except mps_daemon.NoAnswerError as error:
                del self._daemons[place]
                self._give_up(place, daemon, error)
        return restarted

    def has_daemon(self, gpu: int) -> bool:
        """Return whether packed clients share a GPU with MPS."""
        return gpu in self._daemons

    def has_fault(self, gpu: int) -> bool:
        """Return whether a client's fault has ended the work of all clients on a GPU."""
        daemon = self._daemons.get(gpu)
        return daemon is not None and not daemon.is_well()

    def release(self, pid: int) -> bool:
        """Remove a client's work from its GPU; return whether it was a client.

        After that it can be killed without harming others.
        """
        return any(daemon.release(pid) for daemon in self._daemons.values())

    def stop(self) -> None:
        """End every daemon and its servers; return when they and their folder are gone."""
        for daemon in self._daemons.values():
            daemon.stop()
        self._daemons.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(
        self, place: int, daemon: mps_daemon.Daemon, error: mps_daemon.NoAnswerError
    ) -> None:
        daemon.stop()
        self.notice = f"MPS can't run on GPU {self._gpus[place].index} ({error}): {_SLICED}"
