"""How fast a script trains on each GPU model, as far as a run knows: expectations and their errors.

The logarithm of how many times longer than the profile says an epoch takes is

    u(GPU) + pace(trial) + noise,    u(GPU) = c + error of the GPU

where c is common to all GPU models (`ScalingProfile.error`), and each model's own error is normal
by its profile's `gpu_error`. Paces are normal, too: their spread is learned from the trials of the
run. So u is normal with a mean and a covariance that follow from the epochs by Bayes' rule: a model
that nothing has trained on shares c with the others, a trial that has trained on two of them
compares them without its pace, and other trials compare them the better the more there are.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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


def gpu_of(offer: Offer) -> str:
    """Return the name of an offer's GPU model in lower case."""
    return offer.instance_type.gpu.lower()


@dataclass
class _Timed:
    """The epochs of a trial on a GPU model: their number and mean logarithm."""

    count: int = 0
    mean: float = 0.0

    def note(self, value: float) -> None:
        self.count += 1
        self.mean += (value - self.mean) / self.count


class GpuEstimates:
    """The speeds of GPU models in a run, updated epoch by epoch.

    `epochs` are those trained on each model. `news` is how often their number has doubled on one
    whose profile is a prior; in a run without such profiles there are none.
    """

    def __init__(self, rentables: Sequence[Rentable]) -> None:
        self.epochs = Counter[str]()
        self.news = 0
        self._profiles = {rentable.offer: rentable.profile for rentable in rentables}
        self._priors = {gpu_of(each.offer) for each in rentables if each.profile.is_prior}
        self._errors: dict[str, float] = {}
        for rentable in rentables:
            gpu = gpu_of(rentable.offer)
            error = max(_EXACT, rentable.profile.gpu_error)
            self._errors[gpu] = min(error, self._errors.get(gpu, math.inf))
        self._places = {gpu: place for place, gpu in enumerate(self._errors)}
        self._common = max((each.profile.error for each in rentables), default=0.0)
        self._width: Width | None = None  # at which all are compared
        self._trials: dict[TrialId, dict[str, _Timed]] = {}
        self._known: tuple[_Vector, _Matrix] | None = None

    def note(self, trial: TrialId, offer: Offer, width: Width, seconds: float) -> None:
        """Record the seconds of an epoch."""
        if not self._priors:
            return
        gpu = gpu_of(offer)
        self.epochs[gpu] += 1
        profile = self._profiles[offer]
        self.news += gpu in self._priors and self.epochs[gpu].bit_count() == 1
        if self._width is None:
            self._width = width
        expected = profile.epoch[width].mean if width in profile.epoch else 0.0
        if width != self._width or expected <= 0 or seconds <= 0:
            return
        timed = self._trials.setdefault(trial, {}).setdefault(gpu, _Timed())
        timed.note(math.log(seconds / expected))
        self._known = None

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
        """Return the mean and the covariance of u."""
        if self._known is None:
            common = np.full((len(self._errors),) * 2, self._common**2)
            prior = common + np.diag(np.square(list(self._errors.values())))
            precision = np.linalg.inv(prior)
            weighed = np.zeros(len(self._errors))
            paces = self._pace_variance()
            for timed in self._trials.values():
                if len(timed) == 1:  # most trials
                    [(gpu, seen)] = timed.items()
                    weight = 1 / (NOISE**2 / seen.count + paces)
                    precision[self._places[gpu], self._places[gpu]] += weight
                    weighed[self._places[gpu]] += weight * seen.mean
                    continue
                places = [self._places[gpu] for gpu in timed]
                noise = np.diag([NOISE**2 / seen.count for seen in timed.values()])
                weights = np.linalg.inv(noise + paces)
                precision[np.ix_(places, places)] += weights
                weighed[places] += weights @ [seen.mean for seen in timed.values()]
            covariance = np.linalg.inv(precision)
            self._known = covariance @ weighed, covariance
        return self._known

    def _pace_variance(self) -> float:
        """Return the variance of the trials' paces: of those on one GPU model, and before them."""
        by_gpu: dict[str, list[float]] = {}
        for timed in self._trials.values():
            for gpu, seen in timed.items():
                by_gpu.setdefault(gpu, []).append(seen.mean)
        squares = sum(float(np.var(means)) * len(means) for means in by_gpu.values())
        freedom = sum(len(means) - 1 for means in by_gpu.values())
        return (TRIALS * PACES**2 + squares) / (TRIALS + freedom)


_Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
