"""Predicting untried configurations from tried ones: a rank for each, and how far to trust it.

A trial has a score, from 0 for the worst of its run to 1 for the best. The score of an untried
configuration is the weighted mean of the nearest tried ones.
"""

from __future__ import annotations

import bisect
import math
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cloudtune.model.trial import rank_key
from cloudtune.strategies.samplers.axes import ListedValues, NumberLine, read_value, same

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from cloudtune.model.trial import Mode
    from cloudtune.strategies.samplers.axes import Axes, Axis, Config

    Key: TypeAlias = tuple[int, float]
    Floats: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# Half a trial of an average score is added to what is near a configuration.
_PRIOR = 0.5
# An axis without weight counts as one of this share of the usual weight.
_LEAST = 0.125
# No axis weighs more: trials a hundredth of its range apart are far from each other then.
_MOST_WEIGHT = 128.0
# The weights that all axes may have alike: trials are near if they are 1 / weight apart.
_EQUAL = tuple(2.0**power for power in range(7))
# Each doubling or halving of a weight must reduce the error by the share of half a trial.
_DOUBT = 0.5
# Weights are fitted to at most this many trials.
_FITTED = 160
_ROUNDS = 2
_WIDER = 4.0
_AS_IF = 5.0
# How well an epoch usually predicts the rest; it counts as `_AS_IF` more trials that continued.
_USUAL = 0.8
_UNLISTED = -1.0


class Score(NamedTuple):
    """How well a trial did, or would have done, against the others of its run; 0 to 1.

    `weight` is how well its last `epoch` predicted the results of those that continued.
    """

    value: float
    weight: float
    epoch: int


def scores(
    histories: Sequence[Mapping[int, float]], mode: Mode, failed: Sequence[bool] = ()
) -> list[Score]:
    """Return the score of each trial of a run.

    `histories` are their metrics by epoch; an empty one belongs to a failed trial, whose score is
    0. One that `failed` later, or diverged, stays as good as it was: it is compared with all that
    trained on, and falls behind those that have become better.

    Trials with equally many epochs are compared at that epoch, by their best so far. Trials that
    ended at an epoch rank behind the others as far as that epoch predicts what comes later: by its
    rank correlation among those that continued. If it predicts nothing, those that continued are
    like any sample of all trials, and the others are average.
    """
    best = [_running_best(history, mode) for history in histories]
    lasts = [max(history, default=0) for history in best]
    furthest = max(lasts, default=0)
    for number, history in enumerate(histories):
        over = bool(failed) and failed[number]
        if lasts[number] and (over or not math.isfinite(history[max(history)])):
            lasts[number] = furthest
    scored: dict[int, float] = {}  # of trials that reached the epoch
    weights: dict[int, float] = {}
    for last in sorted(set(lasts) - {0}, reverse=True):
        here = {n: _sort_key(best[n], last, mode) for n, end in enumerate(lasts) if end >= last}
        weight = _predictiveness(here, scored)
        weights |= {n: weight for n in here if n not in scored}
        for number, merged in _merge(here, scored).items():
            scored[number] = weight * merged + (1.0 - weight) * scored.get(number, 0.5)
    share = len(scored) / len(best) if best else 0.0
    return [
        Score(1.0 - share * (1.0 - scored[n]), weights[n], end) if end else Score(0.0, 1.0, 0)
        for n, end in enumerate(lasts)
    ]


def certainty(results: Sequence[Score], last: int) -> float:
    """Return how well scores predict those at the `last` epoch of a whole training: 0 to 1.

    Nothing was seen beyond the furthest epoch. Each doubling from there on counts as those before
    it, by the geometric mean of what they predicted; before there are any, as `_USUAL`. Without
    that, a run's first epochs would be trusted most: no later result contradicts them yet. Trials
    that failed before a result are seen to their end.
    """
    furthest = max((score.epoch for score in results), default=0)
    if furthest == 0:
        return 0.0
    early = [score for score in results if 0 < score.epoch < furthest]
    predicted = math.log(_USUAL)
    if early:
        doublings = math.fsum(math.log2(furthest / score.epoch) for score in early)
        predicted = math.fsum(math.log(score.weight) for score in early) / doublings
    unseen = math.log2(max(1.0, last / furthest))
    later = math.exp(predicted * unseen)
    return fmean(score.weight * (later if score.epoch else 1.0) for score in results)


