"""The place of a worker in its trial, and the number of a report."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloudtune.errors import UsageError


@dataclass(frozen=True)
class Trained:
    """The GPUs (or share of one) and the batch size that trained an epoch; None: unknown."""

    gpus: float | None = None
    batch_size: int | None = None


# A script reports parts of an epoch at whole steps: at 0.249 where a quarter is meant.
_PART_ROUNDING: Final = 0.05


@dataclass(frozen=True)
class Progress:
    """What is counted: one report is expected per `every` units ("epoch" or "step").

    Below 1 it is a part of an epoch: 0.25 for four reports an epoch. `field` is the metric with the
    unit's number, if there is one.
    """

    unit: str = "epoch"
    every: float = 1
    field: str | None = None

    def place(self, metrics: Mapping[str, float], position: Mapping[str, Any]) -> float | None:
        """Return where a report stands, in units; None if it says nothing of it.

        Raises:
            UsageError: the number can't be read.
        """
        where: float | None = position.get(self.unit)
        if where is None and self.field is not None:
            if self.field not in metrics:
                raise UsageError(
                    f"report() gave {{{', '.join(sorted(metrics))}}}; the experiment reads off "
                    f"{self.field!r} where a report stands"
                )
            where = metrics[self.field]
        if where is not None and not 0 <= where < math.inf:
            raise UsageError(f"report() gave {self.unit} {where!r}; it is a number from 0 on")
        return where

    def number(
        self, reported: int, metrics: Mapping[str, float], position: Mapping[str, Any]
    ) -> int | None:
        """Return how far this report has come, in whole `every` units, after `reported` of them.

        `position` are the numbers that the script passed, by unit; without any, reports are
        counted. None for a report that has come no further than the last.

        Raises:
            UsageError: the number can't be read.
        """
        where = self.place(metrics, position)
        if where is None:
            return reported + 1
        if self.every < 1:
            number = int(where / self.every + _PART_ROUNDING)
        else:
            number = int(where // self.every)
        return number if number > reported else None
