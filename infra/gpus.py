"""The NVIDIA GPUs of this machine, as nvidia-smi tells of them. Nothing here loads CUDA."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
GPUS_VARIABLE = "CLOUDTUNE_GPUS"
"""The UUIDs of the GPUs that a node's trials may use, as found at its boot."""
_QUERY = "index,uuid,name,memory.total"
_ANSWER_SECONDS = 30.0  # without a persistence daemon the driver wakes up each GPU first


@dataclass(frozen=True)
class Gpu:
    """A GPU: its number in nvidia-smi, its UUID, its name as NVIDIA writes it, its memory in MiB.

    The memory is 0 where the driver has no number for it (GPUs that share the CPU's memory).
    """

    index: int
    uuid: str
    name: str
    memory_mib: int


def gpus(visible: str | None = None) -> tuple[Gpu, ...]:
    """Return this machine's GPUs, by index; none where there is no driver.

    `visible` picks and orders them as CUDA_VISIBLE_DEVICES does: indices, or beginnings of UUIDs,
    up to the first that doesn't exist. None takes all.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        answer = subprocess.run(
            [command, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError):  # a driver that is broken drives no GPU
        return ()
    rows = csv.reader(answer.splitlines(), skipinitialspace=True)
    found = tuple(_gpu(row) for row in rows if len(row) == _QUERY.count(",") + 1)
    return found if visible is None else _visible(found, visible)


def own_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that the environment of this process leaves it."""
    return gpus(os.environ.get(VISIBLE))


def _gpu(row: list[str]) -> Gpu:
    index, uuid, name, memory = (part.strip() for part in row)
    return Gpu(int(index), uuid, name, int(memory) if memory.isdecimal() else 0)


def _visible(found: tuple[Gpu, ...], visible: str) -> tuple[Gpu, ...]:
    chosen: list[Gpu] = []
    for name in (part.strip() for part in visible.split(",")):
        fitting = [each for each in found if name and _is_named(each, name)]
        if len(fitting) != 1:
            break
        chosen += fitting
    return tuple(dict.fromkeys(chosen))


def _is_named(gpu: Gpu, name: str) -> bool:
    return name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
