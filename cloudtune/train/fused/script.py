"""The functions of a script that say what it trains, and an epoch by them: of one or of many."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as trees

from cloudtune.errors import UsageError
from cloudtune.train.data import DeviceLoader, split
from cloudtune.train.fused.optimizers import SGD, Adam
from cloudtune.train.fused.state import Watched, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.utils.data import DataLoader

    from cloudtune.train.fused.group import Group
    from cloudtune.train.fused.optimizers import Optimizer
    from cloudtune.train.session import Session


@dataclass
class _Worker:
    """A worker of a trial, as loaders know it; the seed is the experiment's.

    So a trial sees the same order of samples alone and in a group whose members are at one epoch.
    """

    rank: int
    world_size: int
    derived_seed: int
    epoch: int = 0
    batch_weight: float = 1.0


@dataclass(frozen=True)
class Functions:
    """What a script gives; see `cloudtune.fused.train`."""

    model: Callable[[Any], torch.nn.Module]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[..., Optimizer]
    data: Callable[[Any], Any]
    metrics: Callable[[Any, Any], Any] | None
    test_data: Callable[[Any], Any] | None


class Script:
    """The functions of a script with one configuration, in one session.

    Raises:
        UsageError: metrics without the data to measure them on.
    """

    def __init__(self, functions: Functions, config: Mapping[str, Any], session: Session) -> None:
        if (functions.metrics is None) != (functions.test_data is None):
            raise UsageError("fused.train() takes metrics and test_data together, or neither")
        self._functions = functions
        self._config = dict(config)
        self._session = session
        self._worker = _Worker(session.rank, session.world_size, session.seed)
        self._loaders: tuple[DataLoader[Any], DataLoader[Any] | None] | None = None

    def model(self) -> torch.nn.Module:
        return self._functions.model(dict(self._config))

    def optimizer(self, epoch: int) -> Optimizer:
        """Return the optimizer of an epoch, counted from 1.

        Raises:
            UsageError: it is none of ours.
        """
        function = self._functions.optimizer
        arguments = (dict(self._config), epoch)[: 1 + _takes_two(function)]
        optimizer = function(*arguments)
        if not isinstance(optimizer, SGD | Adam):
            raise UsageError(
                f"optimizer() gave {type(optimizer).__name__}; give cloudtune.fused.SGD(lr=…), "
                "Adam or AdamW, which every width makes its own optimizer of"
            )
        return optimizer

    def signature(self, model: torch.nn.Module) -> str:
        """Return what trials must have in common with this one to train as one batched model."""
        watched = Watched(self._config)
        self._load(watched)
        these = self._functions
        functions = (these.loss, these.metrics, these.data, these.test_data)
        return signature(model, self.optimizer(1), watched.read, functions)

    def forget_data(self) -> None:
        """Let the data go, until it is asked for again."""
        self._loaders = None

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give the batches of an epoch, counted from 1, on the session's device."""
        self._worker.epoch = epoch - 1
        # A loader of its own each time: members that train an epoch later see the same order.
        for batch in DeviceLoader(self._load(self._config)[0], self._worker, self._session.device):
            self._session.batch_weight = self._worker.batch_weight
            yield batch
        self._session.batch_weight = 1.0

    def test_batches(self) -> Iterator[Any]:
        """Give the batches that metrics are measured on, in the order of their loader."""
        test = self._load(self._config)[1]
        if test is not None:
            yield from DeviceLoader(test, self._worker, self._session.device)

    def _load(self, config: Mapping[str, Any]) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
        if self._loaders is None:
            test_data = self._functions.test_data
            test = None if test_data is None else test_data(config)
            self._loaders = (split(self._functions.data(config), self._worker), test)
        return self._loaders

    def epoch(self, trainer: Alone | Group, epoch: int) -> dict[str, torch.Tensor]:
        """Train for an epoch and measure; returns each metric's mean over the samples.

        They are scalars, or of shape (members,) from a group.
        """
        losses = _Means()
        for batch in self.batches(epoch):
            losses.add({"loss": trainer.step(self._functions.loss, batch)}, batch)
        metrics = self._functions.metrics
        measured = _Means()
        if metrics is not None:
            for batch in self.test_batches():
                measured.add(trainer.measure(metrics, batch), batch)
        return {**losses.values(), **measured.values()}


class Alone:
    """One model that trains by itself: `net` is `module` as all workers train it together."""

    def __init__(
        self, module: torch.nn.Module, net: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._module = module
        self._net = net
        self._optimizer = optimizer

    def step(self, loss: Callable[[Any, Any], Any], batch: Any) -> torch.Tensor:
        """Take a step on one batch; returns the loss, a scalar."""
        self._module.train()
        self._optimizer.zero_grad()
        value: torch.Tensor = loss(self._net, batch)
        value.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return value.detach()

    def measure(self, metrics: Callable[[Any, Any], Any], batch: Any) -> dict[str, torch.Tensor]:
        """Return what `metrics` gives of the model and a batch, scalars."""
        self._module.eval()
        with torch.no_grad():
            values: dict[str, torch.Tensor] = metrics(self._module, batch)
            return values


class _Means:
    """Means of metrics over samples."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._samples = 0

    def add(self, metrics: Mapping[str, torch.Tensor], batch: Any) -> None:
        count = _samples(batch)
        self._samples += count
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * count

    def values(self) -> dict[str, torch.Tensor]:
        return {name: total / self._samples for name, total in self._sums.items()}


def _samples(batch: Any) -> int:
    tensors = (leaf for leaf in trees.tree_leaves(batch) if getattr(leaf, "ndim", 0))
    return next((len(leaf) for leaf in tensors), 1)


def _takes_two(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) > 1
