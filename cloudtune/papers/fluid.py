"""StaticFluid, and Fluid's allocators by the paper's own rules.

Source: Yu et al., "Fluid: Resource-Aware Hyperparameter Tuning Engine" (MLSys 2021), by notes on
the authors' slides and published code (docs/allocators.md).
"""

import math
from collections.abc import Sequence

from cloudtune.model.plans import Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import GPU_ROUNDING, TrialId, Width
from cloudtune.strategies.allocators.fluid import DynamicFluid, Fluid, clamp_width, reference
from cloudtune.strategies.allocators.fluid_rules import whole_trials
from cloudtune.strategies.base import Task, View

# Fluid's code widens no trial that has fewer seconds left (docs/allocators.md, F20).
_IDLE_SECONDS = 10.0


def narrowest(_share: float, packed: int) -> Width:
    """Return the width of a share below one GPU, as published: the narrowest there is.

    It breaks the paper's bound of twice the optimum if more than two trials may share a GPU.
    """
    return 1 / packed


def lacks_epochs(view: View, trial: TrialId) -> bool:
    """Whether a trial has no measured epoch yet."""
    return not (trial in view.trials and view.trials[trial].history)


class StaticFluid(Fluid):
    """Shares the idle GPUs among the trials of a group that are about to start, by their budgets.

    A trial keeps its width until it continues to another rung: the trials that do form a new group,
    and are resized at the end of an epoch if there is room. With `published`, a share below one GPU
    is rounded down to the narrowest width, as in the paper, and a trial without measured epochs
    trains one epoch at one GPU before it gets its share; otherwise the profile and the other
    trials' epochs are good enough for it.
    """

    def __init__(self, *, published: bool = False) -> None:
        super().__init__()
        self._published = published
        self.name = "static-fluid:published" if published else "static-fluid"
        self._widths: dict[TrialId, Width] = {}  # of trials that continued from a rung
        self._rung_at = -math.inf

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return each task's share of the idle GPUs, including those of booting instances.

        While nothing is rented, a task gets one GPU if that width exists.
        """
        rentable = reference(view)
        idle = self._gpus(view) - sum(trial.width for trial in view.running)
        if not tasks or idle < min(rentable.profile.widths) - GPU_ROUNDING:
            return [clamp_width(rentable, 1.0)] * len(tasks)
        heights = [
            self._remaining_seconds(view, task.trial.id, task.until, rentable) for task in tasks
        ]
        shares = self._shares(rentable, heights, max(1, math.floor(idle + GPU_ROUNDING)))
        widths = []
        for task, share in zip(tasks, shares, strict=True):
            width = 1.0 if self._unknown(view, task.trial.id) else share
            widths.append(clamp_width(rentable, width))
        return widths

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width planned at a trial's last rung; its own if none was."""
        if self._published:
            self._follow_trials(view)
        if trial.status == "at rung":
            self._plan_rung(view)
        elif self._published and len(trial.history) == 1 and trial.id not in self._widths:
            group = [view.trials[name] for name in view.trials if name in self._members]
            self._widths[trial.id] = self._group_widths(view, group)[trial.id]
        return self._widths.get(trial.id, trial.width)

    def _plan_rung(self, view: View) -> None:
        """Share GPUs among the trials that continue from a rung now, once for all of them."""
        group = [t for t in view.running if t.status == "at rung" and view.until(t.id) > t.epoch]
        if view.now != self._rung_at and group:
            self._rung_at = view.now
            self._widths |= self._group_widths(view, group)

    def _group_widths(self, view: View, group: Sequence[TrialProgress]) -> dict[TrialId, Width]:
        """Share the GPUs of these trials and the idle ones.

        The GPUs of trials that don't continue are about to be idle.
        """
        rentable = reference(view)
        members = {trial.id for trial in group}
        others = (t for t in view.running if t.id not in members)
        busy = sum(t.width for t in others if t.status in {"starting", "training"})
        heights = [self._remaining_seconds(view, t.id, view.until(t.id), rentable) for t in group]
        gpus = math.floor(self._gpus(view) - busy + GPU_ROUNDING)
        shares = self._shares(rentable, heights, max(1, gpus))
        return {t.id: clamp_width(rentable, share) for t, share in zip(group, shares, strict=True)}

    def _narrow(self, share: float, packed: int) -> Width:
        return narrowest(share, packed) if self._published else whole_trials(share, packed)

    def _unknown(self, view: View, trial: TrialId) -> bool:
        return self._published and lacks_epochs(view, trial)


class PublishedDynamicFluid(DynamicFluid):
    """DynamicFluid as published: it grows (F6), shrinks (F7) and plans at events (F8), no more.

    Nothing is planned for a trial before its first epoch (F10). With `idle`, an idle GPU goes to
    the trial with the longest remaining time, one GPU at a time, within a rung, as in Fluid's code
    (F20).
    """

    def __init__(self, *, idle: bool = False) -> None:
        super().__init__()
        self.name = f"dynamic-fluid:published{'-idle' if idle else ''}"
        self._longest_first = idle
        self._grown: set[TrialId] = set()  # by idle GPUs, since the last planning

    def _narrow(self, share: float, packed: int) -> Width:
        return narrowest(share, packed)

    def _unknown(self, view: View, trial: TrialId) -> bool:
        return lacks_epochs(view, trial)

    def _plan_widths(
        self, view: View, wanted: dict[TrialId, int], gpus: int
    ) -> dict[TrialId, Width]:
        self._grown.clear()
        return super()._plan_widths(view, wanted, gpus)

    def _planned_width(self, view: View, trial: TrialProgress, rentable: Rentable) -> Width:
        width = super()._planned_width(view, trial, rentable)
        # What idle GPUs added stays until all are replanned.
        return max(width, trial.width) if trial.id in self._grown else width

    def _note_drift(self, view: View, trial: TrialProgress) -> None:
        """Keep the plan whatever the epochs take."""

    def _is_short(self, view: View, trial: TrialProgress) -> bool:
        return True

    def _best_gain(self, view: View, trial: TrialProgress) -> Width:
        width = self._next_wider(view, trial) if self._longest_first else 0
        if width:
            self._grown.add(trial.id)
        return width

    def _next_wider(self, view: View, trial: TrialProgress) -> Width:
        """Return the next width if this trial has the longest time left, and enough of it.

        Times are at one GPU, as in Fluid's code, whatever the trials have now; trials about to have
        more GPUs count too.
        """
        left = {name: self._seconds(view, view.trials[name], 1.0) for name in self._members}
        # Fluid's code looks before it promotes: a trial at a rung has no epochs left then.
        own = 0.0 if trial.status == "at rung" else left.get(trial.id, 0.0)
        # Only the trial that ends last: widening another one doesn't end the group sooner.
        if own < max(_IDLE_SECONDS, *left.values()):
            return 0
        width = min(self._wider(view, trial), default=0)
        return width if 1 < width <= trial.width + view.free_gpus + GPU_ROUNDING else 0
