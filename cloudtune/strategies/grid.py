"""Grid search, and groups of trials one after another."""

from collections.abc import Sequence

from cloudtune.model.progress import OVER
from cloudtune.model.trial import Trial
from cloudtune.strategies.base import Sampler, Task, TrialGroup, View
from cloudtune.strategies.random_search import RandomSearch
from cloudtune.strategies.rungs import cap_epoch


class GridSearch(RandomSearch):
    """The points of a grid in one group, each trained to its end.

    A grid that is cut short hasn't given its answer, so it isn't anytime.
    """

    name = "grid"
    anytime = False

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return more of the group than there is room for, so that an allocator may choose."""
        return super().requests(view, max(room, view.lookahead))


class Sequential(RandomSearch):
    """Ordered groups of `size` trials: the next is sampled once the previous one is over.

    So a sampler that learns knows all of one group before it samples the next.
    """

    name = "sequential"

    def __init__(self, sampler: Sampler, *, max_epochs: int, size: int = 1) -> None:
        super().__init__(sampler, max_epochs=max_epochs)
        self._size = size
        self._group: list[Trial] = []
        self._groups = 0

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return the trials of the current group that haven't begun."""
        if all(self._over(view, trial) for trial in self._group):
            taken = (self._new.take(view) for _ in range(self._size))
            self._group = [trial for trial in taken if trial is not None]
            self._groups += 1
        new = [trial for trial in self._group if trial.id not in view.trials]
        if not new:
            return ()
        tasks = tuple(Task(trial, cap_epoch(trial, self._max_epochs)) for trial in new)
        return (TrialGroup(f"group {self._groups}", tasks),)

    def _over(self, view: View, trial: Trial) -> bool:
        return trial.id in view.trials and view.trials[trial.id].status in OVER

    def done(self, view: View) -> bool:
        """Whether the last group is over and there is no next one."""
        return all(self._over(view, trial) for trial in self._group) and super().done(view)
