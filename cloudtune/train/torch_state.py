"""A script's state as its session sees it: metrics, parameters, memory and seeds."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError
from cloudtune.script.printed_numbers import clean

if TYPE_CHECKING:
    import torch

# Assumed: a process's GPU memory before its first tensor (CUDA's context, kernels).
CONTEXT_MIB: Final = 500.0
# Numbers per chunk, 16 MiB: so a sum doesn't need a second copy of a large model.
_CHUNK: Final = 1 << 22
# The longest text of a metric that is no number.
_LETTERS: Final = 200


def split_metrics(metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Return a report's numbers as floats, and the rest as texts; None is left out.

    Raises:
        UsageError: they aren't a mapping.
    """
    if not isinstance(metrics, Mapping):
        raise UsageError(f"report() takes a mapping of names to numbers, not {metrics!r}")
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, value in metrics.items():
        try:
            # A number, or something like one (a tensor of one element), but not text.
            numbers[str(name)] = float(value.__float__())
        except (AttributeError, TypeError, ValueError, RuntimeError):
            if value is not None:
                texts[str(name)] = short_text(value)
    return numbers, texts


def short_text(value: object) -> str:
    """Return a value as a text for a table."""
    text = clean(value if isinstance(value, str) else repr(value)).strip()
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


def digest(parameters: Iterable[torch.Tensor]) -> str:
    """Return a digest of the bits of parameters, or of their sums on a GPU.

    A GPU computes two sums for each chunk, so that the model isn't copied from it.
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
    """Yield two sums of each chunk of bytes, modulo 2**64: plain, and weighted by position."""
    import torch  # noqa: PLC0415

    if len(data) % 4 or data.storage_offset() % 4:  # otherwise it is read in place
        data = torch.nn.functional.pad(data, (0, -len(data) % 4))
    numbers_of_four = data.view(torch.int32)
    places = torch.arange(1, min(_CHUNK, len(numbers_of_four)) + 1, device=data.device)
    for chunk in torch.split(numbers_of_four, _CHUNK):
        numbers = chunk.long()
        yield torch.stack([numbers.sum(), (numbers * places[: len(numbers)]).sum()])


def peak_memory_mib(device: str) -> float | None:
    """Return the peak GPU memory of this process, in MiB; None on a CPU.

    It is the memory that torch's allocator took from the device, including what tensors don't fill:
    no other process can use that. It counts from the start of the process, or since the script
    reset the peak. Memory used outside torch isn't included, and the context's is an estimate.
    """
    if not device.startswith("cuda"):
        return None
    import torch  # noqa: PLC0415

    return torch.cuda.max_memory_reserved(device) / 2**20 + CONTEXT_MIB


def seed_everything(seed: int) -> None:
    """Seed the random numbers of Python, torch and, if it is loaded, NumPy."""
    import torch  # noqa: PLC0415

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
