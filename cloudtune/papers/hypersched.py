"""HyperSched: exploit more and more as a deadline comes near, and give the best the most GPUs.

Source: Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a
Deadline" (SoCC 2019), by notes on its published code. This half decides which trials train;
`hypersched_widths.py` decides how wide.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import GPU_ROUNDING, Mode, Trial, TrialId, Width
from cloudtune.papers.hypersched_rules import (
    AS_PUBLISHED,
    Admission,
    Cutoff,
    Switches,
    open_rungs,
)
from cloudtune.strategies.base import Decision, Go, Sampler, Task, TrialGroup, Verdict, View
from cloudtune.strategies.rungs import Judging, NewTrials, at_rest, cap_epoch


class HyperSched(Judging):
    """Pausing ASHA with one bracket, whose trials are judged again at each result.

    At every result, each rung that the trial has passed is checked, highest first: the trial is
    paused if its score there is below the rung's present cut-off. A new score is compared with the
    others, and counts from then on (`_Rung.check_to_kill` of the published code, ucbrise/hypersched
    at 8b5435e).

    Room goes to paused trials that no rung would pause any more (highest rung first), then to new
    ones, then to any paused ones; a paused trial resumes only if as many atoms are free as it had.
    Once there is too little time for trials that don't run (`Admission`), all of these are over.
    `atom` is how many GPUs a trial starts with.

    As published, a paused trial is promoted if the rung that paused it would let it continue,
    though another rung may pause it at its next result; and once there are no new trials, every
    paused trial resumes, in order of first start, only to be paused at its next result. `patient`
    is ours: a new score counts at once, a trial is promoted if every rung that it has passed allows
    it, and another paused trial resumes only if nothing else trains.
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
        atom: Width = 1.0,
        switches: Switches = AS_PUBLISHED,
        patient: bool = False,
    ) -> None:
        self.name = "hypersched-patient" if patient else "hypersched"
        self._patient = patient
        self._new = NewTrials(sampler)
        self._last = max_epochs
        self._sign = 1.0 if mode == "max" else -1.0
        self._pauses = switches.use_pausing
        self._once = switches.no_speculation
        self._atom = atom
        self._admission = Admission(max_epochs=max_epochs, eta=eta, atom=atom, switches=switches)
        self._rungs = [
            Cutoff(epoch, eta, ranked=self._once)
            for epoch in open_rungs(min_epochs, max_epochs, eta)
        ]
        self._closed = False
        self._furthest: dict[TrialId, int] = {}
        self._top: dict[TrialId, Cutoff] = {}
        self._rests: dict[TrialId, Cutoff] = {}

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return promotions, then new trials, then other paused ones; or nothing, for good."""
        if not self._open(view):
            return ()
        atoms = max(room, view.free_gpus / self._atom)
        promoted, atoms = self._fitting(view, self._promotable(view), room, atoms)
        new = self._new.peek(view, min(room - len(promoted), math.floor(atoms + GPU_ROUNDING)))
        others = (trial for trial in self._others(view) if trial not in promoted)
        left = room - len(promoted) - len(new)
        if self._patient:
            left = 0 if view.running or promoted or new else 1
        rest, _ = self._fitting(view, others, left, atoms - len(new))
        wanted = {
            "promoted": [view.trials[name].trial for name in promoted],
            "new": new,
            "paused": [view.trials[name].trial for name in rest],
        }
        return [self._group(name, trials) for name, trials in wanted.items() if trials]

    def _fitting(
        self, view: View, paused: Iterable[TrialId], room: int, atoms: float
    ) -> tuple[list[TrialId], float]:
        """Return the first `room` trials whose atoms fit, and how many atoms are left then.

        As published, trials that don't fit are skipped. If nothing trains, the first always fits.
        """
        fitting: list[TrialId] = []
        if room > 0:
            for name in paused:
                needed = view.trials[name].width / self._atom
                if needed <= atoms + GPU_ROUNDING or not (view.running or fitting):
                    fitting.append(name)
                    atoms -= needed
                if len(fitting) == room:
                    break
        return fitting, atoms

    def _group(self, name: str, trials: Iterable[Trial]) -> TrialGroup:
        return TrialGroup(
            name, tuple(Task(trial, cap_epoch(trial, self._last)) for trial in trials)
        )

    def _open(self, view: View) -> bool:
        """Whether a trial may start; once none may, none ever may again."""
        self._closed = self._closed or not self._admission.admits(view)
        return not self._closed

    def _promotable(self, view: View) -> Iterator[TrialId]:
        """Yield paused trials that no rung would pause now, highest rung first."""
        for rung in reversed(self._rungs):
            for trial in self._resting(view, rung):
                if not rung.passes(trial):
                    break  # those after it did no better
                if not self._patient or self._held_back(trial) is None:
                    yield trial

    def _others(self, view: View) -> Iterator[TrialId]:
        """Yield all paused trials: as published in order of first start, otherwise best first."""
        paused = self._paused_trials(view)
        if self._patient:
            return paused
        waiting = set(paused)
        return (name for name in view.trials if name in waiting)

    def _paused_trials(self, view: View) -> Iterator[TrialId]:
        for rung in reversed(self._rungs):
            yield from self._resting(view, rung)

    def _resting(self, view: View, rung: Cutoff) -> Iterator[TrialId]:
        """Yield the trials that wait at a rung, best first, without those that have just begun."""
        return (name for name in rung.resting() if view.trials[name].status == "parked")

    def more(self, view: View, trials: int) -> str:
        """Add trials, if the deadline admits new ones again."""
        self._closed = False
        return super().more(view, trials)

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Pause a trial that isn't good enough any more at a rung that it has passed."""
        self._new.learn(trial)
        self._admission.note(trial)
        last = cap_epoch(trial.trial, self._last)
        self._leave(trial.id)
        if trial.epoch <= self._furthest.get(trial.id, 0):
            return Go(last)  # it repeats lost epochs, and was judged at them before
        self._furthest[trial.id] = trial.epoch
        if trial.epoch >= last:
            self._arrives(trial)
            return Verdict.FINISH
        held = self._held_on_arrival(trial)
        if held is None:
            return Go(last)
        if self._closed or not self._pauses:
            return Verdict.CUT
        self._rests[trial.id] = self._top[trial.id] if self._patient else held
        self._rests[trial.id].rest(trial.id)
        return Verdict.PAUSE

    def _held_on_arrival(self, trial: TrialProgress) -> Cutoff | None:
        """Record a trial at the rungs that it has now passed; return the one that pauses it."""
        if self._patient or self._once:
            arrived = self._arrives(trial)
            return self._held_back(trial.id) if arrived or not self._once else None
        for rung in reversed(self._rungs):
            if rung.epoch > trial.epoch:
                continue
            asked = rung.value
            self._arrive(trial, rung)
            if asked is not None and rung.score(trial.id) < asked:
                return rung
        return None

    def _arrives(self, trial: TrialProgress) -> bool:
        """Record a trial at the rungs that it has now passed; return whether there are any."""
        arrived = False
        for rung in self._rungs:
            if rung.epoch <= trial.epoch:
                arrived = self._arrive(trial, rung) or arrived
        return arrived

    def _arrive(self, trial: TrialProgress, rung: Cutoff) -> bool:
        """Record a trial at a rung; return False if it has a record there already."""
        if trial.id in rung:
            return False
        assert trial.metric is not None
        rung.record(trial.id, self._sign * trial.metric)
        self._top[trial.id] = rung
        return True

    def _held_back(self, trial: TrialId) -> Cutoff | None:
        """Return the highest rung where a trial isn't good enough; its last if judged once."""
        passed = (rung for rung in reversed(self._rungs) if trial in rung)
        judging = itertools.islice(passed, 1) if self._once else passed
        return next((rung for rung in judging if not rung.passes(trial)), None)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Record that a trial failed; its records stay."""
        self._new.learn_failure(trial)
        self._leave(trial.id)

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Record that a trial has ended; its records stay."""
        self._leave(trial.id)

    def _leave(self, trial: TrialId) -> None:
        if trial in self._rests:
            self._rests.pop(trial).leave(trial)

    def done(self, view: View) -> bool:
        """Whether nothing runs, and nothing may start or nothing is left to start."""
        if view.running or not at_rest(view):
            return False
        if not self._open(view):
            return True
        return self._new.dry(view) and next(self._paused_trials(view), None) is None
