"""The fingerprint by which trials recognise that they read the same batches."""

import hashlib
import io
import types
from typing import Any

from cloudtune.errors import UsageError
from cloudtune.train.shared_input.by_value import Fingerprint, is_found_by_name
from cloudtune.train.shared_input.order import Batches

_OPEN = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


class UnknownDataError(UsageError):
    """The batches of two loaders can't be compared; the message says why."""


def fingerprint(batches: Batches, name: str) -> str:
    """Return a fingerprint that loaders share if and only if their batches are equal.

    Dataset and collate function are compared by value: the numbers of their arrays, the code of
    functions outside modules, the names of functions in modules. With a `name`, only the name
    counts.

    Raises:
        UnknownDataError: they can't be pickled.
    """
    order = batches.order
    numbers = (name, len(order), order.seed, order.shuffles, batches.batch_size, batches.drop_last)
    digest = hashlib.sha256(repr(numbers).encode())
    if not name:
        _add(digest, (batches.data, batches.collate))
    return digest.hexdigest()[:32]


class _Digest(io.RawIOBase):
    """A file that only keeps a digest of what is written to it."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return memoryview(data).nbytes


def _add(digest: Any, thing: Any) -> None:
    import cloudpickle  # noqa: PLC0415
    import torch  # noqa: PLC0415

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Writes an array as the digest of its numbers: it may be as large as the memory."""

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                return str, (_of_tensor(value),)
            numpy = type(value).__module__ == "numpy" and hasattr(value, "tobytes")
            if numpy and not value.dtype.hasobject:
                return str, (_of_array(value),)
            if isinstance(value, _OPEN):
                raise TypeError("an open file")  # cloudpickle would read all of it
            if isinstance(value, types.FunctionType | type) and not is_found_by_name(value):
                return str, (Fingerprint().of(value),)  # cloudpickle numbers classes arbitrarily
            return super().reducer_override(value)

    try:
        Pickler(_Digest(digest)).dump(thing)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UnknownDataError(f"its data can't be compared with others' ({what})") from error


def _of_tensor(tensor: Any) -> str:
    import torch  # noqa: PLC0415

    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.sha256(plain.numpy().data).hexdigest()
    return f"tensor {tuple(tensor.shape)} {tensor.dtype} {digest}"


def _of_array(array: Any) -> str:
    import numpy as np  # noqa: PLC0415

    digest = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"array {array.shape} {array.dtype} {digest.hexdigest()}"
