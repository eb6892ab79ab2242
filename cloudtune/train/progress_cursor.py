"""Where a worker stands among those of its trial, and a report among those of its trial."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from cloudtune.train.session import Session


@dataclass(frozen=True)
class Trained:
    """With what an epoch was trained: GPUs or a share of one, samples a batch; None: unknown."""

    gpus: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Progress:
    """What is counted: a report each `every` units ("epoch" or "step").

    `field` is the metric that says where a report stands, if one does.
    """

    unit: str = "epoch"
    every: int = 1
    field: str | None = None

    def number(
        self, reported: int, metrics: Mapping[str, float], said: Mapping[str, Any]
    ) -> int | None:
        """Return which report this is, counted from 1, after `reported` ones.

        `said` is what the script says of it, by unit. None for what isn't counted: it has been
        reported before, or comes between two reports.

        Raises:
            UsageError: a report before it is missing, or it says nothing that can be read.
        """
        where = said.get(self.unit)
        if where is None and self.field is not None:
            if self.field not in metrics:
                raise UsageError(
                    f"report() gave {{{', '.join(sorted(metrics))}}}; the experiment reads off "
                    f"{self.field!r} where a report stands"
                )
            where = metrics[self.field]
        if where is None:
            return reported + 1
        if where != int(where) or where < 0:
            raise UsageError(f"report() gave {self.unit} {where!r}; it is a whole number, from 1")
        number, between = divmod(int(where), self.every)
        if between or number <= reported:
            return None
        if number > reported + 1:
            raise UsageError(
                f"report() gave {self.unit} {int(where):,} after {reported * self.every:,}; report "
                f"every {self.every:,} {self.unit}s, from {self.every:,} on"
            )
        return number


class Context:
    """Where this worker stands, under Ray Train's names."""

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
        """This worker's number among all workers of the trial."""
        return self._session.rank

    def get_local_rank(self) -> int:
        """This worker's number among those on its instance."""
        return self._session.local_rank

    def get_local_world_size(self) -> int:
        """The number of workers of this trial on this instance."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", str(self._session.world_size)))

    def get_node_rank(self) -> int:
        """This instance's number among those of the trial."""
        return int(os.environ.get("NODE_RANK", "0"))

    def get_device(self) -> torch.device:
        """The device that `prepare_model` and `prepare_data_loader` move to."""
        import torch  # noqa: PLC0415

        return torch.device(self._session.device)

    def get_max_epochs(self) -> int:
        """The last epoch that the experiment allows any trial."""
        return self._session.max_epoch

    def get_previous_gpus(self) -> float | None:
        """The GPUs, or the share of one, that the checkpoint's last epoch was trained on.

        A clone is told of its donor's. None where the trial begins, or the checkpoint doesn't say.
        """
        return self._session.before.gpus

    def get_previous_batch_size(self) -> int | None:
        """The samples of a batch over all workers then: of the first loader that was prepared."""
        return self._session.before.batch_size
