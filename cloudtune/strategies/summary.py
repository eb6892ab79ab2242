"""The outcome of a job in a line: what it found, and how many trials it took."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from statistics import median
from typing import TYPE_CHECKING

from cloudtune.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtune.progress import TrialProgress
    from cloudtune.strategies.base import View
    from cloudtune.trial import Mode


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
    def of(cls, view: View) -> Summary:
        """Return the summary of a run, as it is now."""
        trials = view.trials.values()
        best, name, epoch = _best(view.mode, trials)
        lengths = sorted(max(trial.history, default=0) for trial in trials) or [0]
        middle = median(lengths)
        return cls(best, name, epoch, len(trials), sum(lengths), lengths[0], middle, lengths[-1])

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


def _best(mode: Mode, trials: Iterable[TrialProgress]) -> tuple[float | None, str, int]:
    """Return the best epoch of all; of equal ones the first by trial, then by epoch."""
    records = [(rank_key(mode, m), t.id, e, m) for t in trials for e, m in t.history.items()]
    numbers = [record for record in records if record[0][0] == 0]
    if not numbers:
        return None, "", 0
    _, name, epoch, metric = min(numbers)
    return metric, name, epoch
