"""The random draws of an outlook: durations for every sample at once, reproducible by seed."""

import math
from collections.abc import Sequence

import numpy as np

from cloudtune.model.scaling import Measurement
from cloudtune.planners.arrays import Floats, Indices, Ints


class Dice:
    """Draws for `samples` samples; a duration is normal and never below zero, as in SimWorld.

    Samples come in pairs with mirrored normals (antithetic variates: Hammersley and Morton, 1956).
    So means converge with far fewer samples, and half of the drawing is saved.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self._generator = np.random.default_rng(seed)
        self._means: dict[Measurement, Floats] = {}

    def normal(self, count: int) -> Floats:
        """Return standard normals, (samples, count)."""
        half = self._generator.standard_normal(((self.samples + 1) // 2, count))
        return np.concatenate([half, -half])[: self.samples]

    def seconds(
        self, measured: Measurement, count: int, *, times: int = 1, among: int = 1
    ) -> Floats:
        """Return `count` durations per sample, each the sum of `times` draws of the measurement.

        With `among`, divided among that many. The error of the mean is drawn once per sample.
        """
        drawn = _stretch(self.normal(count), measured, times, among)
        if measured.error == 0:
            return drawn
        return np.maximum(drawn + times * self._off(measured)[:, None], 0.0)

    def _off(self, measured: Measurement) -> Floats:
        if measured not in self._means:
            self._means[measured] = measured.error * self.normal(1)[:, 0]
        return self._means[measured]

    def few(self, measured: Measurement, *shape: int) -> Floats:
        """Return durations for some of the samples, of any shape."""
        return _stretch(self._generator.standard_normal(shape), measured, 1)

    def gaps(self, mean: float | Floats, *shape: int) -> Floats:
        """Return seconds until the next event, exponentially distributed with that mean."""
        return self._generator.exponential(1.0, shape) * mean

    def pick(self, ways: int) -> Indices:
        """Return a uniform index below `ways` for each sample."""
        return self._generator.integers(ways, size=self.samples)

    def shares(self, *shape: int) -> Floats:
        """Return uniform numbers from 0 to 1."""
        return self._generator.random(shape)

    def survivors(self, places: Sequence[int], count: int) -> Ints:
        """Draw `count` of all trials; return how many come from each place: (samples, places)."""
        return self._generator.multivariate_hypergeometric(
            np.array(places, dtype=np.int64), count, self.samples, method="count"
        )

    def factor(self, error: float) -> Floats:
        """Return the factor on all epochs of a profile in each sample.

        Twice as long is as likely as half as long.
        """
        return np.exp(error * self.normal(1)[:, 0])


def _stretch(noise: Floats, measured: Measurement, times: int, among: int = 1) -> Floats:
    noise *= measured.sd * math.sqrt(times / among)
    noise += times * measured.mean
    return np.maximum(noise, 0.0, out=noise)
