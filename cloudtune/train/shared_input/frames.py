"""A batch as one piece of memory that processes pass on, freed by the kernel with the last of them.

It is an anonymous file (memfd_create): it has no name, so nothing can be left behind. Each receiver
copies it, which takes far less time than loading. So a script's changes to its batch don't affect
others, and a batch that it keeps doesn't block them.
"""

import io
import math
import os
import pickle
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

# In bytes, as torch aligns its own memory.
_ALIGNED: Final = 64


@dataclass(frozen=True)
class Frame:
    """A batch in memory: the file, its size, and the end of the pickle before the arrays."""

    file: int
    size: int
    head: int

    def close(self) -> None:
        """Close the file; processes that have mapped it keep it."""
        os.close(self.file)


def write_frame(batch: Any) -> Frame:
    """Write a batch into a new frame.

    Raises:
        Exception: any error of pickling it.
    """
    head = io.BytesIO()
    pickler = _Pickler(head)
    pickler.dump(batch)
    parts = [head.getbuffer(), *map(_view_bytes, pickler.arrays)]
    file = os.memfd_create("cloudtune-batch", os.MFD_CLOEXEC)
    try:
        with os.fdopen(file, "wb", closefd=False) as out:
            for part in parts:
                out.write(part)
                out.seek(_align(out.tell()))
            size = out.truncate()
    except BaseException:
        os.close(file)
        raise
    return Frame(file, size, parts[0].nbytes)


def read_batch(frame: Frame) -> Any:
    """Copy the batch of a frame into memory of this process, and close the frame."""
    memory = bytearray(frame.size)
    view = memoryview(memory)
    at = 0
    try:
        while at < frame.size:
            at += os.preadv(frame.file, [view[at:]], at)
    finally:
        frame.close()
    return _Unpickler(memory, frame.head).load()


class _Pickler(pickle.Pickler):
    """Pickles a batch without its arrays, which it collects."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[torch.Tensor | np.ndarray[Any, Any]] = []

    def persistent_id(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _is_plain(value):
            self.arrays.append(value.contiguous())
            return "tensor", value.dtype, tuple(value.shape)
        if type(value) is np.ndarray and not value.dtype.hasobject:
            self.arrays.append(np.ascontiguousarray(value))
            return "array", value.dtype, value.shape
        return None


class _Unpickler(pickle.Unpickler):
    """Restores the arrays, which follow the pickle."""

    def __init__(self, memory: bytearray, head: int) -> None:
        super().__init__(io.BytesIO(memory[:head]))
        self._memory, self._at = memory, _align(head)

    def persistent_load(self, description: Any) -> Any:
        kind, dtype, shape = description
        count = math.prod(shape)
        offset = self._at
        self._at = _align(offset + count * dtype.itemsize)
        if not count:
            return (torch.empty if kind == "tensor" else np.empty)(shape, dtype=dtype)
        read: Any = torch.frombuffer if kind == "tensor" else np.frombuffer
        return read(self._memory, dtype=dtype, count=count, offset=offset).reshape(shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    strided = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return strided and not tensor.requires_grad and not tensor.is_conj() and not tensor.is_neg()


def _view_bytes(array: Any) -> memoryview:
    if isinstance(array, torch.Tensor):
        array = array.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array.reshape(-1).view(np.uint8))


def _align(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
