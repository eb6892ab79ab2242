"""A batch as one piece of memory that processes pass on, and the kernel frees with the last.

It is an anonymous file (memfd_create): nothing has a name, so nothing can be left behind. Who gets
one maps it for itself alone, so that what a script writes into its batch no other sees.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

_ALIGNED: Final = 64


@dataclass(frozen=True)
class Frame:
    """A batch in memory: the file, its size, and where the pickle of what holds the arrays ends."""

    file: int
    size: int
    head: int

    def close(self) -> None:
        """Let go of it; who has mapped it keeps it."""
        os.close(self.file)


def frame_of(batch: Any) -> Frame:
    """Write a batch into memory of its own.

    Raises:
        Exception: what pickling it raised.
    """
    arrays: list[torch.Tensor | np.ndarray[Any, Any]] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, given: Any) -> Any:
            """Take the arrays out."""
            if type(given) is torch.Tensor and _is_plain(given):
                arrays.append(given.contiguous())
                return "tensor", given.dtype, tuple(given.shape)
            if type(given) is np.ndarray and not given.dtype.hasobject:
                arrays.append(np.ascontiguousarray(given))
                return "array", given.dtype, given.shape
            return None

    head = io.BytesIO()
    Pickler(head, protocol=5).dump(batch)
    parts = [memoryview(head.getbuffer()), *map(_bytes_of, arrays)]
    file = os.memfd_create("cloudtune-batch", os.MFD_CLOEXEC)
    try:
        end = 0
        for part in parts:
            _write(file, part, end)
            end = _aligned(end + part.nbytes)
        size = max(end, mmap.PAGESIZE)
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return Frame(file, size, parts[0].nbytes)


def batch_of(frame: Frame) -> Any:
    """Map a frame, and give the batch in it; the frame is closed."""
    try:
        how = mmap.PROT_READ | mmap.PROT_WRITE
        memory = mmap.mmap(frame.file, frame.size, mmap.MAP_PRIVATE, how)
    finally:
        frame.close()
    at = _aligned(frame.head)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, given: Any) -> Any:
            """Put the next array in."""
            nonlocal at
            kind, dtype, shape = given
            count, offset = math.prod(shape), at
            at = _aligned(offset + count * dtype.itemsize)
            read: Any = torch.frombuffer if kind == "tensor" else np.frombuffer
            if not count:
                return (torch.empty if kind == "tensor" else np.empty)(shape, dtype=dtype)
            return read(memory, dtype=dtype, count=count, offset=offset).reshape(shape)

    return Unpickler(io.BytesIO(memory[: frame.head])).load()


def _is_plain(tensor: torch.Tensor) -> bool:
    strided = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return strided and not tensor.requires_grad and not tensor.is_conj() and not tensor.is_neg()


def _bytes_of(array: Any) -> memoryview:
    if isinstance(array, torch.Tensor):
        array = array.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array.reshape(-1).view(np.uint8))


def _write(file: int, part: memoryview, offset: int) -> None:
    while part:
        done = os.pwrite(file, part, offset)
        part, offset = part[done:], offset + done


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
