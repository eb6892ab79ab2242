"""How wide `best` trains its trials (cloudtune/strategies/best.py)."""

from collections.abc import Sequence

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Width
from cloudtune.strategies.base import ByWidth, Task, View
from cloudtune.strategies.best import BestSearch


class BestAllocator(ByWidth):
    """The strategy's widths: one while it explores, then each seat's own."""

    name = "seer"

    def __init__(self, strategy: BestSearch) -> None:
        self._strategy = strategy

    def min_width(self, view: View) -> Width:
        """Return the width at which trials explore, or the narrowest seat's."""
        seats = self._strategy.seats.values()
        return min([seat.width for seat in seats], default=self._strategy.width(view))

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        seats = self._strategy.seats
        width = self._strategy.width(view)
        if not seats:
            return [width] * len(tasks)
        return [seats[t.trial.id].width if t.trial.id in seats else width for t in tasks]

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width of the trial's seat; without a seat, its present width."""
        seat = self._strategy.seats.get(trial.id)
        return trial.width if seat is None else seat.width
