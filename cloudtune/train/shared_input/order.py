"""The samples of each batch and their random numbers, the same for every trial."""

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class BatchOrder:
    """The order of the samples in an epoch, as a sampler, determined by seed and epoch."""

    data: Sized
    seed: int
    shuffles: bool
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[int]:
        return iter(self.of(self.epoch))

    def of(self, epoch: int) -> list[int]:
        """Return the indices of the samples in the order of that epoch."""
        if not self.shuffles:
            return list(range(len(self.data)))
        import torch  # noqa: PLC0415

        chance = torch.Generator().manual_seed(make_seed(self.seed, "order", epoch))
        order: list[int] = torch.randperm(len(self.data), generator=chance).tolist()
        return order


@dataclass(eq=False)
class Batches:
    """All batches of a loader, by (epoch, number), the same in every process.

    The global random numbers of Python, torch and NumPy, which augmentations use, are seeded by the
    batch's place, and restored afterwards.
    """

    data: Any
    order: BatchOrder
    batch_size: int
    drop_last: bool
    collate: Callable[[list[Any]], Any]

    def __post_init__(self) -> None:
        self._order: tuple[int, list[int]] | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(self.order), self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def __getitem__(self, place: tuple[int, int]) -> Any:
        epoch, number = place
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self.order.of(epoch)
        start = number * self.batch_size
        indices = self._order[1][start : start + self.batch_size]
        with _chance(make_seed(self.order.seed, epoch, number)):
            if hasattr(self.data, "__getitems__"):
                return self.collate(self.data.__getitems__(indices))
            return self.collate([self.data[index] for index in indices])


def make_seed(*parts: object) -> int:
    """Return a seed of 63 bits derived from the parts."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextlib.contextmanager
def _chance(seed: int) -> Iterator[None]:
    """Seed the global random numbers within the context, and restore them afterwards."""
    import torch  # noqa: PLC0415

    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy:
            numpy.random.set_state(states[2])