def _predictiveness(here: Mapping[int, Key], later: Mapping[int, float]) -> float:
    """Return how well an epoch predicts the scores of the trials that continued: 0 to 1.

    Most of these were ahead, so they differ less than all trials did; the correlation is corrected
    for that (Thorndike's case 2, on uniform ranks).
    """
    if not later:
        return 1.0
    order = sorted(here.values())
    values = [-float(bisect.bisect_left(order, here[n])) for n in later]
    correlation = rank_correlation(values, list(later.values()))
    wider = min(len(here) / len(later), _WIDER)
    correlation = correlation * wider / math.sqrt(1.0 + correlation**2 * (wider**2 - 1.0))
    return (max(0.0, correlation) * len(later) + _AS_IF * _USUAL) / (len(later) + _AS_IF)


def _merge(here: Mapping[int, Key], later: Mapping[int, float]) -> dict[int, float]:
    """Return scores assuming that the ranks at an epoch are right, with trials that ended there.

    Such a trial ranks before as many of the trials that continued as are behind it at the epoch.
    """
    ahead = sorted(here[n] for n in later)
    going = sorted(later, key=lambda n: -later[n])
    order = []
    begun = 0
    for key, number in sorted((key, n) for n, key in here.items() if n not in later):
        place = bisect.bisect_right(ahead, key)
        order += [*going[begun:place], number]
        begun = max(begun, place)
    order += going[begun:]
    return {n: 1.0 - (place + 0.5) / len(order) for place, n in enumerate(order)}


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if either is constant."""
    first, second = (_ranks(np.asarray(values, dtype=float)) for values in (left, right))
    spread = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / spread if spread > 0 else 0.0


def _ranks(values: Floats) -> Floats:
    """Return ranks minus their mean; equal values share a rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    centred: Floats = ranks - ranks.mean()
    return centred


def _running_best(history: Mapping[int, float], mode: Mode) -> dict[int, float]:
    """Return the best metric up to each epoch; none from the epoch at which it diverged."""
    best: dict[int, float] = {}
    top: float | None = None
    for epoch in sorted(history):
        if top is None or rank_key(mode, history[epoch]) < rank_key(mode, top):
            top = history[epoch]
        if math.isfinite(top):
            best[epoch] = top
    return best


def _sort_key(best: Mapping[int, float], epoch: int, mode: Mode) -> Key:
    """Return the sort key of a trial at an epoch, or at its last one before it."""
    metric = best.get(epoch)
    if metric is None:
        metric = best[max((earlier for earlier in best if earlier <= epoch), default=min(best))]
    return rank_key(mode, metric)


# The prior of no trust counts as this many results.
STEADY = 12.0
# A correlation of 1 / 1.6 earns full trust.
SLOPE = 1.6
# The greatest trust: some new configurations are always ordinary draws, to find something new.
MOST = 0.9


def compute_trust(results: int, correlation: float) -> float:
    """Return the share of new configurations that predictions may choose, by their skill so far.

    `correlation` is the rank correlation of the predictions for `results` trials with their
    results. A positive one is reduced by its standard error, so that chance alone earns no trust.
    """
    if results < 2:
        return 0.0
    sure = correlation
    if correlation > 0.0:
        sure -= (1.0 - correlation**2) / math.sqrt(results - 1)
    trust = results * SLOPE * sure / (results + STEADY)
    return min(MOST, max(0.0, trust))


