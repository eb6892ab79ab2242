"""The data of one worker: its share of each batch, on its device, shuffled each epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class DataWorker(Protocol):
    """A worker's place in its trial, and its last finished epoch.

    `batch_weight` is the weight of its gradient in the mean over all workers: 1 unless their shares
    of a batch differ.
    """

    rank: int
    world_size: int
    epoch: int
    batch_weight: float

    @property
    def derived_seed(self) -> int:
        """A seed of the trial, the same on all its ranks."""


class DeviceLoader:
    """A loader that moves batches to a device, if one is given, and shuffles each epoch."""

    def __init__(self, loader: DataLoader[Any], worker: DataWorker, device: str | None) -> None:
        self._loader = loader
        self._worker = worker
        self._device = device
        self._passes: tuple[int, int] = (0, 0)

    def __iter__(self) -> Iterator[Any]:
        # Seeded by the epoch's number, so that a restored trial doesn't repeat the first order.
        epoch = self._worker.epoch + 1
        passes = self._passes[1] + 1
        self._passes = (epoch, passes if self._passes[0] == epoch else 0)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch + 100_000 * self._passes[1])
        shares = self._shares
        for number, batch in enumerate(self._loader):
            self._worker.batch_weight = 1.0 if shares is None else shares.weight(number)
            yield batch if self._device is None else _to_device(batch, self._device)
        self._worker.batch_weight = 1.0

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def _shares(self) -> Shares | None:
        sampler = self._loader.batch_sampler
        return sampler if isinstance(sampler, Shares) else None

    @property
    def sampler(self) -> Any:
        return self._loader.sampler if self._shares is None else self._shares.sampler

    @property
    def batch_size(self) -> int | None:
        """The maximum number of samples of this worker in a batch."""
        return self._loader.batch_size if self._shares is None else self._shares.own_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Shares:
    """This worker's share of each batch, if workers can't have equal ones.

    Of a batch of 64, three workers have 22, 21 and 21 samples. The `weight` of each gradient makes
    their mean that of the batch: the same step as at any other width, except for layers that depend
    on a worker's own samples (batch norm). If a last batch has fewer samples than workers, some
    compute one with weight 0.
    """

    def __init__(
        self, sampler: Any, batch_size: int, worker: DataWorker, *, drop_last: bool
    ) -> None:
        self.sampler = sampler
        self._batch = batch_size
        self._drop_last = drop_last
        self._rank = worker.rank
        self._world = worker.world_size

    @property
    def own_size(self) -> int:
        """The samples of this worker in a full batch."""
        return max(1, self._own(self._batch))

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self._batch)
        return whole + bool(rest and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        for _ in range(len(self)):
            batch = list(itertools.islice(indices, self._batch))
            yield batch[self._rank :: self._world] or batch[:1]

    def weight(self, number: int) -> float:
        """Return the weight of the gradient of batch `number` (from 0), on average 1."""
        samples = min(self._batch, len(self.sampler) - number * self._batch)
        return self._own(samples) * self._world / samples

    def _own(self, samples: int) -> int:
        return len(range(self._rank, samples, self._world))


def split(loader: DataLoader[Any], worker: DataWorker) -> DataLoader[Any]:
    """Return the loader of one rank's share; a user-defined loader is returned unchanged."""
    from torch.utils import data  # noqa: PLC0415

    sampler = loader.sampler
    world = worker.world_size
    if not is_plain(sampler) or loader.batch_size is None:
        if world > 1 and not isinstance(sampler, data.DistributedSampler):
            raise UsageError(
                f"prepare_data_loader() can't split a loader with a {type(sampler).__name__} of "
                f"its own and batch_size {loader.batch_size} over {world} workers; give the "
                "loader shuffle=…, or a DistributedSampler"
            )
        return loader
    uneven = loader.batch_size % world > 0
    share: data.DistributedSampler[Any] = data.DistributedSampler(
        loader.dataset,
        num_replicas=1 if uneven else world,
        rank=0 if uneven else worker.rank,
        shuffle=type(sampler) is data.RandomSampler,
        seed=worker.derived_seed,
        drop_last=loader.drop_last,
    )
    if uneven:
        shares = Shares(share, loader.batch_size, worker, drop_last=loader.drop_last)
        return data.DataLoader(loader.dataset, batch_sampler=shares, **loader_options(loader))
    return data.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size // world,
        sampler=share,
        drop_last=loader.drop_last,
        **loader_options(loader),
    )


def is_plain(sampler: Any) -> bool:
    """Whether a sampler yields each sample once, in order or shuffled, as DataLoader's own do."""
    from torch.utils import data  # noqa: PLC0415

    return type(sampler) is data.SequentialSampler or (
        type(sampler) is data.RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


def loader_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return a loader's DataLoader arguments, except for its batches and their order."""
    return {name: getattr(loader, name) for name in _KEPT_OPTIONS}


_KEPT_OPTIONS: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


def _to_device(batch: Any, device: str) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch
