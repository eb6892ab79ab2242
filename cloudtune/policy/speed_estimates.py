"""The real speed of a run, learned while it runs: epochs, by width and trial, and delays.

    seconds of an epoch = the profile's at the width  x  the width's factor  x  the trial's pace

The paces are learned at the width that a run first trains at, and absorb the profile's error there.
The factors are learned when trials continue or begin at another width. The profile is the prior: a
measured width replaces the profile's; between two measured widths the factor is interpolated; and
beyond the widest (or narrowest) each doubling is expected to be off by as much as those that were
seen, times d / (d + 1) after d doublings. Published figures are of another program: they count as
off by `DOUBT` in one more doubling. A type that nothing has trained on takes the factors of one
with the same GPU, if its profile only follows from another type's (`ScalingProfile.is_prior`).

Delays (launch, boot, start, resize) are means of what was seen, with the profile's as one more.
"""

import bisect
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias, get_args

from cloudtune.model.fleet import Rented
from cloudtune.model.plans import Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.scaling import ASSUMED, PUBLISHED, Delay, ScalingProfile
from cloudtune.model.trial import TrialId, Width

Place: TypeAlias = tuple[str, Width]  # instance type and width

# How many times longer an epoch of another program's profile may take at each doubling of the
# width. A share of 1 % more dollars insures a run against that (docs/benchmarks.md).
DOUBT = 1.15
# The weight of the newest ratio in an average, once there are more than five.
WEIGHT = 0.2
# The usual time of saving is the median of this many epochs, of all trials.
_SAVINGS = 15
# The delays that a run sees.
_DELAYS: tuple[Delay, ...] = get_args(Delay)
# How much the paces of trials differ, as a relative deviation: it separates pace from noise.
APART = 0.1


@dataclass
class _Average:
    """The exponentially weighted mean of ratios; for the first few, the plain mean."""

    value: float = 1.0
    count: int = 0

    def note(self, ratio: float) -> None:
        """Record measured against expected."""
        self.count += 1
        self.value += max(WEIGHT, 1 / self.count) * (ratio - self.value)


def _shrink(own: float, trust: float, mean: float) -> float:
    """Return a trial's estimated pace: between its own and the `mean` of all trials."""
    return mean + (own - mean) * trust


class _Slowest:
    """The slowest pace among some trials, updated as their epochs come in.

    Each epoch changes the mean, and with it every estimated pace. But among trials with the same
    trust, the one with the slowest own pace is the slowest, whatever the mean.
    """

    def __init__(self, trials: tuple[TrialId, ...]) -> None:
        self.trials = trials
        self.unseen = set(trials)
        self._seen: dict[TrialId, tuple[float, float]] = {}  # trust and own pace
        self._by_trust: dict[float, list[float]] = {}  # own paces, ascending

    def note(self, trial: TrialId, own: float, trust: float) -> None:
        """Record a trial's own pace, if it is one of these."""
        if trial in self._seen:
            before, pace = self._seen[trial]
            paces = self._by_trust[before]
            del paces[bisect.bisect_left(paces, pace)]
            if not paces:
                del self._by_trust[before]
        elif trial not in self.unseen:
            return
        self.unseen.discard(trial)
        self._seen[trial] = trust, own
        bisect.insort(self._by_trust.setdefault(trust, []), own)

    def pace(self, mean: float) -> float:
        """Return the slowest pace, given the mean of all trials; 1 if there are none."""
        paces = [_shrink(owns[-1], trust, mean) for trust, owns in self._by_trust.items()]
        return max([*paces, mean] if self.unseen else paces, default=1.0)


