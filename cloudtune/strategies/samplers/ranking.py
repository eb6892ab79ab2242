"""Predicting untried configurations from tried ones: a rank for each, and how far to trust it.

A trial has a score, from 0 for the worst of its run to 1 for the best. The score of an untried
configuration is the weighted mean of the nearest tried ones.
"""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cloudtune.model.trial import rank_key
from cloudtune.strategies.samplers.axes import ListedValues, NumberLine, held, same

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from cloudtune.model.trial import Mode
    from cloudtune.strategies.samplers.axes import Axes, Axis, Config

    Key: TypeAlias = tuple[int, float]
    Floats: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_REACH = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
_PRIOR = 0.5
_MIDDLE = 0.5
_WIDER = 4.0
_AS_IF = 5.0
# How well an epoch usually predicts the rest; it counts as `_AS_IF` more trials that continued.
_USUAL = 0.8
_UNLISTED = -1.0


class Score(NamedTuple):
    """How well a trial did, or would have done, against the others of its run; 0 to 1.

    `weight` is how well its last epoch predicted the results of those that continued.
    """

    value: float
    weight: float


def scores(histories: Sequence[Mapping[int, float]], mode: Mode) -> list[Score]:
    """Return the score of each trial of a run.

    `histories` are their metrics by epoch; an empty one belongs to a failed trial, whose score is
    0. Trials with equally many epochs are compared at that epoch, by their best so far. Trials that
    ended at an epoch rank behind the others as far as that epoch predicts what comes later: by its
    rank correlation among those that continued. If it predicts nothing, those that continued are
    like any sample of all trials, and the others are average.
    """
    best = [_running_best(history, mode) for history in histories]
    lasts = [max(history, default=0) for history in best]
    scored: dict[int, float] = {}  # of trials that reached the epoch
    weights: dict[int, float] = {}
    for last in sorted(set(lasts) - {0}, reverse=True):
        here = {n: _at(best[n], last, mode) for n, end in enumerate(lasts) if end >= last}
        weight = _predictiveness(here, scored)
        weights |= {n: weight for n in here if n not in scored}
        for number, merged in _merged(here, scored).items():
            scored[number] = weight * merged + (1.0 - weight) * scored.get(number, 0.5)
    share = len(scored) / len(best) if best else 0.0
    return [
        Score(1.0 - share * (1.0 - scored[n]), weights[n]) if n in scored else Score(0.0, 1.0)
        for n in range(len(best))
    ]


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


def _merged(here: Mapping[int, Key], later: Mapping[int, float]) -> dict[int, float]:
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


def _at(best: Mapping[int, float], epoch: int, mode: Mode) -> Key:
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


def trust_of(results: int, correlation: float) -> float:
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

    A score is the mean of all tried ones, weighted by their weights and by
    1 / (1 + (gap / h)^2)^2; h is the value that best predicts each tried one from the others. Half
    a trial of an average score is added, so that many good ones beat a lucky one. Each axis has
    length 1; different labels, or a value that only one of the two has, are 1 apart.
    """

    def __init__(self, configs: Sequence[Config], tried: Sequence[Score], axes: Axes) -> None:
        self._axes = dict(axes)
        self._columns = self._placed(configs)
        self._scores = np.array([score.value for score in tried])
        self._weights = np.array([score.weight for score in tried])
        gaps = _gaps(self._columns, self._columns, self._labels)
        np.fill_diagonal(gaps, np.inf)
        errors = [
            ((self._means(gaps, reach) - self._scores) ** 2 * self._weights).sum()
            for reach in _REACH
        ]
        self._reach = _REACH[int(np.argmin(errors))]
        self._left_out = self._means(gaps, self._reach)

    def of(self, configs: Sequence[Config]) -> Floats:
        gaps = _gaps(self._placed(configs), self._columns, self._labels)
        return self._means(gaps, self._reach)

    def left_out(self) -> Floats:
        """Return the score of each tried configuration as predicted by all the others."""
        return self._left_out

    def _means(self, gaps: Floats, reach: float) -> Floats:
        weights = self._weights / (1.0 + (gaps / reach) ** 2) ** 2
        total = weights @ self._scores + _PRIOR * _MIDDLE
        means: Floats = total / (weights.sum(axis=1) + _PRIOR)
        return means

    @property
    def _labels(self) -> list[bool]:
        return [isinstance(axis, ListedValues) for axis in self._axes.values()]

    def _placed(self, configs: Sequence[Config]) -> Floats:
        """Return the places of configurations: a row for each axis, nan if they have no value."""
        rows = [
            [_place(axis, config, name) for config in configs] for name, axis in self._axes.items()
        ]
        return np.array(rows, dtype=float).reshape(len(self._axes), len(configs))


def _place(axis: Axis, config: Config, name: str) -> float:
    """Return a value's place on an axis, which extends beyond its ends; nan for no value."""
    value = held(config, name)
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


def _gaps(left: Floats, right: Floats, labels: Sequence[bool]) -> Floats:
    """Return the distances between two sets of configurations, as rows and columns."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for row, column, label in zip(left, right, labels, strict=True):
        away = np.abs(row[:, np.newaxis] - column[np.newaxis, :])
        if label:
            away = ((away > 0) | (row[:, np.newaxis] == _UNLISTED)).astype(float)
        total += np.where(np.isnan(away), 1.0, away) ** 2
    return np.sqrt(total)
