"""New configurations that the results recommend, among those that a sampler draws.

More configurations are drawn than are needed, and a model of the run's own results ranks them. A
new configuration is the model's recommendation or an ordinary draw: with a trust of 0.6, 6 of 10
are recommendations (`compute_trust`).
"""

from __future__ import annotations

import itertools
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cloudtune.strategies.samplers.axes import label
from cloudtune.strategies.samplers.ranking import Ranking, certainty, compute_trust, scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cloudtune.model.trial import Mode, Trial, TrialId
    from cloudtune.strategies.samplers.axes import Axes, Config
    from cloudtune.strategies.samplers.ranking import Score

# The model of this run names the best of this many candidates.
DRAWN = 8
# Fewer trials than this say nothing about a model's skill.
FEWEST = 15
# The trust is computed again once the number of results has grown by this factor.
_GROWTH = 1.1


class Candidates(Protocol):
    """A sampler that can draw more configurations than are needed."""

    def ask(self) -> Trial | None:
        """Return the next trial to try; None when there is none left."""

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a trial after an epoch; None if it failed."""

    def more(self, trials: int) -> int:
        """Add trials; return how many were added."""

    @property
    def axes(self) -> Axes:
        """The axes of its configurations."""

    def candidates(self) -> Sequence[Config]:
        """Return the configurations to choose from."""

    def take(self, candidate: int) -> Trial | None:
        """Return a candidate as a trial; None if it was tried, or there may be no more trials."""


def _key(config: Config) -> tuple[tuple[str, object], ...]:
    return tuple((name, label(config[name])[1]) for name in sorted(config))


class _Model:
    """A model of a run's own results, and the trust in it, which begins at 0.

    Its skill is measured by leave-one-out: each trial's score is predicted from all the others. So
    a space in which near configurations differ is drawn from at random, as without a model.
    """

    def __init__(self, axes: Axes, candidates: Sequence[Config], seed: int, last: int) -> None:
        self._axes = axes
        self._last = last
        self._candidates = candidates
        self._chance = np.random.default_rng((seed, 2))
        self._ranking: Ranking | None = None
        self._fitted = 0  # to how many trials the weights of axes were fitted
        self.trust = 0.0

    def best(self, is_free: Callable[[int], bool]) -> int | None:
        """Return the best of a few free candidates: the best of all would explore too little."""
        if self._ranking is None:
            return None
        drawn = self._chance.permutation(len(self._candidates)).tolist()
        free = list(itertools.islice(filter(is_free, drawn), DRAWN))
        if not free:
            return None
        predicted = self._ranking.of([self._candidates[candidate] for candidate in free])
        return int(free[int(np.argmax(predicted))])

    def learn(self, trials: Sequence[Trial], results: Sequence[Score]) -> None:
        """Learn from the scores of these trials, and update the trust."""
        if len(trials) < FEWEST or not self._axes or not self._candidates:
            return
        before = self._ranking.weights if self._ranking else None
        configs = [trial.config for trial in trials]
        fit = len(trials) > self._fitted * _GROWTH
        if fit:
            self._fitted = len(trials)
        self._ranking = Ranking(configs, results, self._axes, before, fit=fit)
        sure = certainty(results, self._last)
        self.trust = compute_trust(len(trials), self._ranking.skill() * sure)


class Adaptive:
    """A sampler of which some configurations are those that this run's results recommend.

    It passes results on, so that a sampler that learns does so from all trials. The first
    `initial` trials are the sampler's own. `last` is the last epoch of a whole training.

    `like` begins another run's best configurations, one each time it is asked. The first comes
    after the initial ones, and each other once those before it have results, and are at least
    average in this run: what doesn't transfer costs one trial, not all of them.
    """

    def __init__(
        self,
        sampler: Candidates,
        mode: Mode,
        last: int,
        *,
        seed: int = 0,
        initial: int = 0,
        like: Iterable[Trial | None] = (),
    ) -> None:
        self._sampler = sampler
        self._mode = mode
        self._initial = initial
        self._like = iter(like)
        self._alike: set[TrialId] = set()  # the trials that it has begun
        self._do_well = True  # whether those have results, and are at least average
        self._candidates = sampler.candidates()
        self._model = _Model(sampler.axes, self._candidates, seed, last)
        self._given: set[tuple[tuple[str, object], ...]] = set()
        self._trials: dict[TrialId, Trial] = {}
        self._histories: dict[TrialId, dict[int, float]] = {}
        self._failed: set[TrialId] = set()
        self._due = 0.0
        self._results = self._measured = 0
        if hasattr(sampler, "explore"):
            self.explore = sampler.explore

    def ask(self) -> Trial | None:
        """Return the next trial: one that the model recommends, or the sampler's own."""
        if self._initial:
            self._initial -= 1
            return self._sampler.ask()
        self._measure()
        trial = self._begin_alike() if self._do_well else None
        if trial is None:
            self._due += self._model.trust
            if self._due >= 0.5:
                trial = self._recommend()
                self._due -= trial is not None
        trial = trial or self._sampler.ask() or self._begin_alike()
        if trial is not None:
            self._given.add(_key(trial.config))
        return trial

    def _begin_alike(self) -> Trial | None:
        trial = next(self._like, None)
        if trial is not None:
            self._alike.add(trial.id)
            self._do_well = False
        return trial

    def more(self, trials: int) -> int:
        return self._sampler.more(trials)

    def _recommend(self) -> Trial | None:
        while (candidate := self._model.best(self._is_free)) is not None:
            trial = self._sampler.take(candidate)
            if trial is not None:
                return trial
            self._given.add(_key(self._candidates[candidate]))
        return None

    def _is_free(self, candidate: int) -> bool:
        return _key(self._candidates[candidate]) not in self._given

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        self._results += 1
        history = self._histories.setdefault(trial.id, {})
        if value is None:
            self._failed.add(trial.id)
        else:
            history[epoch] = value
        self._trials.setdefault(trial.id, trial)
        self._sampler.tell(trial, epoch, value)

    def _measure(self) -> None:
        """Let the model learn whenever there are a tenth more results."""
        heard = len(self._histories)
        if heard < 2 or self._results <= self._measured * _GROWTH:
            return
        self._measured = self._results
        failed = [name in self._failed for name in self._histories]
        results = scores(list(self._histories.values()), self._mode, failed)
        self._model.learn([self._trials[name] for name in self._histories], results)
        named = zip(self._histories, results, strict=True)
        alike = [score.value for name, score in named if name in self._alike]
        self._do_well = len(alike) == len(self._alike) and fmean(alike or [1.0]) >= 0.5
