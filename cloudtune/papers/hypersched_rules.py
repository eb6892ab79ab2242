"""HyperSched's rules: where its rungs cut off, when nothing new may start, what a start costs.

Source: Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a
Deadline" (SoCC 2019), by notes on its published code; docs/strategies.md says where we differ.
"""

import bisect
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import TrialId, Width
from cloudtune.strategies.base import View


@dataclass(frozen=True)
class Switches:
    """HyperSched's rules, which can be changed one by one; the defaults are as published.

    `use_pausing`: a trial that isn't good enough is paused, not ended. `atom`: the GPUs with which
    a trial starts and by which it grows; None: one, or the narrowest width. `allocation_grid`:
    above this many atoms a trial has only multiples of it.

    The others are the paper's ablations, to see what each rule is worth. `no_speculation`: a trial
    is judged once per rung, on arrival, as in ASHA (the best floor(n / eta) continue).
    `ignore_overhead`: set-ups count as free. `no_job_limit`: new trials may always start.
    `fixed_exploration`: they may until `exploration_ratio` of the deadline. `assume_linear`: k GPUs
    count as k times as fast.
    """

    use_pausing: bool = True
    atom: int | None = None
    allocation_grid: int | None = None
    no_speculation: bool = False
    ignore_overhead: bool = False
    no_job_limit: bool = False
    fixed_exploration: bool = False
    exploration_ratio: float = 1.0
    assume_linear: bool = False


AS_PUBLISHED = Switches()


def open_rungs(min_epochs: int, max_epochs: int, eta: int) -> tuple[int, ...]:
    """Return the epochs of the rungs: min_epochs * eta**k, up to the first past max_epochs."""
    epochs = [min_epochs]
    while epochs[-1] <= max_epochs:
        epochs.append(epochs[-1] * eta)
    return tuple(epochs)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of ascending numbers, to the last digit as numpy.percentile does.

    The published code uses 66.66666666666667, so the fourth of 10 scores fails its own cut-off. To
    decide as that code does, a cut-off has to round as it does.
    """
    at = (len(ordered) - 1) * (percent / 100)
    below = int(at)
    share = at - below
    low = ordered[below]
    high = ordered[below + 1] if share else low
    gap = high - low
    if math.isinf(gap):
        return high
    return low + gap * share if share < 0.5 else high - gap * (1 - share)


class Cutoff:
    """The records at one rung, of scores of which more is better, and what has to be reached.

    To pass, a score has to reach the 100 (1 - 1/eta) percentile of the records so far (any score
    passes with one record); with `ranked`, to be among the best floor(n / eta) of n. Trials that
    rest here are paused, and got no further.
    """

    def __init__(self, epoch: int, eta: int, *, ranked: bool = False) -> None:
        self.epoch = epoch
        self._eta = eta
        self._ranked = ranked
        self._ordered: list[float] = []
        self._records: dict[TrialId, tuple[float, int]] = {}
        self._resting: list[tuple[float, int, TrialId]] = []

    def __contains__(self, trial: object) -> bool:
        return trial in self._records

    def record(self, trial: TrialId, score: float) -> None:
        """Record the score of a trial that arrives."""
        self._records[trial] = (-score, len(self._records))
        bisect.insort(self._ordered, score)

    def score(self, trial: TrialId) -> float:
        """Return the record of a trial."""
        return -self._records[trial][0]

    @property
    def value(self) -> float | None:
        """The score that has to be reached; None with fewer than two records."""
        if len(self._ordered) < 2:
            return None
        return percentile(self._ordered, (1 - 1 / self._eta) * 100)

    def passes(self, trial: TrialId) -> bool:
        """Whether the record of a trial is good enough now."""
        score = self.score(trial)
        if self._ranked:
            better = len(self._ordered) - bisect.bisect_right(self._ordered, score)
            return better < len(self._ordered) // self._eta
        value = self.value
        return value is None or score >= value

    def rest(self, trial: TrialId) -> None:
        """Let a trial wait here."""
        bisect.insort(self._resting, (*self._records[trial], trial))

    def leave(self, trial: TrialId) -> None:
        """Take a trial off that may wait here."""
        key = (*self._records[trial], trial)
        at = bisect.bisect_left(self._resting, key)
        if at < len(self._resting) and self._resting[at] == key:
            del self._resting[at]

    def resting(self) -> Iterator[TrialId]:
        """Yield the trials that wait here, best first; none may come or leave meanwhile."""
        return (trial for _, _, trial in self._resting)


class Median:
    """The median of numbers that come one by one."""

    def __init__(self) -> None:
        self._low: list[float] = []  # negated: the greatest first
        self._high: list[float] = []

    def add(self, number: float) -> None:
        """Record a number."""
        heapq.heappush(self._high, -heapq.heappushpop(self._low, -number))
        if len(self._high) > len(self._low):
            heapq.heappush(self._low, -heapq.heappop(self._high))

    @property
    def value(self) -> float | None:
        """The median; None of no number."""
        if not self._low:
            return None
        low = -self._low[0]
        return low if len(self._low) > len(self._high) else (low + self._high[0]) / 2


class Overhead:
    """The cost of restarting a trial: the 90th percentile of the set-ups so far, in seconds."""

    def __init__(self, *, ignored: bool = False) -> None:
        self._ignored = ignored
        self._ordered: list[float] = []
        self._seen = 0

    def seconds(self, view: View) -> float:
        """Return the estimate; 0 before the first set-up and with `ignore_overhead`."""
        if self._ignored:
            return 0.0
        setups = view.setups
        for at in range(self._seen, len(setups)):
            bisect.insort(self._ordered, setups[at])
        self._seen = len(setups)
        return percentile(self._ordered, 90) if self._ordered else 0.0


class Admission:
    """Whether a trial that doesn't run may start now: if it could still become the winner.

    It may if time_left >= min((L - s) * eta, max_epochs * t1). L are the seconds of the trial that
    has trained longest (Tune's `time_total_s`, without set-ups), s a set-up, and t1 the median
    epoch on one atom.
    """

    def __init__(self, *, max_epochs: int, eta: int, atom: Width, switches: Switches) -> None:
        self._max_epochs = max_epochs
        self._eta = eta
        self._atom = atom
        self._switches = switches
        self._overhead = Overhead(ignored=switches.ignore_overhead)
        self._trained: dict[TrialId, float] = {}  # seconds
        self._longest = 0.0
        self._epoch = Median()

    def note(self, trial: TrialProgress) -> None:
        """Record an epoch."""
        seconds = self._trained.get(trial.id, 0.0) + trial.epoch_seconds
        self._trained[trial.id] = seconds
        self._longest = max(self._longest, seconds)
        if trial.width == self._atom:
            self._epoch.add(trial.epoch_seconds)

    def admits(self, view: View) -> bool:
        """Whether a trial may start now."""
        if self._switches.no_job_limit:
            return True
        return view.seconds_left >= self._least(view)

    def _least(self, view: View) -> float:
        """Return the seconds that must be left."""
        if self._switches.fixed_exploration:
            return (view.limits.deadline or 0.0) * (1 - self._switches.exploration_ratio)
        longest = (self._longest - self._overhead.seconds(view)) * self._eta
        epoch = self._epoch.value
        return longest if epoch is None else min(longest, self._max_epochs * epoch)