class SpeedEstimates:
    """The paces of trials and the factors of widths, updated epoch by epoch.

    `gpus` are the GPU models by instance type.
    """

    def __init__(self, gpus: Mapping[str, str] | None = None) -> None:
        self._gpus = gpus or {}
        self._all = _Average()
        self._paces: dict[TrialId, _Average] = {}
        self._noise: dict[TrialId, float] = {}  # relative variance of an epoch, over that of paces
        self._factors: dict[Place, _Average] = {}
        self._home: dict[TrialId, Place] = {}
        self._reference: Place | None = None
        self._curves: dict[str, dict[Width, float]] = {}
        self._slowest = _Slowest(())
        self._asked: Sequence[TrialId] | None = None  # the trials of the last `pace`, for `_answer`
        self._answer = 1.0
        self._savings: deque[float] = deque(maxlen=_SAVINGS)

    def note(
        self,
        trial: TrialId,
        profile: ScalingProfile,
        width: Width,
        seconds: float,
        saving: float = 0.0,
    ) -> None:
        """Record the seconds of an epoch, `saving` of them for its checkpoint.

        A storage that stalls says nothing about how fast a trial trains: if the epoch took longer
        than expected, saving beyond the usual doesn't count.
        """
        expected = profile.epoch_seconds(width) if width in profile.epoch else 0.0
        if expected <= 0 or seconds <= 0:  # its time is unknown
            return
        self._asked = None
        usual = median(self._savings) if self._savings else 0.0
        self._savings.append(saving)
        seconds = max(seconds - max(0.0, saving - usual), min(seconds, expected))
        ratio = seconds / expected
        place = (profile.instance_type, width)
        if self._reference is None:
            self._reference = place
            self._curves.clear()
        home = self._home.setdefault(trial, place)
        pace = self._paces.get(trial)
        if home != place and pace is not None and pace.value > 0:
            self._note_factor(place, ratio / pace.value)
        elif place != self._reference:
            # A trial that begins at another place: on average the place explains the difference.
            self._note_factor(place, ratio / self._all.value)
        self._all.note(ratio / self._factor(place))
        if home == place:
            pace = pace or self._paces.setdefault(trial, _Average())
            pace.note(ratio / self._factor(place))
            deviation = profile.epoch[width].sd / expected
            self._noise[trial] = (deviation / APART) ** 2
            self._slowest.note(trial, pace.value, self._trust(trial))

    def _note_factor(self, place: Place, ratio: float) -> None:
        self._factors.setdefault(place, _Average()).note(ratio)
        self._curves.clear()

    def _factor(self, place: Place) -> float:
        return self._factors[place].value if place in self._factors else 1.0

    def epoch_seconds(self, trial: TrialId | None, rentable: Rentable, width: Width) -> float:
        """Return the expected seconds of an epoch, with what spot interruptions cost on average.

        The trial's own epochs say how fast it is; without any (or for None), those of all trials.
        """
        pace = self._paces[trial].value if trial in self._paces else self._all.value
        factor = self._width_factor(rentable.profile, width) if self._factors else 1.0
        return rentable.epoch_seconds(width) * factor * pace

    def pace(self, trials: Sequence[TrialId]) -> float:
        """Return the slowest pace of some trials, for which the others wait; 1 if unknown.

        A few noisy epochs count only in part. Trials that have yet to begin have the mean pace of
        those that have.
        """
        if trials is not self._asked:  # a look at the rest asks once per offer
            self._asked = trials
            self._answer = max(map(self._pace, trials), default=1.0)
        return self._answer

    def _pace(self, trial: TrialId) -> float:
        if trial not in self._paces:
            return self._all.value
        return _shrink(self._paces[trial].value, self._trust(trial), self._all.value)

    def _trust(self, trial: TrialId) -> float:
        count = self._paces[trial].count
        return count / (count + self._noise.get(trial, 0.0))

    def slowest_epoch(
        self, trials: tuple[TrialId, ...], profile: ScalingProfile, width: Width
    ) -> float:
        """Return the seconds of an epoch of the slowest of these trials, as in `corrected`."""
        if self._slowest.trials is not trials:
            self._slowest = _Slowest(trials)
            for trial in self._slowest.unseen & self._paces.keys():
                self._slowest.note(trial, self._paces[trial].value, self._trust(trial))
        pace = self._slowest.pace(self._all.value)
        return profile.epoch[width].mean * (pace * self._width_factor(profile, width))

    def corrected(self, rentable: Rentable, trials: Sequence[TrialId]) -> Rentable:
        """Return a rentable with the expected epochs of these trials."""
        profile = rentable.profile
        pace = self.pace(trials)
        epoch = {
            width: epoch.scale(pace * self._width_factor(profile, width))
            for width, epoch in profile.epoch.items()
        }
        return replace(rentable, profile=replace(profile, epoch=epoch))

    # ---- speed by width ----------------------------------------------------------------------

    def _width_factor(self, profile: ScalingProfile, width: Width) -> float:
        """Return the factor on the profile's epoch seconds at a width."""
        curve = self._curves.setdefault(profile.instance_type, {})
        if width not in curve:
            seen = self._observed_factors(profile.instance_type)
            if not seen and profile.is_prior:
                seen = self._seen_on_gpu(self._gpus.get(profile.instance_type, ""))
            anothers = profile.provenance.origin in {PUBLISHED, ASSUMED}
            doubt = math.log(DOUBT) if anothers else 0.0
            curve[width] = self._interpolate(seen, width, doubt)
        return curve[width]

    def _observed_factors(self, kind: str) -> dict[Width, float]:
        """Return the factors of the widths used so far on an instance type, ascending."""
        factors = {width: f.value for (name, width), f in self._factors.items() if name == kind}
        if self._reference is not None and self._reference[0] == kind:
            factors[self._reference[1]] = 1.0
        return dict(sorted(factors.items()))

    def _seen_on_gpu(self, gpu: str) -> dict[Width, float]:
        """Return the factors of the type with a GPU model on which most widths were used."""
        kinds = {name for name, _ in self._factors}
        if self._reference is not None:
            kinds.add(self._reference[0])
        alike = [
            self._observed_factors(kind) for kind in sorted(kinds) if self._gpus.get(kind) == gpu
        ]
        return max(alike, key=len, default={})

    def _interpolate(self, seen: Mapping[Width, float], width: Width, doubt: float) -> float:
        if width in seen:
            return seen[width]
        narrower = max((trained for trained in seen if trained < width), default=None)
        wider = min((trained for trained in seen if trained > width), default=None)
        if narrower is None and wider is None:  # nothing has trained on this type
            reference = 1.0 if self._reference is None else self._reference[1]
            return _beyond(1.0, reference, width, self._steepness(doubt))
        if narrower is None or wider is None:
            edge = wider if narrower is None else narrower
            assert edge is not None
            return _beyond(seen[edge], edge, width, self._steepness(doubt))
        share = math.log(width / narrower) / math.log(wider / narrower)
        return math.exp((1 - share) * math.log(seen[narrower]) + share * math.log(seen[wider]))

    def _steepness(self, doubt: float) -> float:
        """Return the growth of the factor's logarithm per doubling of the width.

        Taken from the widest span of whole GPUs seen on any type, with `doubt` as one more
        doubling.
        """
        kinds = {name for name, _ in self._factors}
        spans = [self._span(kind) for kind in sorted(kinds)]
        rise, doublings = max(spans, key=lambda span: span[1], default=(0.0, 0.0))
        return (rise + doubt) / (doublings + 1)

    def _span(self, kind: str) -> tuple[float, float]:
        """Return the rise of the factor's logarithm on a type, and the doublings it spans."""
        whole = {width: f for width, f in self._observed_factors(kind).items() if width >= 1}
        if len(whole) <= 1:
            return 0.0, 0.0
        first = min(whole)
        last = max(whole)
        return math.log(whole[last] / whole[first]), math.log2(last / first)