class Ranking:
    """Ranks configurations by the scores of tried ones.

    A prediction is a mean of the tried scores, weighted by their weights and by
    1 / (1 + gap)^2, where the gap of two configurations is the sum over the axes of
    (weight x distance)^2: an axis of weight 0 doesn't matter. There are two such means, and they
    count alike: one weighs all axes alike, the other has the weights that best predict each tried
    score from the others. Few trials say too little for the second alone. Its weights start from
    `before`, those of an earlier fit, which stay as they are unless it is to `fit` again. Half a
    trial of an average score is added, so that many good trials beat a lucky one. Each axis has
    length 1; different labels, or a value that only one of the two has, are 1 apart.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        tried: Sequence[Score],
        axes: Axes,
        before: Sequence[float] | None = None,
        *,
        fit: bool = True,
    ) -> None:
        self._axes = dict(axes)
        self._labels = [isinstance(axis, ListedValues) for axis in self._axes.values()]
        self._columns = self._places(configs)
        self._scores = np.array([score.value for score in tried])
        self._trusts = np.array([score.weight for score in tried])
        self._mean = float(np.average(self._scores, weights=self._trusts + 1e-9))
        drawn = np.random.default_rng(len(configs)).permutation(len(configs))
        chosen = np.sort(drawn[:_FITTED])
        self._fitted_scores = self._scores[chosen]
        columns = self._columns[:, chosen]
        squares = _squares(columns, columns, self._labels)
        fitting = _Fit(squares, self._scores[chosen], self._trusts[chosen])
        self.equal = fitting.best_equal()
        self.weights = list(before) if before and not fit else fitting.fit(self.equal, before)
        both = [fitting.left_out(fitting.gaps(w)) for w in (self.equal, self.weights)]
        self._left_out = np.mean(both, axis=0)

    def of(self, configs: Sequence[Config]) -> Floats:
        squares = _squares(self._places(configs), self._columns, self._labels)
        both = [self._means(squares, weights) for weights in (self.equal, self.weights)]
        return np.asarray(np.mean(both, axis=0))

    def _means(self, squares: Floats, weights: Sequence[float]) -> Floats:
        gaps = np.tensordot(np.square(weights), squares, 1)
        near = self._trusts / (1.0 + gaps) ** 2
        total = near @ self._scores + _PRIOR * self._mean
        means: Floats = total / (near.sum(axis=1) + _PRIOR)
        return means

    def skill(self) -> float:
        """Return the rank correlation of the scores with what the others predict for them.

        It is reduced as the adjusted coefficient of determination is, by a parameter for each axis
        whose weight isn't the usual one: many of them would fit any few trials.
        """
        count = len(self._fitted_scores)
        seen = rank_correlation(self._left_out.tolist(), self._fitted_scores.tolist())
        usual = float(np.median(self.weights))
        moved = sum(weight != usual for weight in self.weights)
        if seen <= 0 or count <= moved + 1:
            return min(seen, 0.0)
        unexplained = (1 - seen**2) * (count - 1) / (count - 1 - moved)
        return math.sqrt(max(0.0, 1 - unexplained))

    def _places(self, configs: Sequence[Config]) -> Floats:
        """Return the places of configurations: a row for each axis, nan if they have no value."""
        places = np.empty((len(self._axes), len(configs)))
        for row, (name, axis) in enumerate(self._axes.items()):
            places[row] = [_place(axis, config, name) for config in configs]
        return places


class _Fit:
    """Finds the weights of axes: those with the smallest error of each trial, left out."""

    def __init__(self, squares: Floats, scores: Floats, trusts: Floats) -> None:
        self._squares = squares
        self._scores = scores
        self._trusts = trusts
        # What all the others have on average: without it, a good trial that is left out would
        # lower its own prediction.
        others = max(1e-9, trusts.sum()) - trusts
        self._others = (float(trusts @ scores) - trusts * scores) / np.maximum(others, 1e-9)

    def gaps(self, weights: Sequence[float]) -> Floats:
        gaps: Floats = np.tensordot(np.square(weights), self._squares, 1)
        return gaps

    def left_out(self, gaps: Floats) -> Floats:
        """Return by how much each trial differs from the mean, as predicted by all the others."""
        near = self._trusts / (1.0 + gaps) ** 2
        np.fill_diagonal(near, 0.0)
        total = near.sum(axis=1)
        means: Floats = (near @ self._scores - total * self._others) / (total + _PRIOR)
        return means

    def best_equal(self) -> list[float]:
        """Return the weight that all axes have with the smallest error."""
        count = len(self._squares)
        choices = [[weight] * count for weight in _EQUAL]
        return min(choices, key=lambda weights: self._error(self.gaps(weights), weights))

    def fit(self, equal: list[float], before: Sequence[float] | None) -> list[float]:
        """Return the best weights, one axis after the other, from equal ones or those before."""
        count = len(self._squares)
        starts = [equal] + ([list(before)] if before else [])
        weights = min(starts, key=lambda weights: self._error(self.gaps(weights), weights))
        least = self._error(self.gaps(weights), weights)
        for _ in range(_ROUNDS):
            for factor in (0.5, 2.0):
                scaled = [weight * factor for weight in weights]
                error = self._error(self.gaps(scaled), scaled)
                if error < least:
                    weights, least = scaled, error
            for axis in range(count):
                weights, least = self._improve(weights, least, axis)
        return weights

    def _improve(self, weights: list[float], least: float, axis: int) -> tuple[list[float], float]:
        gaps = self.gaps(weights)
        own = weights[axis]
        usual = float(np.median(weights))
        best = own
        for weight in (0.0, own / 2, own * 2, usual):
            if weight == own or weight > _MOST_WEIGHT:
                continue
            moved = [*weights[:axis], weight, *weights[axis + 1 :]]
            if not any(moved):
                continue
            error = self._error(gaps + (weight**2 - own**2) * self._squares[axis], moved)
            if error < least:
                best, least = weight, error
        return [*weights[:axis], best, *weights[axis + 1 :]], least

    def _error(self, gaps: Floats, weights: Sequence[float]) -> float:
        wrong = self.left_out(gaps) - (self._scores - self._others)
        error = float((np.square(wrong) * self._trusts).sum()) / max(1e-9, self._trusts.sum())
        usual = float(np.median(weights)) or max(weights)
        changes = np.abs(np.log2(np.maximum(np.divide(weights, usual), _LEAST))).sum()
        return float(error * (1.0 + _DOUBT / len(self._scores) * float(changes)))


def _place(axis: Axis, config: Config, name: str) -> float:
    """Return a value's place on an axis, which extends beyond its ends; nan for no value."""
    value = read_value(config, name)
    if isinstance(axis, ListedValues):
        listed = [n for n, label in enumerate(axis.values) if same(label, value)]
        return float(listed[0]) if listed else _UNLISTED
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    if not isinstance(axis, NumberLine):
        first = float(axis.at(0))
        last = float(axis.at(axis.count - 1))
        return (value - first) / (last - first)
    if not axis.log:
        return (value - axis.low) / (axis.high - axis.low)
    return math.log(value / axis.low) / math.log(axis.high / axis.low) if value > 0 else math.nan


def _squares(left: Floats, right: Floats, labels: Sequence[bool]) -> Floats:
    """Return the squared distances of two sets of configurations: on each axis, by row, column."""
    squares = np.empty((left.shape[0], left.shape[1], right.shape[1]))
    for axis, (row, column) in enumerate(zip(left, right, strict=True)):
        away = np.abs(row[:, np.newaxis] - column[np.newaxis, :])
        if labels[axis]:
            away = ((away > 0) | (row[:, np.newaxis] == _UNLISTED)).astype(float)
        squares[axis] = np.where(np.isnan(away), 1.0, away) ** 2
    return squares
