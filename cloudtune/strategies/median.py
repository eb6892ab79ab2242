"""The median stopping rule."""

import bisect
from collections.abc import Sequence

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Mode, TrialId, better
from cloudtune.strategies.base import Decision, Go, Sampler, Verdict, View
from cloudtune.strategies.random_search import RandomSearch
from cloudtune.strategies.rungs import cap_epoch


class MedianStopping(RandomSearch):
    """Cuts a trial whose best so far is worse than the median of the others' running averages.

    Source: Golovin et al., "Google Vizier" (KDD 2017), section 3.2.2. The others are all trials
    that reached the epoch, over or not. Nothing is cut before epoch `min_epochs`, nor with fewer
    than `least` others.
    """

    name = "median"

    def __init__(
        self, sampler: Sampler, *, min_epochs: int, max_epochs: int, mode: Mode, least: int = 3
    ) -> None:
        super().__init__(sampler, max_epochs=max_epochs)
        self._min_epochs = min_epochs
        self._mode = mode
        self._least = least
        self._sums: dict[TrialId, tuple[int, float, float]] = {}  # last epoch, sum, best
        self._averages: dict[int, list[float]] = {}  # by epoch, in order

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Record the running average; cut the trial if it falls behind."""
        self._new.learn(trial)
        last = cap_epoch(trial.trial, self._max_epochs)
        behind = self._falls_behind(trial)
        if trial.epoch >= last:
            return Verdict.FINISH
        return Verdict.CUT if behind else Go(last)

    def _falls_behind(self, trial: TrialProgress) -> bool:
        """Record an epoch; return whether the rule ends the trial there."""
        assert trial.metric is not None
        epoch, total, best = self._sums.get(trial.id, (0, 0.0, trial.metric))
        if trial.epoch <= epoch:
            return False  # a repeated epoch: it was judged before
        best = trial.metric if better(self._mode, trial.metric, best) else best
        total += trial.metric
        self._sums[trial.id] = (trial.epoch, total, best)
        others = self._averages.setdefault(trial.epoch, [])
        ready = trial.epoch >= self._min_epochs and len(others) >= self._least
        behind = ready and better(self._mode, _median(others), best)
        bisect.insort(others, total / trial.epoch)
        return behind


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