def _beyond(factor: float, edge: Width, width: Width, steepness: float) -> float:
    """Return the factor of a width beyond those seen, the outermost of which is `edge`."""
    doublings = math.log2(max(1.0, width) / max(1.0, edge))
    return factor * math.exp(steepness * doublings)


class DelayEstimates:
    """The real delays of launching, booting, starting and resizing, by instance type.

    A start is timed from `asks`, a resize from `stops` to the end and again from `asks`.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Delay], tuple[float, int]] = {}
        self._asked: dict[TrialId, float] = {}
        self._stopping: dict[TrialId, float] = {}
        self._stopped: dict[TrialId, float] = {}  # seconds that its last stop took
        self._expected: dict[str, Mapping[str, Any]] = {}  # by instance type
        self.longest_join: dict[str, float] = {}  # seconds from request to join, by type

    def note(self, kind: str, delay: Delay, seconds: float) -> None:
        total, count = self._seen.get((kind, delay), (0.0, 0))
        self._seen[kind, delay] = (total + max(0.0, seconds), count + 1)
        self._expected.pop(kind, None)

    def note_join(self, rented: Rented, at: float) -> None:
        """Record that an instance takes trials from now on."""
        if rented.launched_at is not None and not rented.joined:
            kind = rented.offer.instance_type.name
            self.note(kind, "launch", rented.launched_at - rented.requested_at)
            self.note(kind, "boot", at - rented.launched_at)
            took = at - rented.requested_at
            self.longest_join[kind] = max(took, self.longest_join.get(kind, 0.0))

    def asks(self, trial: TrialId, at: float) -> None:
        self._asked[trial] = at

    def stops(self, trial: TrialId, at: float) -> None:
        self._stopping[trial] = at

    def note_stop(self, trial: TrialId, at: float) -> None:
        """Record that a trial's workers have ended."""
        self._stopped[trial] = at - self._stopping.pop(trial, at)

    def note_start(self, trial: TrialProgress, at: float) -> float:
        """Record that a trial trains; return the seconds since its start was requested."""
        setup = at - self._asked[trial.id]
        stopped = self._stopped.pop(trial.id, None)
        if trial.offer is not None:
            # A trial that was lost or failed had no stop, so this is a start and not a resize.
            delay: Delay = "start" if stopped is None or not trial.epoch else "resize"
            self.note(trial.offer.instance_type.name, delay, setup + (stopped or 0.0))
        return setup

    def corrected(self, rentable: Rentable) -> Rentable:
        """Return a rentable with the expected delays."""
        changed = self.expected_delays(rentable.profile)
        if not changed:
            return rentable
        return replace(rentable, profile=replace(rentable.profile, **changed))

    def expected_delays(self, profile: ScalingProfile) -> Mapping[str, Any]:
        """Return the delays of an instance type that were seen in this run, by their names."""
        kind = profile.instance_type
        if kind not in self._expected:
            self._expected[kind] = {
                delay: replace(getattr(profile, delay), mean=self.mean(profile, delay))
                for delay in _DELAYS
                if (kind, delay) in self._seen
            }
        return self._expected[kind]

    def mean(self, profile: ScalingProfile, delay: Delay) -> float:
        """Return the expected seconds of a delay, given an instance type's profile."""
        prior: float = getattr(profile, delay).mean
        total, count = self._seen.get((profile.instance_type, delay), (0.0, 0))
        return (prior + total) / (count + 1)
