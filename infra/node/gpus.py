"""The NVIDIA GPUs of this machine, from nvidia-smi. Nothing here loads CUDA."""

import csv
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The UUIDs of the GPUs that a node's trials may use, found at boot.
GPUS_VARIABLE = "CLOUDTUNE_GPUS"
# Set if GPUs are only numbers: a CPU node's slots.
COUNTED_VARIABLE = "CLOUDTUNE_COUNTED"
# The OMP_NUM_THREADS of a node's own environment, found at boot; Ray sets another.
THREADS_VARIABLE = "CLOUDTUNE_THREADS"
# The GPU name of emulated machines, which no real GPU has.
STAND_IN = "cloudtune stand-in"
_QUERY = "index,uuid,name,memory.total"
_ANSWER_SECONDS = 30.0  # without a persistence daemon the driver wakes each GPU first


@dataclass(frozen=True)
class Gpu:
    """A GPU: its index in nvidia-smi, its UUID, NVIDIA's name, and its memory in MiB.

    The memory is 0 if the driver doesn't report it (GPUs that share the CPU's memory).
    """

    index: int
    uuid: str
    name: str
    memory_mib: int


def gpus(visible: str | None = None) -> tuple[Gpu, ...]:
    """Return this machine's GPUs, by index; none without a driver.

    `visible` selects and orders them like CUDA_VISIBLE_DEVICES: indices, or prefixes of UUIDs, up
    to the first that doesn't exist. By default all.
    """
    try:
        answer = _ask_driver()
    except (OSError, subprocess.SubprocessError):  # a broken one
        return ()
    rows = csv.reader(answer.splitlines(), skipinitialspace=True)
    gpus = tuple(_read_gpu(row) for row in rows if len(row) == _QUERY.count(",") + 1)
    return gpus if visible is None else _visible(gpus, visible)


def _read_gpu(row: Sequence[str]) -> Gpu:
    index, uuid, name, memory = (part.strip() for part in row)
    memory_mib = int(memory) if memory.isdecimal() else 0
    return Gpu(int(index), uuid, name, memory_mib)


def _ask_driver() -> str:
    """Return what nvidia-smi says of each GPU; "" without a driver.

    Raises:
        OSError, SubprocessError: it fails.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    return subprocess.run(
        [command, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        timeout=_ANSWER_SECONDS,
    ).stdout


def why_no_gpus() -> str:
    """Return why this process can use no GPU though the machine has a driver; "" if none is meant.

    CUDA_VISIBLE_DEVICES can say that none is: it is empty, or -1.
    """
    visible = os.environ.get(VISIBLE)
    if visible is not None and visible.strip() in {"", "-1"}:
        return ""
    try:
        answer = _ask_driver()
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr or error.stdout).split())
        return f"nvidia-smi fails: {said or f'exit code {error.returncode}'}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi fails: {error}"
    if answer.strip() and not gpus(visible):
        mig = "; a part of a GPU (MIG) can't be used" if "MIG" in f"{visible}" else ""
        return f"{VISIBLE}={visible} names none of this machine's GPUs{mig}"
    return ""


def own_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use by its environment."""
    return gpus(os.environ.get(VISIBLE))


def _visible(all_gpus: tuple[Gpu, ...], visible: str) -> tuple[Gpu, ...]:
    chosen: list[Gpu] = []
    for name in (part.strip() for part in visible.split(",")):
        fitting = [
            gpu
            for gpu in all_gpus
            if name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
        ]
        if len(fitting) != 1:
            break
        chosen += fitting
    return tuple(dict.fromkeys(chosen))


_EPSILON = 1e-6  # 1/3 + 1/3 + 1/3 fit on one GPU


def shares(gpus: float) -> tuple[float, ...]:
    """Return the share of a GPU of each worker of a slice: 1 for whole GPUs."""
    return (min(1.0, gpus),) * max(1, round(gpus))


class GpuSlots:
    """The GPUs of a machine, by index, and the sessions on them."""

    def __init__(self, gpus: int) -> None:
        self._gpus = range(gpus)
        self._taken: dict[str, tuple[tuple[int, ...], float]] = {}
        self._shared: dict[int, tuple[int, list[str]]] = {}

    def take(self, session: str, gpus: float, number: int = -1) -> tuple[int, ...] | None:
        """Take a GPU for each of a session's workers and return them; None if there is no room.

        Whole GPUs are the lowest free ones. Shares with the same `number` are on the same GPU,
        which no other number gets until all of them are gone; no GPU is ever overbooked.
        """
        parts = shares(gpus)
        chosen = self._for_share(number, parts[0]) if parts[0] < 1.0 else self.free()[: len(parts)]
        if len(chosen) < len(parts):
            return None
        self._taken[session] = (tuple(chosen), parts[0])
        if parts[0] < 1.0:
            self._shared.setdefault(number, (chosen[0], []))[1].append(session)
        return tuple(chosen)

    def give(self, session: str) -> None:
        """Free the slots of a session, if it has any."""
        self._taken.pop(session, None)
        for number, (_, sessions) in list(self._shared.items()):
            if session in sessions:
                sessions.remove(session)
            if not sessions:
                del self._shared[number]

    def free(self) -> list[int]:
        """Return the empty GPUs."""
        busy = {gpu for gpus, _ in self._taken.values() for gpu in gpus}
        return [gpu for gpu in self._gpus if gpu not in busy]

    def _for_share(self, number: int, share: float) -> list[int]:
        if number not in self._shared:
            return self.free()[:1]
        gpu, sessions = self._shared[number]
        used = sum([self._taken[session][1] for session in sessions])
        return [gpu] if used + share <= 1 + _EPSILON else []
