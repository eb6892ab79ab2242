"""Asynchronous successive halving (ASHA), of the promotion and of the stopping type.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), whose
Algorithm 2 is the promotion type. The stopping type never pauses a trial. Ray Tune and Syne Tune
have one too, with a percentile as the cut-off: benchmarks/decisions.py shows where they differ.
"""

import bisect
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Mode, TrialId
from cloudtune.strategies.base import Decision, Go, Sampler, Task, TrialGroup, Verdict, View
from cloudtune.strategies.rungs import Judging, NewTrials, Rung, at_rest, cap_epoch, rung_epochs

Kind: TypeAlias = Literal["promotion", "stopping"]


class Asha(Judging):
    """Promotes a trial as soon as it is among the best 1/eta of its rung, without barriers.

    The best 1/eta are the best floor(n / eta) of the n results so far. A trial that isn't among
    them on arrival is cut by the stopping type, unless fewer than eta have arrived; the promotion
    type pauses it, and promotes it once it is among them.
    """

    anytime = True

    def __init__(
        self,
        sampler: Sampler,
        *,
        min_epochs: int,
        max_epochs: int,
        eta: int,
        mode: Mode,
        kind: Kind = "promotion",
    ) -> None:
        self.name = "asha" if kind == "promotion" else "asha-stopping"
        self._new = NewTrials(sampler)
        self._eta = eta
        self._stops = kind == "stopping"
        self._epochs = rung_epochs(min_epochs, max_epochs, eta)
        self._rungs = [Rung(mode) for _ in self._epochs]

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return promotions, those to the highest rung first, then new trials."""
        groups: list[TrialGroup] = []
        for level, name in self._promotable(view):
            if len(groups) == room:
                break
            trial = view.trials[name].trial
            task = Task(trial, cap_epoch(trial, self._epochs[level + 1]))
            groups.append(TrialGroup(f"rung {level + 1}", (task,)))
        new = self._new.tasks(view, room - len(groups), self._epochs[0])
        if new:
            groups.append(TrialGroup("rung 0", new))
        return groups

    def _promotable(self, view: View) -> Iterator[tuple[int, TrialId]]:
        """Yield paused trials that are among the best 1/eta of their rung, from the top down."""
        for level in range(len(self._rungs) - 2, -1, -1):
            rung = self._rungs[level]
            for trial in rung.promotable(len(rung) // self._eta):
                status = view.trials[trial].status
                if status == "parked":
                    yield level, trial
                elif status != "stopping":
                    rung.leave(trial)  # it continues already, or has failed

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Record a result; the trial continues if it would be the next to be promoted."""
        self._new.learn(trial)
        level = bisect.bisect_left(self._epochs, trial.epoch)
        rung = self._rungs[level]
        goal = cap_epoch(trial.trial, self._epochs[level])
        if trial.epoch < goal:
            return Go(goal)
        again = trial.id in rung  # it fell back behind a rung that it had passed
        if not again:
            self._record(level, trial)
        if trial.epoch >= cap_epoch(trial.trial, self._epochs[-1]):
            return Verdict.FINISH
        if again or self._goes_on(view, level, trial.id):
            return Go(cap_epoch(trial.trial, self._epochs[level + 1]))
        if self._stops:
            return Verdict.CUT
        rung.rest(trial.id)
        return Verdict.PAUSE

    def _record(self, level: int, trial: TrialProgress) -> None:
        self._rungs[level].record(trial.id, trial.metric)
        if level > 0:
            self._rungs[level - 1].leave(trial.id)

    def _goes_on(self, view: View, level: int, trial: TrialId) -> bool:
        """Whether a trial is among the best 1/eta, with no paused trial ahead of it."""
        rung = self._rungs[level]
        if rung.place(trial) >= len(rung) // self._eta:
            return self._stops and len(rung) < self._eta
        first = next(self._promotable(view), None)
        if first is None or first[0] < level:
            return True
        return first[0] == level and rung.place(first[1]) > rung.place(trial)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Record that a trial failed; it leaves no result at the rung that it didn't reach."""
        self._new.learn_failure(trial)

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Do nothing: its results stay at the rungs that it reached."""

    def done(self, view: View) -> bool:
        """Whether nothing runs, no new trial is left and none can be promoted any more."""
        if view.running or not self._new.dry(view) or not at_rest(view):
            return False
        return next(self._promotable(view), None) is None
