"""The outcome of a job in a line: what it found, and in how many trials."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from cloudtune.engine.record.timeline import Timeline
from cloudtune.model.text import count_noun
from cloudtune.model.trial import Mode, TrialId, better, has_diverged, rank_key
from cloudtune.model.units import format_seconds


@dataclass(frozen=True)
class Summary:
    """The best metric, the trial and epoch that reached it, and how far trials were trained.

    Without a result `best` is None, and the trial has no name.
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
    def of(cls, timeline: Timeline, metric: str, mode: Mode) -> "Summary":
        """Return the summary of a run, as far as its ledger was read."""
        trained: dict[TrialId, dict[int, float]] = {
            session.start.trial: {} for session in timeline.sessions.values()
        }
        last = dict.fromkeys(trained, 0)
        for span in timeline.epochs:
            if span.waited:  # the last report of a repeated epoch counts
                last[span.trial] = max(span.number, last[span.trial])
                trained[span.trial][span.named] = span.report.metrics.get(metric, math.nan)
        best, name, epoch = _best(mode, trained)
        lengths = sorted(last.values()) or [0]
        middle = median(lengths)
        return cls(best, name, epoch, len(trained), sum(lengths), lengths[0], middle, lengths[-1])

    def sentence(self) -> str:
        """Return how many trials there were and how far they were trained, for people."""
        span = f"{self.shortest} to {self.longest} each, the median {self.median:g}"
        return (
            f"{count_noun(self.trials, 'trial')}, {count_noun(self.epochs, 'epoch')} in all: {span}"
        )


@dataclass(frozen=True)
class Target:
    """A metric that ends a run, and the first epoch that reached it (run seconds).

    If none did, `reached_at` is None, and `best` says how near the run came.
    """

    value: float
    reached_at: float | None
    trial: str
    epoch: int
    best: float | None

    @classmethod
    def of(cls, timeline: Timeline, metric: str, mode: Mode, value: float) -> "Target":
        """Return whether and when a target was reached, as far as the ledger was read."""
        for epoch in timeline.epochs:
            reported = epoch.report.metrics.get(metric)
            if reported is None or math.isnan(reported) or better(mode, value, reported):
                continue
            return cls(value, epoch.report.at, epoch.trial, epoch.number, reported)
        return cls(value, None, "", 0, Summary.of(timeline, metric, mode).best)

    def text(self, name: str) -> str:
        """Return a sentence, as in "Target loss 0.1: reached after 3m 2s by t04 in epoch 7"."""
        if self.reached_at is None:
            near = "" if self.best is None else f" (the best was {self.best:.6g})"
            return f"Target {name} {self.value:g}: not reached{near}"
        when = f"{format_seconds(self.reached_at)} by {self.trial} in epoch {self.epoch}"
        return f"Target {name} {self.value:g}: reached after {when}"


def _best(
    mode: Mode, trained: Mapping[TrialId, Mapping[int, float]]
) -> tuple[float | None, str, int]:
    """Return the best epoch of all trials that didn't diverge; ties by trial, then by epoch."""
    finite = {t: own for t, own in trained.items() if not any(map(has_diverged, own.values()))}
    numbers = [(rank_key(mode, m), t, e, m) for t, own in finite.items() for e, m in own.items()]
    if not numbers:
        return None, "", 0
    _, name, epoch, value = min(numbers)
    return value, name, epoch
