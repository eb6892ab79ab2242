"""The outcome of a job in a line: what it found, and how many trials it took."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields
from statistics import median
from typing import TYPE_CHECKING

from cloudtune.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.engine.timeline import Timeline
    from cloudtune.trial import Mode, TrialId


@dataclass(frozen=True)
class Summary:
    """The best metric, where it was reached, and how many epochs trials were trained.

    Of a job without a result `best` is None, and the trial has no name.
    """

    best: float | None
    best_trial: str
    best_epoch: int
    trials: int
    epochs: int
    shortest: int
    median: float
    longest: int

    @classmethod
    def of(cls, timeline: Timeline, metric: str, mode: Mode) -> Summary:
        """Return the summary of a run, as far as its ledger was read."""
        trained = _histories(timeline, metric)
        best, name, epoch = _best(mode, trained)
        lengths = sorted(max(history, default=0) for history in trained.values()) or [0]
        middle = median(lengths)
        return cls(best, name, epoch, len(trained), sum(lengths), lengths[0], middle, lengths[-1])

    def text(self) -> str:
        """Return one line a figure, as in "best: 0.93"."""
        names = [field.name for field in fields(self)]
        pairs = zip(names, self._cells(), strict=True)
        return "\n".join(f"{name.replace('_', ' ')}: {cell}" for name, cell in pairs)

    def csv(self) -> str:
        """Return a header and a row."""
        header = ",".join(field.name for field in fields(self))
        return f"{header}\n{','.join(self._cells())}\n"

    def _cells(self) -> list[str]:
        return ["" if value is None else str(value) for value in astuple(self)]


def _histories(timeline: Timeline, metric: str) -> dict[TrialId, dict[int, float]]:
    """Return the metric of each trial by epoch, as the last report of that epoch says."""
    found: dict[TrialId, dict[int, float]] = {
        session.start.trial: {} for session in timeline.sessions.values()
    }
    for epoch in timeline.epochs:
        if epoch.waited:
            found[epoch.trial][epoch.number] = epoch.told.metrics.get(metric, math.nan)
    return found


def _best(
    mode: Mode, trained: Mapping[TrialId, Mapping[int, float]]
) -> tuple[float | None, str, int]:
    """Return the best epoch of all; of equal ones the first by trial, then by epoch."""
    records = [(rank_key(mode, m), t, e, m) for t, own in trained.items() for e, m in own.items()]
    numbers = [record for record in records if record[0][0] == 0]
    if not numbers:
        return None, "", 0
    _, name, epoch, value = min(numbers)
    return value, name, epoch
