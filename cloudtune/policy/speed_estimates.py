"""How fast training really is, learned as a run goes on: seconds of an epoch, by width and trial.

    seconds of an epoch = the profile's at the width  x  the width's factor  x  the trial's pace

The paces are learned at the width that a trial first trains at, and there take up whatever the
profile has wrong; the factors, where trials of a known pace go on at another width. So the
measured widths replace the profile's, and the others are scaled along with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtune.plan import Rentable
    from cloudtune.scaling import ScalingProfile
    from cloudtune.trial import TrialId, Width

    Place: TypeAlias = tuple[str, Width]  # instance type and width

WEIGHT = 0.2
"""What the newest ratio counts in an average, once there are more than five."""


@dataclass
class _Average:
    """The exponentially weighted mean of ratios; of the first few the plain mean."""

    value: float = 1.0
    count: int = 0

    def note(self, ratio: float) -> None:
        """Take note of measured against expected."""
        self.count += 1
        self.value += max(WEIGHT, 1 / self.count) * (ratio - self.value)


class SpeedEstimates:
    """The paces of trials and the factors of widths, kept up to date epoch by epoch."""

    def __init__(self) -> None:
        self._all = _Average()
        self._paces: dict[TrialId, _Average] = {}
        self._factors: dict[Place, _Average] = {}
        self._home: dict[TrialId, Place] = {}

    def note(self, trial: TrialId, profile: ScalingProfile, width: Width, seconds: float) -> None:
        """Take note of the seconds that an epoch took."""
        expected = profile.epoch_seconds(width) if width in profile.epoch else 0.0
        if expected <= 0 or seconds <= 0:  # nobody knows what it took
            return
        ratio, place = seconds / expected, (profile.instance_type, width)
        self._all.note(ratio / self._factor(place))
        pace = self._paces.setdefault(trial, _Average())
        if self._home.setdefault(trial, place) == place:
            pace.note(ratio / self._factor(place))
        elif pace.value > 0:
            self._factors.setdefault(place, _Average()).note(ratio / pace.value)

    def _factor(self, place: Place) -> float:
        return self._factors[place].value if place in self._factors else 1.0

    def epoch_seconds(self, trial: TrialId | None, rentable: Rentable, width: Width) -> float:
        """Return the expected seconds of an epoch, with what spot interruptions cost on average.

        The trial's own epochs say how fast it is; without any (or for None), those of all trials.
        """
        pace = self._paces[trial].value if trial in self._paces else self._all.value
        factor = self._curve(rentable.profile)[width] if self._factors else 1.0
        return rentable.epoch_seconds(width) * factor * pace

    def pace(self, trials: Iterable[TrialId]) -> float:
        """Return the slowest pace of some trials, for which the others wait; 1 if unknown."""
        return max((self._paces[t].value for t in trials if t in self._paces), default=1.0)

    def corrected(self, rentable: Rentable, trials: Iterable[TrialId]) -> Rentable:
        """Return a rentable with the epochs that these trials can be expected to have there."""
        profile, pace = rentable.profile, self.pace(trials)
        scales = {width: pace * factor for width, factor in self._curve(profile).items()}
        epoch = {
            width: replace(m, mean=m.mean * scales[width], sd=m.sd * scales[width])
            for width, m in profile.epoch.items()
        }
        return replace(rentable, profile=replace(profile, epoch=epoch))

    def _curve(self, profile: ScalingProfile) -> dict[Width, float]:
        """Return the factor on the profile's epoch seconds, by width.

        A width that this run hasn't trained at gets the factor of the next narrower one that it
        has.
        """
        factor, curve = 1.0, {}
        for width in profile.widths:
            place = (profile.instance_type, width)
            factor = self._factors[place].value if place in self._factors else factor
            curve[width] = factor
        return curve
