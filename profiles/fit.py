"""A curve through the measured widths, for those in between; pure.

The form is the Universal Scalability Law (N. J. Gunther, "A Simple Capacity Model of Massively
Parallel Transaction Systems", CMG 1993): with a share s that doesn't parallelise (Amdahl) and a
cost c of keeping w GPUs in step, an epoch takes T(w) = T(1) * ((1 - s) / w + s + c * (w - 1)).
The term that grows with w - 1 is the one that Pollux (OSDI'21, section 3.2) has for its
synchronisation. It is smooth: a step at a node boundary isn't in it, so it is fitted within one
node, and asked about nothing beyond the widths it was fitted to.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.scaling import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cloudtune.scaling import ScalingProfile
    from cloudtune.trial import Width

_ROUNDING = 1e-9
"""A term is not below 0 because of the last digits of the least squares."""


@dataclass(frozen=True)
class Fit:
    """The seconds of an epoch as `parallel / w + serial + growing * (w - 1)`.

    `residuals`: by width, how far the curve is above what was measured, relative. `noise`: what a
    measurement may be off the curve, relative. `covariance`: of the three terms, a row each.
    """

    parallel: float
    serial: float
    growing: float
    residuals: Mapping[Width, float]
    noise: float
    covariance: tuple[tuple[float, ...], ...]

    @property
    def one(self) -> float:
        """The seconds of an epoch on one GPU."""
        return self.parallel + self.serial

    def seconds(self, width: Width) -> Measurement:
        """Return the predicted seconds of an epoch, and their uncertainty.

        Raises:
            ValueError: the width is outside those that the curve was fitted to.
        """
        low, high = min(self.residuals), max(self.residuals)
        if not low <= width <= high:
            raise ValueError(f"width {width:g} is outside the fitted widths, {low:g} to {high:g}")
        terms = _terms(width)
        mean = float(terms @ np.array([self.parallel, self.serial, self.growing]))
        of_curve = float(terms @ np.array(self.covariance) @ terms)
        return Measurement(mean, math.sqrt(max(0.0, of_curve) + (self.noise * mean) ** 2), 0)


def fit(profile: ScalingProfile, node_gpus: float = math.inf) -> Fit:
    """Return the curve through a profile's widths from one GPU to those of one node.

    Least squares of the relative differences, no term below 0; always with fewer terms than there
    are widths, so that the residuals tell something.

    Raises:
        ValueError: fewer than two such widths were measured.
    """
    widths = [width for width in profile.widths if 1 <= width <= node_gpus]
    if len(widths) < 2:
        raise ValueError(f"a curve needs two measured widths of 1 or more; there is {widths}")
    seconds = np.array([profile.epoch[width].mean for width in widths])
    rows = np.array([_terms(width) for width in widths]) / seconds[:, None]
    active, values = _best(rows)
    off = rows @ values - 1.0
    freedom = len(widths) - len(active)
    spreads = [profile.epoch[width].sd / profile.epoch[width].mean for width in widths]
    noise = max(math.sqrt(float(off @ off) / freedom), *spreads)
    parallel, serial, growing = map(float, values)
    return Fit(
        parallel,
        serial,
        growing,
        residuals=dict(zip(widths, map(float, off), strict=True)),
        noise=noise,
        covariance=_covariance(rows, active, noise),
    )


def monotone_envelope(profile: ScalingProfile) -> ScalingProfile:
    """Return the profile without the widths that are no faster than a narrower one.

    Never applied by itself: a curve that falls is a fact that a planner has to deal with. `source`
    says that it was applied, and what was dropped.
    """
    kept: list[Width] = []
    for width in profile.widths:
        if all(profile.epoch[width].mean < profile.epoch[other].mean for other in kept):
            kept.append(width)
    dropped = [f"{width:g}" for width in profile.widths if width not in kept]
    if not dropped:
        return profile
    note = f"monotone envelope applied: dropped width {', '.join(dropped)}"
    return replace(profile.only(kept), source=f"{profile.source}; {note}")


def _terms(width: Width) -> NDArray[np.float64]:
    return np.array([1.0 / width, 1.0, width - 1.0])


def _best(rows: NDArray[np.float64]) -> tuple[Sequence[int], NDArray[np.float64]]:
    """Return the terms that are not 0 and all three values, with the least squares of `rows x - 1`.

    Non-negative least squares by trying every choice of terms: with three there are seven.
    """
    tried = list(_choices(rows))
    return min(tried, key=lambda choice: (_squares(rows, choice[1]), len(choice[0])))


def _choices(
    rows: NDArray[np.float64],
) -> Iterator[tuple[Sequence[int], NDArray[np.float64]]]:
    most = min(3, len(rows) - 1)
    for count in range(1, most + 1):
        for active in itertools.combinations(range(3), count):
            found = np.linalg.lstsq(rows[:, active], np.ones(len(rows)), rcond=None)[0]
            if (found >= -_ROUNDING).all():
                values = np.zeros(3)
                values[list(active)] = np.maximum(found, 0.0)
                yield active, values


def _squares(rows: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    off = rows @ values - 1.0
    return round(float(off @ off), 12)


def _covariance(
    rows: NDArray[np.float64], active: Sequence[int], noise: float
) -> tuple[tuple[float, ...], ...]:
    full = np.zeros((3, 3))
    used = rows[:, active]
    full[np.ix_(active, active)] = noise**2 * np.linalg.pinv(used.T @ used)
    return tuple(tuple(map(float, row)) for row in full)
