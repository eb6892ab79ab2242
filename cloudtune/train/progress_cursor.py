"""Where a worker stands among those of its trial, and a report among those of its trial."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudtune.errors import UsageError


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
        self, reported: int, metrics: Mapping[str, float], position: Mapping[str, Any]
    ) -> int | None:
        """Return which report this is, counted from 1, after `reported` ones.

        `position` is what the script says of it, by unit. None for what isn't counted: it has been
        reported before, or comes between two reports.

        Raises:
            UsageError: a report before it is missing, or it says nothing that can be read.
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
