"""Asynchronous successive halving (ASHA), of the promotion and of the stopping type.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), whose
Algorithm 2 is the promotion type; the stopping type is that of Ray Tune and Syne Tune.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.strategies.base import Go, Task, TrialGroup, Verdict
from cloudtune.strategies.rungs import NewTrials, Rung, rung_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.progress import TrialProgress
    from cloudtune.strategies.base import Decision, Sampler, View
    from cloudtune.trial import Mode, TrialId


class Asha:
    """Promotes a trial as soon as it is among the best 1/eta of its rung; no rung is waited for."""

    anytime = True

    def __init__(
        self, sampler: Sampler, *, min_epochs: int, max_epochs: int, eta: int, mode: Mode
    ) -> None:
        self.name = "asha"
        self._sampler = sampler
        self._new = NewTrials(sampler)
        self._eta = eta
        self._epochs = rung_epochs(min_epochs, max_epochs, eta)
        self._rungs = [Rung(mode) for _ in self._epochs]

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return promotions, those to the highest rung first, and then new trials."""
        groups: list[TrialGroup] = []
        for level, trial in self._promotable(view):
            if room == 0:
                break
            until = self._until(view.trials[trial], level + 1)
            groups.append(TrialGroup(f"rung {level + 1}", (Task(view.trials[trial].trial, until),)))
            room -= 1
        new = self._new.peek(view, room)
        if new:
            tasks = tuple(Task(trial, min(self._epochs[0], trial.epochs or 10**9)) for trial in new)
            groups.append(TrialGroup("rung 0", tasks))
        return groups

    def _until(self, trial: TrialProgress, level: int) -> int:
        return min(self._epochs[level], trial.trial.epochs or self._epochs[level])

    def _promotable(self, view: View) -> Iterator[tuple[int, TrialId]]:
        """Yield paused trials that are among the best 1/eta of their rung, from the top down."""
        for level in range(len(self._rungs) - 2, -1, -1):
            rung, above = self._rungs[level], self._rungs[level + 1]
            for trial in rung.best(len(rung) // self._eta):
                if trial not in above and view.trials[trial].status == "parked":
                    yield level, trial

    def judge(self, view: View, trial: TrialProgress) -> Decision:
        """Record a trial at its rung; it goes on if it would be the next to be promoted."""
        self._sampler.tell(trial.trial, trial.epoch, trial.metric)
        level = next(n for n, epoch in enumerate(self._epochs) if epoch >= trial.epoch)
        last = trial.trial.epochs or self._epochs[-1]
        if trial.epoch < min(self._epochs[level], last):
            return Go(self._until(trial, level))
        self._rungs[level].record(trial.id, trial.metric)
        if trial.epoch >= min(last, self._epochs[-1]):
            return Verdict.FINISH
        rung = self._rungs[level]
        if rung.place(trial.id) >= len(rung) // self._eta:
            return Verdict.PAUSE
        first = next(self._promotable(view), None)
        if first is not None and first[0] > level:
            return Verdict.PAUSE
        return Go(self._until(trial, level + 1))

    def ended(self, view: View, trial: TrialProgress) -> None:
        """Learn that a trial failed; it leaves no result at the rung that it didn't reach."""
        self._sampler.tell(trial.trial, trial.epoch, None)

    def retract(self, view: View) -> Mapping[TrialId, Verdict]:
        """Return none."""
        return {}

    def wake_at(self, view: View) -> float | None:
        """Return None: it decides at results alone."""
        return None

    def done(self, view: View) -> bool:
        """Whether nothing runs, nothing new is left and nobody can be promoted any more."""
        if view.running or not self._new.dry(view):
            return False
        waits = any(t.status == "waiting" for t in view.trials.values())
        return not waits and next(self._promotable(view), None) is None
