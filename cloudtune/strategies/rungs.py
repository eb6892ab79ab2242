"""What strategies with rungs share: where the rungs stand, and who reached them how well."""

from __future__ import annotations

import bisect
from collections import deque
from typing import TYPE_CHECKING

from cloudtune.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.strategies.base import Sampler, View
    from cloudtune.trial import Mode, Trial, TrialId


def rung_epochs(min_epochs: int, max_epochs: int, eta: int) -> tuple[int, ...]:
    """Return the epochs of the rungs: min_epochs * eta**k below max_epochs, then max_epochs."""
    found, epoch = [], min_epochs
    while epoch < max_epochs:
        found.append(epoch)
        epoch *= eta
    return (*found, max_epochs)


class Rung:
    """The results at one rung, the best first; ties go by who came first."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._sorted: list[tuple[tuple[int, float], int, TrialId]] = []
        self._keys: dict[TrialId, tuple[tuple[int, float], int, TrialId]] = {}

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, trial: object) -> bool:
        return trial in self._keys

    def __iter__(self) -> Iterator[TrialId]:
        return (trial for _, _, trial in self._sorted)

    def record(self, trial: TrialId, metric: float | None) -> None:
        """Take note of a result; a second one of the same trial takes the first one's place."""
        order = len(self._keys)
        if trial in self._keys:
            old = self._keys[trial]
            order = old[1]
            del self._sorted[bisect.bisect_left(self._sorted, old)]
        key = (rank_key(self._mode, metric), order, trial)
        self._keys[trial] = key
        bisect.insort(self._sorted, key)

    def place(self, trial: TrialId) -> int:
        """Return how many did better."""
        return bisect.bisect_left(self._sorted, self._keys[trial])

    def best(self, count: int) -> list[TrialId]:
        """Return so many of the best."""
        return [trial for _, _, trial in self._sorted[:count]]


class NewTrials:
    """Trials that a sampler gave and that haven't begun; they are asked for as they are needed."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._waiting: deque[Trial] = deque()
        self._dry = False

    def peek(self, view: View, count: int) -> list[Trial]:
        """Return the next `count` trials, or as many as there are."""
        while self._waiting and self._waiting[0].id in view.trials:
            self._waiting.popleft()
        while len(self._waiting) < count and not self._dry:
            trial = self._sampler.ask()
            if trial is None:
                self._dry = True
            else:
                self._waiting.append(trial)
        return [self._waiting[n] for n in range(min(count, len(self._waiting)))]

    def dry(self, view: View) -> bool:
        """Whether there will never be another one."""
        return not self.peek(view, 1)
