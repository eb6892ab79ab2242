"""What a trial gains from one level to the next: learned from the trials of this run alone.

Metrics are turned so that more is better. Nothing here is of the SEER paper, of which only the
abstract is known to us (docs/seer.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.trial import TrialId

    Floats: TypeAlias = npt.NDArray[np.float64]

DECAY = 0.75
"""What a level adds, as a share of what the level below added: where nothing was measured."""
FIRST = 0.6
"""What the second level adds, in deviations among the better half of the first."""
SLOPE = 0.9
"""How much of a difference between two trials is left one level later, before it is measured."""
FAILED = -1e6
"""The value of a trial that failed."""
_ODD = 6.0  # deviations: a trial that broke down says nothing of the others


@dataclass(frozen=True)
class Growth:
    """What reaching a level adds to the value of the level below, by level (0 isn't used).

    A trial of value v gets v + mean + (slope - 1) * (v - centre) + a normal draw of deviation sd;
    where the centre is nan it is the mean of those that are looked at.
    """

    mean: Floats
    slope: Floats
    centre: Floats
    sd: Floats

    def beyond(self, level: int) -> float:
        """Return what all the levels above one add on average."""
        return float(self.mean[level + 1 :].sum())

    def grown(self, values: Floats, level: int, draws: Floats) -> Floats:
        """Return values of the level below, one level later."""
        centre = self.centre[level]
        if math.isnan(centre):
            centre = values.mean()
        drift = self.mean[level] + (self.slope[level] - 1.0) * (values - centre)
        grown: Floats = values + drift + self.sd[level] * draws
        return grown


class Results:
    """The value of each trial at each level that it reached."""

    def __init__(self, levels: int) -> None:
        self.at: list[dict[TrialId, float]] = [{} for _ in range(levels)]
        self.failed = 0
        self._pairs: list[list[tuple[float, float]]] = [[] for _ in range(levels)]

    def record(self, trial: TrialId, level: int, value: float) -> None:
        """Take note of a trial that has reached a level."""
        self.at[level][trial] = value
        if level > 0 and trial in self.at[level - 1]:
            self._pairs[level].append((self.at[level - 1][trial], value))

    def table(self) -> Floats:
        """Return the values by trial (rows) and level (columns), nan where it wasn't reached.

        Those that failed come last, with the worst value at the first level.
        """
        rows = {trial: row for row, trial in enumerate(self.at[0])}
        table = np.full((len(rows) + self.failed, len(self.at)), np.nan)
        for level, values in enumerate(self.at):
            for trial, value in values.items():
                if trial in rows:
                    table[rows[trial], level] = value
        table[len(rows) :, 0] = FAILED
        return table

    def spread(self) -> float:
        """Return the deviation among the better half of the first level."""
        return deviation(better_half(np.array(list(self.at[0].values()))))

    def growth(self) -> Growth:
        """Return what each level adds, shrunk to what those below suggest where little is known."""
        count = len(self.at)
        mean, sd = np.zeros(count), np.zeros(count)
        slope, centre = np.ones(count), np.full(count, np.nan)
        base = self.spread() if len(self.at[0]) > 1 else 1.0
        guess = (FIRST * base + 1e-9, FIRST * base + 1e-9, SLOPE)
        means: list[float] = []
        sds: list[float] = []
        for level in range(1, count):
            pairs = self._pairs[level]
            found = _fitted(pairs, guess) if pairs else (math.nan, *guess)
            centre[level], mean[level], sd[level], slope[level] = found
            if len(pairs) > 2:
                means.append(mean[level])
                sds.append(sd[level])
            decay = _decay(means)
            guess = (mean[level] * decay, sd[level] * _decay(sds), 1 - (1 - slope[level]) * DECAY)
        return Growth(mean, slope, centre, sd)


def better_half(values: Floats) -> Floats:
    """Return the better half of the values, those of failed trials left out."""
    half: Floats = np.sort(values)[len(values) // 2 :]
    return half[half > FAILED / 2]


def deviation(values: Floats) -> float:
    """Return the standard deviation; 0 for less than two values."""
    return float(values.std()) if len(values) > 1 else 0.0


def _fitted(
    pairs: Sequence[tuple[float, float]], guess: tuple[float, float, float]
) -> tuple[float, float, float, float]:
    """Return centre, mean, deviation and slope of measured pairs, shrunk to the guess.

    Ridge regression of the later value on the earlier; the guess weighs as two pairs.
    """
    before, after = _usual(np.array(pairs))
    mean, sd, slope = guess
    weight = len(pairs) / (len(pairs) + 2.0)
    centre = float(before.mean())
    apart = before - centre
    ridge = 4 * sd**2 + 1e-12
    product = float((apart * (after - after.mean())).sum())
    fitted = min(1.5, max(0.0, (product + ridge * slope) / (float((apart**2).sum()) + ridge)))
    gains = after - before
    rest = gains - gains.mean() - (fitted - 1) * apart
    spread = math.sqrt((float((rest**2).sum()) + 2 * sd**2) / (len(before) + 2))
    return centre, weight * float(gains.mean()) + (1 - weight) * mean, spread, fitted


def _usual(pairs: Floats) -> tuple[Floats, Floats]:
    """Return the pairs without those of trials that broke down."""
    gains = pairs[:, 1] - pairs[:, 0]
    if len(gains) > 4:
        off = np.abs(gains - np.median(gains))
        pairs = pairs[off < _ODD * (1.5 * np.median(off) + 1e-12)]
    return pairs[:, 0], pairs[:, 1]


def _decay(measured: Sequence[float]) -> float:
    """Return how much smaller each level's figure is than the one below: measured, and guessed."""
    positive = [each for each in measured if each > 0]
    steps = len(positive) - 1
    if steps < 1:
        return DECAY
    ratio = max(positive[-1] / positive[0], 1e-9)
    return min(0.9, max(0.3, math.exp((math.log(ratio) + math.log(DECAY)) / (steps + 1))))


def ranked(values: Mapping[TrialId, float]) -> list[TrialId]:
    """Return the trials, the best first."""
    return sorted(values, key=lambda trial: (-values[trial], trial))
