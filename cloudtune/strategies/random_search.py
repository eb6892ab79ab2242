"""Random search: every trial is trained to its end, in the sampler's order."""

from collections.abc import Sequence

from cloudtune.model.progress import TrialProgress
from cloudtune.strategies.base import Decision, Go, Sampler, TrialGroup, Verdict, View
from cloudtune.strategies.rungs import Judging, NewTrials, at_rest, cap_epoch


class RandomSearch(Judging):
    """All trials in one group, each trained to `max_epochs` or its own last epoch.

    Random is the sampler, not the strategy.
    """

    name = "random"
    anytime = True

    def __init__(self, sampler: Sampler, *, max_epochs: int) -> None:
        self._new = NewTrials(sampler)
        self._max_epochs = max_epochs

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        new = self._new.tasks(view, room, self._max_epochs)
        return (TrialGroup(self.name, new),) if new else ()

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        self._new.learn(trial)
        last = cap_epoch(trial.trial, self._max_epochs)
        return Go(last) if trial.epoch < last else Verdict.FINISH

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        self._new.learn_failure(trial)

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Do nothing: its results stay."""

    def done(self, view: View) -> bool:
        return not view.running and self._new.dry(view) and at_rest(view)
