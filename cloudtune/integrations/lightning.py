"""Lightning's Trainer under cloudtune: cloudtune.integrations.lightning.Trainer.

It replaces `lightning.Trainer`: it is as wide as its trial and keeps the total batch of all
workers. Each epoch it reports the logged validation metrics, with a checkpoint that includes
optimizers, schedules and loops.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from cloudtune.errors import UsageError
from cloudtune.train.calls import current_session, epochs, get_checkpoint, get_context, report
from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.data import split

try:
    import lightning
    from lightning.pytorch.callbacks import Checkpoint as CheckpointCallback
    from lightning.pytorch.plugins.environments import ClusterEnvironment
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ImportError as error:
    raise UsageError(
        f"cloudtune.integrations.lightning needs Lightning ({error}): "
        "pip install 'cloudtune[lightning]'"
    ) from error

import torch
from torch.utils.data import DataLoader

# The file of a checkpoint, as Lightning's `save_checkpoint` writes it.
FILE: Final = "trainer.ckpt"
# Set by the plan, not by the script: which devices, how many, how far.
_OURS: Final = ("accelerator", "devices", "num_nodes", "strategy", "max_epochs", "max_steps")


class Trainer(lightning.Trainer):  # type: ignore[misc]
    """Lightning's Trainer on the GPUs of its trial, which reports to cloudtune.

    It takes the arguments of Lightning's. The plan overrides accelerator, devices, nodes and
    epochs, which are the experiment's `epochs.max`. A `strategy` of your own is kept;
    `use_distributed_sampler=False` leaves all loaders unchanged.

    Raises:
        UsageError: with several workers, a loader has its own sampler.
    """

    def __init__(self, *, callbacks: Any = None, **options: Any) -> None:
        context = get_context()
        own = _as_list(callbacks)
        shares = options.pop("use_distributed_sampler", True)
        strategy = options.get("strategy")
        named = {key: value for key, value in options.items() if key not in _OURS}
        device = context.get_device()
        here = context.get_local_world_size()
        devices: Any = here
        if device.type == "cuda":
            devices = list(range(here)) if here > 1 else [device.index or 0]
        if strategy is None or isinstance(strategy, str):
            wide = context.get_world_size() > 1
            strategy = _Parallel(shares=shares) if wide else _Single(device, shares=shares)
        super().__init__(
            accelerator="gpu" if device.type == "cuda" else "cpu",
            devices=devices,
            num_nodes=context.get_world_size() // here,
            strategy=strategy,
            max_epochs=context.get_max_epochs(),
            use_distributed_sampler=False,
            plugins=[*_as_list(named.pop("plugins", None)), Environment()],
            callbacks=[*own, ReportCallback()],
            **{"enable_progress_bar": context.get_trial_id() == "alone", **named},
        )

    def fit(self, *given: Any, ckpt_path: Any = None, **named: Any) -> None:
        """Train like Lightning's `fit`, from the trial's checkpoint if it has one."""
        checkpoint = get_checkpoint()
        if checkpoint is None:
            super().fit(*given, ckpt_path=ckpt_path, **named)
            return
        with checkpoint.as_directory() as folder:
            named.setdefault("weights_only", False)  # the script's own hyperparameters, whatever
            super().fit(*given, ckpt_path=Path(folder, FILE), **named)


class ReportCallback(CheckpointCallback):  # type: ignore[misc]
    """Reports each epoch: the logged metrics, as means over the workers, and a checkpoint.

    The metrics are the scalar ones of `trainer.callback_metrics`, as logged by
    `self.log("val_accuracy", …)`. `cloudtune.integrations.lightning.Trainer` includes it.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the first epoch: what came before is set-up."""
        next(epochs(), None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Report the epoch; unwind `fit` if the trial stops here."""
        metrics = mean_of_workers(
            {
                name: float(value)
                for name, value in trainer.callback_metrics.items()
                if torch.as_tensor(value).numel() == 1
            }
        )
        with tempfile.TemporaryDirectory(prefix="cloudtune-") as folder:
            trainer.save_checkpoint(Path(folder, FILE))
            is_first = trainer.global_rank == 0
            checkpoint = Checkpoint.from_directory(folder) if is_first else None
            report(metrics, checkpoint)


class Environment(ClusterEnvironment):  # type: ignore[misc]
    """The worker's place in its trial, for Lightning's strategies."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        """Unused: the process group is there already."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Unused: the process group is there already."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Return False: `Trainer` sets it explicitly."""
        return False

    def world_size(self) -> int:
        return get_context().get_world_size()

    def global_rank(self) -> int:
        """The rank of this worker among all of the trial."""
        return get_context().get_world_rank()

    def local_rank(self) -> int:
        """The rank of this worker among those on its instance."""
        return get_context().get_local_rank()

    def node_rank(self) -> int:
        return get_context().get_node_rank()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the trial's size is fixed."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the worker's rank is fixed."""


class _Shares:
    """A strategy whose loaders give each worker its share of every batch."""

    def __init__(self, *given: Any, shares: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self._shares = shares

    def process_dataloader(self, dataloader: Any) -> Any:
        if self._shares and isinstance(dataloader, DataLoader):
            return split(dataloader, current_session())
        return dataloader


class _Parallel(_Shares, DDPStrategy):  # type: ignore[misc]
    pass


class _Single(_Shares, SingleDeviceStrategy):  # type: ignore[misc]
    pass


def mean_of_workers(metrics: dict[str, float]) -> dict[str, float]:
    """Return the mean of each metric over the workers that have it, the same on all workers."""
    if not torch.distributed.is_initialized():
        return metrics
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, metrics)
    names = {name for own in gathered for name in own}
    means = {}
    for name in sorted(names):
        values = [own[name] for own in gathered if name in own]
        means[name] = sum(values) / len(values)
    return means


def _as_list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]
