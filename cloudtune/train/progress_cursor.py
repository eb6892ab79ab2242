"""The place of a worker in its trial, and the number of a report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudtune.errors import UsageError


@dataclass(frozen=True)
class Trained:
    """The GPUs (or share of one) and the batch size that trained an epoch; None: unknown."""

    gpus: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Progress:
    """What is counted: one report per `every` units ("epoch" or "step").

    `field` is the metric with the unit's number, if there is one.
    """

    unit: str = "epoch"
    every: int = 1
    field: str | None = None

    def number(
        self, reported: int, metrics: Mapping[str, float], position: Mapping[str, Any]
    ) -> int | None:
        """Return the number of this report, counted from 1, after `reported` ones.

        `position` are the numbers that the script passed, by unit. None for a report that doesn't
        count: it was reported before, or comes between two that count.

        Raises:
            UsageError: an earlier report is missing, or the number can't be read.
        """
        where = position.get(self.unit)
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
