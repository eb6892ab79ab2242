"""What a training session knows of a script's state: its numbers, its parameters, its seeds."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    import torch

# Assumed: what a process has of a GPU before it holds any tensor (CUDA's context, kernels).
CONTEXT_MIB: Final = 500.0
# Numbers at once, 16 MiB of them: no second copy of a large model is made for its sum.
_CHUNK: Final = 1 << 22


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Give a report's metrics as floats.

    Raises:
        UsageError: it is no mapping, or one of them is no number.
    """
    if not isinstance(metrics, Mapping):
        raise UsageError(f"report() takes a mapping of names to numbers, not {metrics!r}")
    numbers = {}
    for name, value in metrics.items():
        try:
            # A number, or what stands for one (a tensor of one element), but no text.
            numbers[str(name)] = float(value.__float__())
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"report() gave {name} = {value!r}; a metric is a number") from error
    return numbers


def digest(parameters: Iterable[torch.Tensor]) -> str:
    """Give a digest of the bits of parameters: of all of them, or of their sums on a GPU.

    A GPU adds its own up, and hands over two numbers for each chunk: a model isn't copied from it.
    """
    import torch  # noqa: PLC0415

    hashed = hashlib.sha1(usedforsecurity=False)
    sums: list[torch.Tensor] = []
    for parameter in parameters:
        flat = parameter.detach().contiguous().reshape(-1).view(torch.uint8)
        if flat.is_cuda:
            sums += _sums(flat)
        else:
            hashed.update(flat.cpu().numpy().data)
    if sums:
        hashed.update(torch.stack(sums).cpu().numpy().data)
    return hashed.hexdigest()


def _sums(data: torch.Tensor) -> Iterator[torch.Tensor]:
    """Give two sums of each chunk of bytes, modulo 2**64: plain, and by place."""
    import torch  # noqa: PLC0415

    if len(data) % 4 or data.storage_offset() % 4:  # else it is read where it lies
        data = torch.nn.functional.pad(data, (0, -len(data) % 4))
    numbers_of_four = data.view(torch.int32)
    places = torch.arange(1, min(_CHUNK, len(numbers_of_four)) + 1, device=data.device)
    for chunk in torch.split(numbers_of_four, _CHUNK):
        numbers = chunk.long()
        yield torch.stack([numbers.sum(), (numbers * places[: len(numbers)]).sum()])


def peak_memory_mib(device: str) -> float | None:
    """Give the most GPU memory that this process has had, in MiB; None on a CPU.

    Counted is the memory that torch's allocator took from the device, not only what tensors fill:
    no other process can have the rest. Counted since the process began, or since the script reset
    the peak. What the script takes past torch isn't in it, and the context's share is an estimate.
    """
    if not device.startswith("cuda"):
        return None
    import torch  # noqa: PLC0415

    return torch.cuda.max_memory_reserved(device) / 2**20 + CONTEXT_MIB


def seed_everything(seed: int) -> None:
    """Seed Python's, torch's and, where it is loaded, NumPy's random numbers."""
    import torch  # noqa: PLC0415

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
