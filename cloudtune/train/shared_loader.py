"""A loader whose batches are shared by the trials of one machine."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils import data

from cloudtune.train.data import Shares, is_plain, loader_options, split
from cloudtune.train.session import Session
from cloudtune.train.shared_input.fingerprint import UnknownDataError, fingerprint
from cloudtune.train.shared_input.order import Batches, BatchOrder, make_seed
from cloudtune.train.shared_input.place import INPUT_VARIABLE, Meeting
from cloudtune.train.shared_input.reading import Reader, SharingError, tell
from cloudtune.train.shared_input.serving import Loading


def share_loader(loader: data.DataLoader[Any], session: Session, name: str = "") -> Any:
    """Return a loader with the same batches in every trial of the run.

    Trials that read the same batches on one machine load each once. See `prepare_data_loader`.
    """
    iterable = isinstance(loader.dataset, data.IterableDataset)
    if iterable or not is_plain(loader.sampler) or not loader.batch_size:
        tell("each trial loads for itself: the loader has no plain order of samples and batches")
        return split(loader, session)
    seed = make_seed(session.seed, "shared input")
    shuffles = type(loader.sampler) is data.RandomSampler
    order = BatchOrder(loader.dataset, seed, shuffles)  # type: ignore[arg-type]
    if session.world_size > 1:
        shares = Shares(order, loader.batch_size, session, drop_last=loader.drop_last)
        return data.DataLoader(loader.dataset, batch_sampler=shares, **loader_options(loader))
    batches = Batches(loader.dataset, order, loader.batch_size, loader.drop_last, loader.collate_fn)
    return SharedLoader(loader, batches, name)


class SharedLoader:
    """The batches of `loader`, in the common order of all trials, from where they are loaded."""

    def __init__(self, loader: data.DataLoader[Any], batches: Batches, name: str) -> None:
        self._loader = loader
        self._batches = batches
        self._idle: list[Reader] = []
        self._meeting: Meeting | None = None
        folder = os.environ.get(INPUT_VARIABLE)
        if folder:
            try:
                self._meeting = Meeting(Path(folder), fingerprint(batches, name))
            except UnknownDataError as error:
                tell(f"this trial loads for itself: {error}; give it a name: shared='…'")

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def sampler(self) -> BatchOrder:
        return self._batches.order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        epoch = self.sampler.epoch
        number = 0
        if self._meeting is not None:
            loaders = self._loader.num_workers
            init = self._loader.worker_init_fn if loaders else None
            loading = Loading(self._batches, max(1, loaders), init)
            reader = self._idle.pop() if self._idle else Reader(self._meeting, loading)
            try:
                for batch in reader.read(epoch):
                    yield batch
                    number += 1
            except SharingError as error:
                tell(f"this trial loads for itself from here on: {error}")
                self._meeting = None
                reader.close()
            else:
                return
            finally:
                self._idle.append(reader)
        yield from self._own(epoch, number)

    def _own(self, epoch: int, number: int) -> Iterator[Any]:
        """Load the batches from `number` on here, with the loader's number of processes."""
        places = [(epoch, index) for index in range(number, len(self))]
        if not self._loader.num_workers:
            yield from map(self._batches.__getitem__, places)
            return
        options = loader_options(self._loader) | {
            "collate_fn": _identity,
            "persistent_workers": False,
        }
        batches: Any = self._batches
        yield from data.DataLoader(batches, batch_size=None, sampler=places, **options)


def _identity(batch: Any) -> Any:
    return batch
