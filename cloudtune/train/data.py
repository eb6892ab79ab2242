"""The data of one worker: its share of each batch, on its device, shuffled anew each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader


class Worker(Protocol):
    """Where a worker stands among those of its trial, and the last epoch that it finished."""

    rank: int
    world_size: int
    epoch: int

    @property
    def derived_seed(self) -> int:
        """A seed of the trial, the same on all its ranks."""


class DeviceLoader:
    """A loader whose batches come on a device, if one is given, shuffled anew each epoch."""

    def __init__(self, loader: DataLoader[Any], worker: Worker, device: str | None) -> None:
        self._loader = loader
        self._worker = worker
        self._device = device
        self._passes: tuple[int, int] = (0, 0)

    def __iter__(self) -> Iterator[Any]:
        # By the epoch's own number, so that a restored trial doesn't see the first order again.
        epoch, passes = self._worker.epoch + 1, self._passes[1] + 1
        self._passes = (epoch, passes if self._passes[0] == epoch else 0)
        if hasattr(self._loader.sampler, "set_epoch"):
            self._loader.sampler.set_epoch(epoch + 100_000 * self._passes[1])
        for batch in self._loader:
            yield batch if self._device is None else _to_device(batch, self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def split(loader: DataLoader[Any], worker: Worker) -> DataLoader[Any]:
    """Give the loader of one rank's share; one of the user's own making stays as it is."""
    from torch.utils import data  # noqa: PLC0415

    sampler, world = loader.sampler, worker.world_size
    plain = type(sampler) is data.SequentialSampler or (
        type(sampler) is data.RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    if not plain or loader.batch_size is None:
        if world > 1 and not isinstance(sampler, data.DistributedSampler):
            raise UsageError(
                f"prepare_data_loader() can't split a loader with a {type(sampler).__name__} of "
                f"its own and batch_size {loader.batch_size} over {world} workers; give the "
                "loader shuffle=…, or a DistributedSampler"
            )
        return loader
    share: data.DistributedSampler[Any] = data.DistributedSampler(
        loader.dataset,
        num_replicas=world,
        rank=worker.rank,
        shuffle=type(sampler) is data.RandomSampler,
        seed=worker.derived_seed,
        drop_last=loader.drop_last,
    )
    return data.DataLoader(
        loader.dataset,
        batch_size=max(1, loader.batch_size // world),
        sampler=share,
        **{name: getattr(loader, name) for name in _KEPT_OPTIONS},
    )


_KEPT_OPTIONS: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
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
