"""The functions by which a script says what it trains, and an epoch by them: of one, or of many."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError
from cloudtune.train.data import DeviceLoader, split
from cloudtune.train.fused.optimizers import SGD, Adam
from cloudtune.train.fused.state import Watched, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from torch.utils.data import DataLoader

    from cloudtune.train.fused.group import Group
    from cloudtune.train.fused.optimizers import Optimizer
    from cloudtune.train.session import Session


@dataclass
class Order:
    """A worker of a trial, as loaders know it: the order of samples is of the experiment and epoch.

    So a trial sees the same alone and in a group of which all members are at the same epoch.
    """

    session: Session
    epoch: int = 0
    rank: int = field(init=False)
    world_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank, self.world_size = self.session.rank, self.session.world_size

    @property
    def batch_weight(self) -> float:
        """The session's: its model's gradients count by it."""
        return self.session.batch_weight

    @batch_weight.setter
    def batch_weight(self, weight: float) -> None:
        self.session.batch_weight = weight

    @property
    def derived_seed(self) -> int:
        """The experiment's seed, which all its trials share."""
        return self.session.seed


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
        self._order = Order(session)
        self._loaders: tuple[DataLoader[Any], DataLoader[Any] | None] | None = None

    @property
    def loss(self) -> Callable[[Any, Any], Any]:
        """Takes a model and a batch, and gives what is to be made small."""
        return self._functions.loss

    def model(self) -> torch.nn.Module:
        """Return a fresh model of this configuration."""
        return self._functions.model(dict(self._config))

    def optimizer(self, epoch: int) -> Optimizer:
        """Return the optimizer of an epoch, counted from 1.

        Raises:
            UsageError: it is none of ours.
        """
        function = self._functions.optimizer
        given = (dict(self._config), epoch)[: 1 + _takes_two(function)]
        found = function(*given)
        if not isinstance(found, SGD | Adam):
            raise UsageError(
                f"optimizer() gave {type(found).__name__}; give cloudtune.fused.SGD(lr=…), Adam or "
                "AdamW, which every width makes its own optimizer of"
            )
        return found

    def signature(self, model: torch.nn.Module) -> str:
        """Return what trials must have in common with this one to train as one batched model."""
        watched, these = Watched(self._config), self._functions
        self._load(watched)
        functions = (these.loss, these.metrics, these.data, these.test_data)
        return signature(model, self.optimizer(1), watched.found, functions)

    def forget_data(self) -> None:
        """Let the data go, until it is asked for again."""
        self._loaders = None

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give the batches of an epoch, counted from 1, on the session's device."""
        self._order.epoch = epoch - 1
        # A loader of its own each time: members that train an epoch later see the same order.
        device = self._order.session.device
        yield from DeviceLoader(self._load(self._config)[0], self._order, device)

    def test_batches(self) -> Iterator[Any]:
        """Give the batches that metrics are measured on, in the order of their loader."""
        test = self._load(self._config)[1]
        if test is not None:
            yield from DeviceLoader(test, self._order, self._order.session.device)

    def _load(self, config: Mapping[str, Any]) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
        if self._loaders is None:
            test_data = self._functions.test_data
            test = None if test_data is None else test_data(config)
            self._loaders = (split(self._functions.data(config), self._order), test)
        return self._loaders

    # ---- an epoch --------------------------------------------------------------------------

    def epoch_of(self, group: Group, epoch: int) -> dict[str, torch.Tensor]:
        """Train all members of a group for an epoch; returns each metric of shape (members,)."""
        return self._means(
            epoch,
            lambda batch: group.step(self.loss, batch),
            group.measure,
        )

    def epoch_alone(
        self,
        module: torch.nn.Module,
        net: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        epoch: int,
    ) -> dict[str, torch.Tensor]:
        """Train one model for an epoch, `net` being `module` as all workers train it together."""
        import torch  # noqa: PLC0415

        def step(batch: Any) -> torch.Tensor:
            optimizer.zero_grad()
            found: torch.Tensor = self.loss(net, batch)
            found.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return found.detach()

        def measure(metrics: Callable[[Any, Any], Any], batch: Any) -> Any:
            module.eval()
            with torch.no_grad():
                return metrics(module, batch)

        module.train()
        return self._means(epoch, step, measure)

    def _means(
        self,
        epoch: int,
        step: Callable[[Any], torch.Tensor],
        measure: Callable[[Callable[[Any, Any], Any], Any], Mapping[str, torch.Tensor]],
    ) -> dict[str, torch.Tensor]:
        """Train and measure by batches; returns the means over their samples."""
        means = _Means()
        for batch in self.batches(epoch):
            means.add({"loss": step(batch)}, batch)
        found, metrics = means.found(), self._functions.metrics
        if metrics is None:
            return found
        means = _Means()
        for batch in self.test_batches():
            means.add(measure(metrics, batch), batch)
        return {**found, **means.found()}


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

    def found(self) -> dict[str, torch.Tensor]:
        return {name: each / self._samples for name, each in self._sums.items()}


def _samples(batch: Any) -> int:
    from torch.utils import _pytree as trees  # noqa: PLC0415

    tensors = (each for each in trees.tree_leaves(batch) if getattr(each, "ndim", 0))
    return next((len(each) for each in tensors), 1)


def _takes_two(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) > 1
