"""Newcomers that earlier runs recommend, among those that a sampler draws.

More configurations are drawn than are needed, and the earlier run that is trusted most ranks them.
A newcomer is its best that hasn't been tried, or else what the sampler draws anyway; which of the
two is decided by the trust, so that a trust of 0.6 gives 6 of 10 (`trust_of`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from cloudtune.strategies.samplers.past import Ranking, rank_correlation, scores, shared_axes
from cloudtune.trial import NamedBy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.strategies.samplers.axes import Axes, Config
    from cloudtune.strategies.samplers.past import PastRun
    from cloudtune.trial import Mode, Trial, TrialId

AT_FIRST = 0.3
"""The trust before there is a result; less than a half, as a past may mislead."""
STEADY = 12.0
"""That counts as so many results."""
SLOPE = 1.6
"""A correlation of 1 / 1.6 is trusted as if it were whole."""
MOST = 0.9
"""Some newcomers are always the sampler's own, so that something new is found."""
_ANEW = 1.1
"""The trust is reckoned anew where there are so many times as many results."""


def trust_of(results: int, correlation: float) -> float:
    """Return which share of newcomers an earlier run may name, by how well it foretold so far.

    `correlation` is that of the ranks that it gave to so many trials with those that they reached.
    One above 0 counts less its standard error, so that chance alone earns no trust; one below 0
    counts whole.
    """
    if results < 2:
        return AT_FIRST
    sure = correlation
    if correlation > 0.0:
        sure -= (1.0 - correlation**2) / math.sqrt(results - 1)
    told = results * SLOPE * sure + STEADY * AT_FIRST
    return min(MOST, max(0.0, told / (results + STEADY)))


class Candidates(Protocol):
    """A sampler that can draw more configurations than are needed."""

    def ask(self) -> Trial | None:
        """Return the next trial to try; None when there is none left."""
        ...

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a trial after an epoch; None where it failed."""
        ...

    def more(self, trials: int) -> int:
        """Let there be so many more; returns how many that brings."""
        ...

    @property
    def axes(self) -> Axes:
        """The axes on which its configurations stand."""
        ...

    def candidates(self) -> Sequence[Config]:
        """Return the configurations that might be tried."""
        ...

    def take(self, candidate: int) -> Trial | None:
        """Return a candidate as a trial; None where it has been tried, or none may be any more."""
        ...


def _key(config: Config) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(config.items()))


class _Source:
    """An earlier run, the order in which it would try the candidates, and the trust in it."""

    def __init__(self, past: PastRun, axes: Axes, candidates: Sequence[Config]) -> None:
        self.ranking = Ranking(past, shared_axes(axes, [each.config for each in past.trials]))
        found = self.ranking.of(candidates)
        self.order = (-found).argsort(kind="stable").tolist()
        self.order.reverse()  # the best last, to be popped
        self.foretold: dict[TrialId, float] = {}
        self.trust = trust_of(0, 0.0)


class Experienced:
    """A sampler some of whose newcomers are those that earlier runs rank first.

    What it is told it passes on, so that a sampler that learns does so from all trials.
    """

    def __init__(self, sampler: Candidates, past: Sequence[PastRun], mode: Mode) -> None:
        self._sampler, self._mode = sampler, mode
        self._candidates = sampler.candidates()
        self._sources = [_Source(each, sampler.axes, self._candidates) for each in past]
        self._given: set[tuple[tuple[str, object], ...]] = set()
        self._histories: dict[TrialId, dict[int, float]] = {}
        self._due = 0.0
        self._told = self._reckoned = 0
        if hasattr(sampler, "explore"):
            self.explore = sampler.explore

    def ask(self) -> Trial | None:
        """Return the next trial: one that the past recommends, or the sampler's own."""
        self._reckon()
        source = max(self._sources, key=lambda each: each.trust)
        self._due += source.trust
        trial = None
        if self._due >= 0.5:
            trial = self._recommended(source)
            self._due -= trial is not None
        run = "" if trial is None else source.ranking.run
        trial = trial or self._sampler.ask()
        if trial is None:
            return None
        self._given.add(_key(trial.config))
        return replace(trial, origin=NamedBy(run, round(source.trust, 3)))

    def more(self, trials: int) -> int:
        """Let there be so many more; returns how many that brings."""
        return self._sampler.more(trials)

    def _recommended(self, source: _Source) -> Trial | None:
        while source.order:
            candidate = source.order.pop()
            if _key(self._candidates[candidate]) not in self._given:
                trial = self._sampler.take(candidate)
                if trial is not None:
                    return trial
        return None

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a trial after an epoch; None where it failed."""
        self._told += 1
        history = self._histories.setdefault(trial.id, {})
        if value is not None:
            history[epoch] = value
        for source in self._sources:
            if trial.id not in source.foretold:
                source.foretold[trial.id] = float(source.ranking.of([trial.config])[0])
        self._sampler.tell(trial, epoch, value)

    def _reckon(self) -> None:
        """Correlate what the past foretold with what came of it, whenever there is more."""
        heard = len(self._histories)
        if heard < 2 or self._told <= self._reckoned * _ANEW:
            return
        self._reckoned = self._told
        found = [each.value for each in scores(list(self._histories.values()), self._mode)]
        for source in self._sources:
            foretold = [source.foretold[name] for name in self._histories]
            source.trust = trust_of(heard, rank_correlation(foretold, found))
