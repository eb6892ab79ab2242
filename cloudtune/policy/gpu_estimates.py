"""How fast a script trains on each GPU model, as far as a run knows: expectations and their errors.

The logarithm of how many times longer than the profile says an epoch takes is

    u(GPU) + v(width) + pace(trial) + noise,    u(GPU) = c + error of the GPU

where c is common to all GPU models (`ScalingProfile.error`), and each model's own error is normal
by its profile's `gpu_error`. The width that a run first trains at has no error v. Paces are normal,
too: their spread is learned from the trials of the run. So u is normal with a mean and a covariance
that follow from the epochs by Bayes' rule: a model that nothing has trained on shares c with the
others, a trial that has trained on two of them compares them without its pace, and other trials
compare them the better the more there are.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Rentable
from cloudtune.model.trial import TrialId, Width

# How much the epochs of a trial differ, and those of the configurations of a search, as standard
# deviations of the logarithm (profiles/priors.csv). The second counts as that of `TRIALS` trials.
NOISE = 0.05
PACES = 0.19
TRIALS = 4
# A measured speed may be as far off in another run.
_EXACT = 0.03
# How far the epochs at another width may be off: two trials on a GPU take 1.2 to 2.4 times as long
# as one (policy/gpu_sharing.py).
_WIDTHS = 0.5

_Place: TypeAlias = tuple[str, Width]  # a GPU model and a width


@dataclass
class _Timed:
    """The epochs of a trial on a GPU model at a width: their number and mean logarithm."""

    count: int = 0
    mean: float = 0.0

    def note(self, value: float) -> None:
        self.count += 1
        self.mean += (value - self.mean) / self.count


@dataclass
class _Sums:
    """The number of some means, their sum, and that of their squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, mean: float) -> None:
        self.count += 1
        self.total += mean
        self.squares += mean * mean

    def remove(self, mean: float) -> None:
        self.count -= 1
        self.total -= mean
        self.squares -= mean * mean


class GpuEstimates:
    """The speeds of GPU models in a run, updated epoch by epoch.

    `epochs` are those trained on each model. `news` is how often their number has doubled on one
    whose profile is a prior; in a run without such profiles there are none.
    """

    def __init__(self, rentables: Sequence[Rentable]) -> None:
        self.epochs = Counter[str]()
        self.news = 0
        self._profiles = {rentable.offer: rentable.profile for rentable in rentables}
        self._priors = {each.offer.gpu_model for each in rentables if each.profile.is_prior}
        self._errors: dict[str, float] = {}
        for rentable in rentables:
            gpu = rentable.offer.gpu_model
            error = max(_EXACT, rentable.profile.gpu_error)
            self._errors[gpu] = min(error, self._errors.get(gpu, math.inf))
        self._places = {gpu: place for place, gpu in enumerate(self._errors)}
        self._common = max((each.profile.error for each in rentables), default=0.0)
        self._widths: dict[Width, int] = {}  # in order of their first epochs
        self._trials: dict[TrialId, dict[_Place, _Timed]] = {}
        # Of all trials by place; and of those at one place alone, also by their number of epochs.
        self._means: defaultdict[_Place, _Sums] = defaultdict(_Sums)
        self._alone: defaultdict[tuple[_Place, int], _Sums] = defaultdict(_Sums)
        self._movers: dict[TrialId, dict[_Place, _Timed]] = {}  # with epochs at several places
        self._known: tuple[_Vector, _Matrix] | None = None

    def note(self, trial: TrialId, offer: Offer, width: Width, seconds: float) -> None:
        """Record the seconds of an epoch."""
        if not self._priors:
            return
        gpu = offer.gpu_model
        self.epochs[gpu] += 1
        self.news += gpu in self._priors and self.epochs[gpu].bit_count() == 1
        epochs = self._profiles[offer].epoch
        expected = epochs[width if width in epochs else min(epochs)].mean
        if expected <= 0 or seconds <= 0:
            return
        self._widths.setdefault(width, len(self._widths))
        self._note_mean(trial, (gpu, width), math.log(seconds / expected))
        self._known = None

    def _note_mean(self, trial: TrialId, place: _Place, value: float) -> None:
        """Record an epoch in its trial's mean, and in the sums of these."""
        places = self._trials.setdefault(trial, {})
        if len(places) == 1:
            [(before, timed)] = places.items()
            self._alone[before, timed.count].remove(timed.mean)
        if place in places:
            self._means[place].remove(places[place].mean)
        timed = places.setdefault(place, _Timed())
        timed.note(value)
        self._means[place].add(timed.mean)
        if len(places) == 1:
            self._alone[place, timed.count].add(timed.mean)
        else:
            self._movers[trial] = places

    def factor(self, gpu: str) -> float:
        """Return how many times longer than the profile says an epoch is expected to take."""
        if not self._trials:
            return 1.0
        return math.exp(self._posterior()[0][self._places[gpu]])

    def spread(self, gpu: str, other: str) -> float:
        """Return how far the ratio of two models may be off, as a deviation of the logarithm."""
        one = self._places[gpu]
        two = self._places[other]
        covariance = self._posterior()[1]
        variance = covariance[one, one] + covariance[two, two] - 2 * covariance[one, two]
        return math.sqrt(max(0.0, variance))

    def _posterior(self) -> "tuple[_Vector, _Matrix]":
        """Return the mean and the covariance of u and v."""
        if self._known is None:
            precision = np.linalg.inv(self._prior())
            weighed = np.zeros(len(precision))
            paces = self._pace_variance()
            # Most trials stay at one place: all with as many epochs there weigh the same.
            for (place, count), means in self._alone.items():
                weight = 1 / (NOISE**2 / count + paces)
                one, two = self._indexes(place)
                for index in (one, two):
                    weighed[index] += weight * means.total
                    precision[index, one] += weight * means.count
                    precision[index, two] += weight * means.count
            for timed in self._movers.values():
                rows = np.array([self._row(place) for place in timed])
                noise = np.diag([NOISE**2 / seen.count for seen in timed.values()])
                weights = rows.T @ np.linalg.inv(noise + paces)
                precision += weights @ rows
                weighed += weights @ [seen.mean for seen in timed.values()]
            covariance = np.linalg.inv(precision)
            self._known = covariance @ weighed, covariance
        return self._known

    def _indexes(self, place: _Place) -> tuple[int, int]:
        """Return the places of u and v in vectors and matrices."""
        gpu, width = place
        return self._places[gpu], len(self._places) + self._widths[width]

    def _row(self, place: _Place) -> "_Vector":
        """Return which of u and v the epochs of a trial at a place add up."""
        row = np.zeros(len(self._places) + len(self._widths))
        row[[*self._indexes(place)]] = 1.0
        return row

    def _prior(self) -> "_Matrix":
        """Return the covariance of u and v before any epoch."""
        gpus = len(self._errors)
        prior = np.diag([*self._errors.values(), *([_WIDTHS] * len(self._widths))]) ** 2
        prior[:gpus, :gpus] += self._common**2
        if self._widths:
            prior[gpus, gpus] = 1e-12  # the first width: all others are compared with it
        return prior

    def _pace_variance(self) -> float:
        """Return the variance of paces: of trials on the same GPU model and width, and before."""
        alike = self._means.values()
        squares = sum([it.squares - it.total**2 / it.count for it in alike])
        freedom = sum([it.count - 1 for it in alike])
        return (TRIALS * PACES**2 + max(0.0, squares)) / (TRIALS + freedom)


_Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
