"""The functions for training scripts: `report`, `epochs`, `get_checkpoint`, `get_context`.

They are named as in Ray Train; those for models and data are in `cloudtune.train.torch`. A script
that runs on its own (`python train.py`) trains CLOUDTUNE_EPOCHS epochs (3) and prints its reports.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError
from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.command_session import find_session
from cloudtune.train.session import ADDRESS_VARIABLE, Session, active_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from cloudtune.model.events import EpochReport

EPOCHS_VARIABLE: Final = "CLOUDTUNE_EPOCHS"


class Context:
    """A worker's place in its trial, under Ray Train's names."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_trial_id(self) -> str:
        """The trial's id; "alone" in a script run on its own."""
        return self._session.trial_id

    def get_trial_name(self) -> str:
        """The trial's name, which is its id."""
        return self._session.trial_id

    def get_world_size(self) -> int:
        """The number of workers of this trial: its width in GPUs, 1 for a share of one."""
        return self._session.world_size

    def get_world_rank(self) -> int:
        """The rank of this worker among all workers of the trial."""
        return self._session.rank

    def get_local_rank(self) -> int:
        """The rank of this worker among those on its instance."""
        return self._session.local_rank

    def get_local_world_size(self) -> int:
        """The number of workers of this trial on this instance."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", str(self._session.world_size)))

    def get_node_rank(self) -> int:
        """The rank of this instance among those of the trial."""
        return int(os.environ.get("NODE_RANK", "0"))

    def get_device(self) -> torch.device:
        """The device to which `prepare_model` and `prepare_data_loader` move things."""
        import torch  # noqa: PLC0415

        return torch.device(self._session.device)

    def get_max_epochs(self) -> int:
        """The last epoch that the experiment allows any trial."""
        return self._session.max_epoch

    def get_previous_gpus(self) -> float | None:
        """The GPUs, or the share of one, that trained the checkpoint's last epoch.

        For a clone it is its parent's. None at the start of a trial, or if unknown.
        """
        return self._session.before.gpus

    def get_previous_batch_size(self) -> int | None:
        """The total batch of all workers in that epoch, of the first prepared loader."""
        return self._session.before.batch_size


def get_context() -> Context:
    """Return the worker's place in its trial: rank, world size, device."""
    return Context(current_session())


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to resume from; None at the start of a trial."""
    session = current_session()
    if session.restore is None:
        return None
    return Checkpoint(session.restore, session.start_epoch)


def epochs() -> Iterator[int]:
    """Yield the numbers of the remaining epochs, from the checkpoint's epoch + 1.

    They go up to the experiment's `epochs.max`; `report()` may end the loop earlier. Do the set-up
    before the loop, where it doesn't count as training.
    """
    return current_session().epochs()


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    *,
    epoch: float | None = None,
    step: float | None = None,
) -> None:
    """End an epoch: call it once per epoch, on every rank. Metrics and checkpoint are rank 0's.

    Returns when cloudtune lets the trial train another epoch; otherwise it unwinds the training
    function (`StopTraining`).

    `epoch`, counted from 1, or `step`, as in the experiment's `progress`, says which epoch or step
    ends; those before it that had no report are passed. Repeated reports don't count again.
    Metrics that aren't numbers are kept as texts, and shown.

    Raises:
        MissingMetricError: the metrics lack the experiment's, or it isn't a number.
        UsageError: the metrics aren't a mapping, or the checkpoint isn't a `Checkpoint`.
    """
    current_session().report(metrics, checkpoint, epoch=epoch, step=step)


def is_leaving() -> bool:
    """Whether the machine is about to be interrupted: time to `save`, if an epoch takes long."""
    return current_session().leaving


def save_due() -> bool:
    """Whether a `save` in mid-epoch pays now, given how often machines are lost; call on rank 0."""
    return current_session().save_due


def save(checkpoint: Checkpoint) -> bool:
    """Save in the middle of an epoch, for `get_checkpoint` if the epoch has to begin again.

    The save replaces the last epoch's checkpoint, so include how far the epoch has come. Rank 0's
    save counts. Returns whether it was saved: not before the first epoch reported with a
    checkpoint, because no run would look for it.
    """
    return current_session().save(checkpoint)


def current_session() -> Session:
    """Return the session of the calling thread; without cloudtune, one that prints."""
    session = active_session.get()
    if session is None:
        address = os.environ.get(ADDRESS_VARIABLE)
        session = _alone() if address is None else find_session(address)
        active_session.set(session)
    return session


def _alone() -> Session:
    """Return the session of a script on its own: it grants all epochs, and prints."""
    text = os.environ.get(EPOCHS_VARIABLE, "3")
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{EPOCHS_VARIABLE} is {text!r}; set it to a number of epochs")
    torch = sys.modules.get("torch")
    session = Session(
        trial_id="alone",
        report_hook=_show,
        metric_name="",
        metric_mode="max",
        max_epoch=int(text),
        device="cuda:0" if torch is not None and torch.cuda.is_available() else "cpu",
    )
    session.grant(session.max_epoch + 1)  # so that the code after the script's loop runs too
    return session


def _show(report: EpochReport) -> None:
    numbers = (f"{name} {value:.4g}" for name, value in report.metrics.items())
    texts = (f"{name} {text}" for name, text in report.texts.items())
    metrics = "  ".join([*numbers, *texts])
    print(f"epoch {report.epoch}  {metrics}  ({report.seconds:.2f} s)", flush=True)  # noqa: T201
