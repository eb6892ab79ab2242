"""The same width for every trial: the allocator of strategies that don't choose widths."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Width
from cloudtune.strategies.base import ByWidth, Task, View


@dataclass(frozen=True)
class SameWidth(ByWidth):
    """Every trial has the same width, from start to end."""

    width: Width = 1.0
    name: str = "same"

    def min_width(self, view: View) -> Width:
        return self.width

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        return [self.width] * len(tasks)

    def resized(self, view: View, trial: TrialProgress) -> Width:
        return self.width
