"""HyperSched: exploit more and more as a deadline comes near, and give the best the most GPUs.

Source: Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a
Deadline" (SoCC 2019), by notes on its published code. Here stands the half that says which trials
train; `planners/allocators/hypersched.py` says how wide.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cloudtune.strategies.base import Go, Task, TrialGroup, Verdict
from cloudtune.strategies.hypersched_rules import AS_PUBLISHED, Admission, Cutoff, open_rungs
from cloudtune.strategies.rungs import Judging, NewTrials, at_rest, capped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cloudtune.progress import TrialProgress
    from cloudtune.strategies.base import Decision, Sampler, View
    from cloudtune.strategies.hypersched_rules import Switches
    from cloudtune.trial import Mode, Trial, TrialId, Width


class HyperSched(Judging):
    """Pausing ASHA with one bracket, whose trials are judged anew at each of their results.

    At every result each rung that the trial has passed is looked at: it is paused where its score
    there is below what the rung asks for by now. Room goes to paused trials that no rung would
    pause any more (the highest rung first), then to new ones, then to any that are paused. Once
    there is too little time for anything that doesn't run (`Admission`), whatever doesn't run has
    ended. `atom` is how many GPUs a trial starts with.
    """

    anytime = True
    name = "hypersched"

    def __init__(
        self,
        sampler: Sampler,
        *,
        min_epochs: int,
        max_epochs: int,
        eta: int,
        mode: Mode,
        atom: Width = 1.0,
        use_pausing: bool = True,
        switches: Switches = AS_PUBLISHED,
    ) -> None:
        self._new = NewTrials(sampler)
        self._last = max_epochs
        self._sign = 1.0 if mode == "max" else -1.0
        self._pauses = use_pausing
        self._once = switches.no_speculation
        self._admission = Admission(max_epochs=max_epochs, eta=eta, atom=atom, switches=switches)
        self._rungs = [
            Cutoff(epoch, eta, ranked=self._once)
            for epoch in open_rungs(min_epochs, max_epochs, eta)
        ]
        self._closed = False
        self._furthest: dict[TrialId, int] = {}
        self._top: dict[TrialId, Cutoff] = {}

    # ---- what may start ------------------------------------------------------------------

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return promotions, then new trials, then what else is paused; or nothing, for good."""
        if not self._open(view):
            return ()
        promoted = list(itertools.islice(self._promotable(view), room))
        new = self._new.peek(view, room - len(promoted))
        others = (trial for trial in self._paused(view) if trial not in promoted)
        rest = list(itertools.islice(others, room - len(promoted) - len(new)))
        wanted = {
            "promoted": [view.trials[name].trial for name in promoted],
            "new": new,
            "paused": [view.trials[name].trial for name in rest],
        }
        return [self._group(name, trials) for name, trials in wanted.items() if trials]

    def _group(self, name: str, trials: Iterable[Trial]) -> TrialGroup:
        return TrialGroup(name, tuple(Task(trial, capped(trial, self._last)) for trial in trials))

    def _open(self, view: View) -> bool:
        """Whether a trial may start; once none may, none ever may again."""
        self._closed = self._closed or not self._admission.admits(view)
        return not self._closed

    def _promotable(self, view: View) -> Iterator[TrialId]:
        """Yield paused trials that no rung would pause now, those of the highest rung first."""
        for rung in reversed(self._rungs):
            for trial in self._resting(view, rung):
                if not rung.passes(trial):
                    break  # those after it did no better
                if self._once or self._stands(trial):
                    yield trial

    def _paused(self, view: View) -> Iterator[TrialId]:
        for rung in reversed(self._rungs):
            yield from self._resting(view, rung)

    def _resting(self, view: View, rung: Cutoff) -> Iterator[TrialId]:
        """Yield those that wait at a rung, the best first; those that have just begun don't."""
        return (name for name in rung.resting() if view.trials[name].status == "parked")

    def more(self, view: View, trials: int) -> str:
        """Try so many more, where the deadline admits new ones again."""
        self._closed = False
        return super().more(view, trials)

    # ---- who goes on ---------------------------------------------------------------------

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Pause a trial that a rung which it has passed would hold back now."""
        self._new.learn(trial)
        self._admission.note(trial)
        last = capped(trial.trial, self._last)
        self._leave(trial.id)
        if trial.epoch <= self._furthest.get(trial.id, 0):
            return Go(last)  # it trains again what was lost, and was judged then
        self._furthest[trial.id] = trial.epoch
        arrived = self._arrives(trial)
        if trial.epoch >= last:
            return Verdict.FINISH
        if (self._once and not arrived) or self._stands(trial.id):
            return Go(last)
        if self._closed or not self._pauses:
            return Verdict.CUT
        self._top[trial.id].rest(trial.id)
        return Verdict.PAUSE

    def _arrives(self, trial: TrialProgress) -> bool:
        """Record a trial at the rungs that it has now passed; says whether there are any."""
        arrived = False
        for rung in self._rungs:
            if rung.epoch <= trial.epoch and trial.id not in rung:
                assert trial.metric is not None
                rung.record(trial.id, self._sign * trial.metric)
                self._top[trial.id], arrived = rung, True
        return arrived

    def _stands(self, trial: TrialId) -> bool:
        """Whether a trial is good enough now: at every rung it passed, or judged once, the last."""
        if self._once:
            return self._top[trial].passes(trial)
        return all(rung.passes(trial) for rung in reversed(self._rungs) if trial in rung)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Learn that a trial failed; the records that it made stay."""
        self._new.learn_failure(trial)
        self._leave(trial.id)

    def _leave(self, trial: TrialId) -> None:
        if trial in self._top:
            self._top[trial].leave(trial)

    def done(self, view: View) -> bool:
        """Whether nothing runs and nothing may start, or nothing is left to start."""
        if view.running or not at_rest(view):
            return False
        if not self._open(view):
            return True
        return self._new.dry(view) and next(self._paused(view), None) is None
