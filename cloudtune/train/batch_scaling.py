"""Batch size and learning rate after a change of width, for training scripts."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

# The largest step of the learning rate, as a share of the rate at the start of a session.
_STEP = 0.1
# The minimum number of epochs in which the rate reaches its goal.
_EPOCHS = 5
# Relative tolerance for rates that are products in another order.
_ROUNDING = 1e-9


def batch_and_lr(
    batch: int, lr: float, width: float, new_width: float, *, initial_lr: float | None = None
) -> tuple[int, tuple[float, ...]]:
    """Return the global batch at a new width, and the learning rates that lead there.

    `batch` is the global batch at `width` GPUs; each GPU keeps its part (weak scaling; a share of a
    GPU has one worker). The goal of the rate is `initial_lr`, that of one worker (by default from
    `lr` and `width`), times the square root of the workers. Each epoch it rises by a fifth of the
    way, at most by a tenth of `lr`; the last rate is for all later epochs. The rate is never
    lowered: if it would be, or if nothing changes, there are no rates.

    Source: Liaw et al., "HyperSched" (SoCC 2019), by notes on its published code.

    Raises:
        ValueError: an argument isn't above 0, or `width` GPUs can't split the batch evenly.
    """
    if not (min(batch, width, new_width) > 0 and lr > 0 and (initial_lr is None or initial_lr > 0)):
        raise ValueError("batch, learning rates and widths have to be above 0")
    workers = _workers(width)
    new_workers = _workers(new_width)
    if batch % workers:
        raise ValueError(f"a batch of {batch} can't be split evenly over {workers} GPUs")
    first = lr / math.sqrt(workers) if initial_lr is None else initial_lr
    return batch // workers * new_workers, _rates(lr, first * math.sqrt(new_workers))


def _rates(lr: float, goal: float) -> tuple[float, ...]:
    """Return the learning rates of the next epochs, from one rate to a higher one."""
    if goal <= lr * (1 + _ROUNDING):
        return ()
    step = min((goal - lr) / _EPOCHS, _STEP * lr)
    steps = math.ceil((goal - lr) / step - _ROUNDING)
    return (*(lr + step * number for number in range(1, steps)), goal)


def _workers(width: float) -> int:
    return math.ceil(width - _ROUNDING)


class GrowingBatch:
    """The batch and the learning rate of a trial whose width changes, epoch by epoch.

    Each GPU keeps its part of the batch, `per_worker` samples; the rate follows by `batch_and_lr`,
    up and never down. `previous_workers` and `previous_size` are those of the checkpoint's last
    epoch, None at the start of the trial; the script's checkpoint has the present rate.

        batch = cloudtune.GrowingBatch(per_worker=config["batch_size"], lr=config["lr"])
        if checkpoint: batch.load_state_dict(state["batch"])
        loader = cloudtune.prepare_data_loader(DataLoader(data, batch.size, shuffle=True))
        for _ in cloudtune.epochs():
            batch.begin_epoch(optimizer)
            ...
            torch.save({..., "batch": batch.state_dict()}, ...)

    Raises:
        ValueError: an argument isn't above 0.
    """

    def __init__(self, per_worker: int, lr: float, workers: int | None = None) -> None:
        from cloudtune.train.calls import get_context  # noqa: PLC0415  it imports this package

        if min(per_worker, lr) <= 0:
            raise ValueError("batch and learning rate have to be above 0")
        context = get_context()
        self.workers = context.get_world_size() if workers is None else workers
        self.per_worker = per_worker
        self.initial_lr = lr
        before = context.get_previous_gpus()
        self.previous_workers = None if before is None else _workers(before)
        self.previous_size = context.get_previous_batch_size()
        self._lr = lr
        self._coming = self._ahead()

    @property
    def size(self) -> int:
        """The total batch of all workers, as `prepare_data_loader` takes it."""
        return self.per_worker * self.workers

    def begin_epoch(self, optimizer: "_Optimizer") -> float:
        """Set the optimizer's learning rate for this epoch, and return it."""
        if self._coming:
            self._lr = self._coming.pop(0)
        for group in optimizer.param_groups:
            group["lr"] = self._lr
        return self._lr

    def state_dict(self) -> dict[str, float]:
        """Return the state for the next session of the trial."""
        return {"workers": self.workers, "size": self.size, "lr": self._lr}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from another session; if the width has changed, so do batch and rate."""
        self.previous_workers = int(state["workers"])
        self.previous_size = int(state["size"])
        self._lr = float(state["lr"])
        self._coming = self._ahead()

    def _ahead(self) -> list[float]:
        return list(_rates(self._lr, self.initial_lr * math.sqrt(self.workers)))


class _Optimizer(Protocol):
    """The part of `torch.optim.Optimizer` that is used here."""

    param_groups: list[dict[str, Any]]
