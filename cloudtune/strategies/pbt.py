"""Population based training: the worst continue as slightly changed copies of the best."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Mode, Trial, TrialId, rank_key
from cloudtune.strategies.base import Decision, Go, Sampler, Task, TrialGroup, Verdict, View
from cloudtune.strategies.rungs import Judging, NewTrials, at_rest, cap_epoch


class PopulationBased(Judging):
    """A population in which, every `interval` epochs, bad trials make room for clones of good ones.

    A trial that is then among the worst quarter, by everyone's latest results, is cut. A clone of a
    trial of the best quarter continues from the parent's checkpoint with the configuration that
    `explore` returns; if that is None, the trial itself continues. No member waits for another; if
    there isn't room for all, the least trained come first. A failed trial is replaced too. Once all
    have reached their end, the next population begins, while there are new trials.
    Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), section 3 with
    truncation selection. Without `explore` a clone takes the next new configuration.
    """

    anytime = True

    def __init__(
        self,
        sampler: Sampler,
        *,
        max_epochs: int,
        mode: Mode,
        explore: Callable[[Trial], Trial | None] | None = None,
        interval: int | None = None,
        population: int = 8,
        seed: int = 0,
    ) -> None:
        self.name = "pbt"
        self._new = NewTrials(sampler)
        self._explore = explore
        self._max_epochs = max_epochs
        self._mode = mode
        self._interval = interval or max(1, max_epochs // 10)
        self._population = population
        self._chance = np.random.default_rng(seed)
        self._generation = -1
        self._vacant = 0
        self._unborn: dict[TrialId, tuple[Trial, TrialId | None]] = {}  # with the parent
        self._spare: deque[Trial] = deque()  # clones that came too late for their parent
        self._first_goals: dict[TrialId, int] = {}  # as they were last asked for
        self._goals: dict[TrialId, int] = {}  # of the members that have begun and aren't over
        self._latest: dict[TrialId, float | None] = {}  # of the members, and of finished ones
        self._before: dict[
            TrialId, TrialId
        ] = {}  # the trial that a clone without a result replaces

    def more(self, view: View, trials: int) -> str:
        """Return why not: every trial that joins a population is a clone of a member."""
        return "pbt makes new trials from those that it has, and takes no others"

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return waiting members and new ones, least trained first."""
        self._notice(view)
        self._begin_population(view)
        self._fill_vacancies(view, room)
        waiting = sorted(self._waiting(view), key=lambda pair: pair[0])
        tasks = tuple(task for _, task in waiting[:room])
        self._first_goals.update((task.trial.id, task.until) for task in tasks)
        return (TrialGroup(f"population {self._generation}", tasks),) if tasks else ()

    def _notice(self, view: View) -> None:
        """Record members that have begun, and clones that have nothing left to train."""
        for name, (trial, parent) in list(self._unborn.items()):
            if name in view.trials:
                del self._unborn[name]
                self._goals[name] = self._first_goals[name]
            elif self._begins(view, parent) >= cap_epoch(trial, self._max_epochs):
                del self._unborn[name]
                self._forget(name)
                self._spare.append(trial)

    def _begin_population(self, view: View) -> None:
        if not (self._goals or self._unborn or self._vacant) and not self._dry(view):
            self._generation += 1
            self._vacant = self._population
            self._latest = {}
            self._before = {}

    def _fill_vacancies(self, view: View, room: int) -> None:
        while self._vacant and len(self._unborn) < room:
            trial = self._fresh(view)
            if trial is None:
                self._vacant = 0
                break
            self._vacant -= 1
            self._unborn[trial.id] = (trial, None)

    def _fresh(self, view: View) -> Trial | None:
        return self._spare.popleft() if self._spare else self._new.take(view)

    def _dry(self, view: View) -> bool:
        return not self._spare and self._new.dry(view)

    def _waiting(self, view: View) -> Iterator[tuple[int, Task]]:
        """Yield the tasks that may begin, with the epochs trained so far."""
        for trial, parent in self._unborn.values():
            epoch = self._begins(view, parent)
            yield epoch, Task(trial, self._goal(trial, epoch), parent)
        for name, goal in self._goals.items():
            member = view.trials[name]
            if member.status == "parked":
                yield member.checkpoint_epoch, Task(member.trial, goal)

    @staticmethod
    def _begins(view: View, parent: TrialId | None) -> int:
        return 0 if parent is None else view.trials[parent].checkpoint_epoch

    def _goal(self, trial: Trial, epoch: int) -> int:
        return cap_epoch(trial, min(epoch + self._interval, self._max_epochs))

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Replace a bad trial after each interval; a good one continues or lets others catch up."""
        self._notice(view)
        self._new.learn(trial)
        self._forget(trial.id)
        self._latest[trial.id] = trial.metric
        if trial.epoch >= cap_epoch(trial.trial, self._max_epochs):
            self._goals.pop(trial.id, None)
            return Verdict.FINISH
        if trial.epoch < self._goals[trial.id]:
            return Go(self._goals[trial.id])
        if self._among_worst(trial.id) and self._clone(view, trial.id):
            del self._goals[trial.id]
            return Verdict.CUT
        self._goals[trial.id] = goal = self._goal(trial.trial, trial.epoch)
        return Verdict.PAUSE if self._in_the_way(view, trial) else Go(goal)

    def _in_the_way(self, view: View, trial: TrialProgress) -> bool:
        """Whether more trials that have trained less wait than there are GPUs about to be free."""
        waiting = sum(epoch < trial.epoch for epoch, _ in self._waiting(view)) + self._vacant
        return waiting > sum(other.status == "stopping" for other in view.running)

    def _rank(self) -> list[TrialId]:
        return sorted(
            self._latest, key=lambda name: (rank_key(self._mode, self._latest[name]), name)
        )

    def _among_worst(self, trial: TrialId) -> bool:
        ranked = self._rank()
        return trial in ranked[len(ranked) - len(ranked) // 4 :]

    def _clone(self, view: View, replaced: TrialId) -> bool:
        """Begin a clone of one of the best; return False if none of them can have one.

        Until the clone has a result, the replaced trial's counts: otherwise average trials would
        become the worst of the rest, and be cut too.
        """
        parents = [name for name in self._best() if self._has_more(view.trials[name])]
        if not parents:
            return False
        parent = parents[int(self._chance.integers(len(parents)))]
        if self._explore is None:
            child = self._fresh(view)
        else:
            child = self._explore(view.trials[parent].trial)
        if child is not None:
            self._unborn[child.id] = (child, parent)
            self._before[child.id] = replaced
        return child is not None

    def _best(self) -> list[TrialId]:
        ranked = self._rank()
        return ranked[: len(ranked) // 4]

    def parents(self, view: View) -> set[TrialId]:
        """Return the parents of waiting clones, and all trials that may become parents."""
        waiting = {parent for _, parent in list(self._unborn.values()) if parent is not None}
        return waiting | {name for name in list(self._latest) if self._has_more(view.trials[name])}

    def _has_more(self, trial: TrialProgress) -> bool:
        """Whether a clone of a trial would have something left to train."""
        return trial.checkpoint_epoch < cap_epoch(trial.trial, self._max_epochs)

    def _forget(self, clone: TrialId) -> None:
        """Drop the result of the trial that a clone has replaced."""
        replaced = self._before.pop(clone, None)
        if replaced is not None:
            self._latest.pop(replaced, None)

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Replace a failed trial by a clone, or by a new trial."""
        self._new.learn_failure(trial)
        self.on_finish(view, trial)

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Replace a trial that has ended by a clone, or by a new trial."""
        self._notice(view)
        self._forget(trial.id)
        self._goals.pop(trial.id, None)
        self._latest.pop(trial.id, None)
        if not self._clone(view, trial.id):
            self._vacant += 1

    def done(self, view: View) -> bool:
        """Whether all members have reached their end, with no trials for another population."""
        if not at_rest(view):
            return False
        self._notice(view)
        members = self._goals or self._unborn
        return not members and self._dry(view)
