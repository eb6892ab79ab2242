"""DynamicFluid as an allocator: the rules of `fluid_rules` on the state of a run."""

import math
from collections.abc import Iterable, Sequence

from cloudtune.model.plans import Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import GPU_ROUNDING, TrialId, Width
from cloudtune.strategies.allocators.fluid_rules import (
    scales_down,
    scales_up,
    static_fluid,
    whole_trials,
)
from cloudtune.strategies.base import ByWidth, Task, View

# Replan once a trial's epochs differ by more than this share from those planned with.
_DRIFT = 0.2


def reference(view: View) -> Rentable:
    """Return the rentable whose profile times refer to: the first with instances, or the first."""
    held = [rentable for rentable in view.rentables if view.held.get(rentable.offer, 0)]
    return (held or list(view.rentables))[0]


def clamp_width(rentable: Rentable, width: Width) -> Width:
    """Return the widest width of a profile that is no wider than `width`; or the narrowest."""
    widths = rentable.profile.widths
    return max(
        (measured for measured in widths if measured <= width + GPU_ROUNDING), default=min(widths)
    )


def resize_seconds(view: View, rentable: Rentable) -> float:
    """Return the seconds to save, stop and restart: the profile's, then as seen in the run.

    Starts of fresh trials don't count: they save, stop and load nothing.
    """
    return view.corrected(rentable, ()).profile.resize.mean


class Fluid(ByWidth):
    """The base of Fluid's allocators: shares GPUs out among trials by their budgets."""

    lookahead = 256
    """Looking at more of a group at every event would take too long."""

    def __init__(self) -> None:
        self.plannings = 0
        self._members: set[TrialId] = set()  # trials that started and haven't used their budget

    def min_width(self, view: View) -> Width:
        return min(reference(view).profile.widths)

    def in_order(self, view: View, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the longest first, by their time at one GPU; ties in the given order."""
        rentable = reference(view)
        return sorted(
            tasks,
            key=lambda task: -self._remaining_seconds(view, task.trial.id, task.until, rentable),
        )

    def _follow_trials(self, view: View) -> None:
        """Keep the members that train or are about to again (moved or lost)."""
        live = {t.id for t in view.running if t.status != "stopping" or t.after == "waiting"}
        away = {n for n in self._members - live if view.trials[n].status == "waiting"}
        self._members = live | away

    @staticmethod
    def _gpus(view: View) -> int:
        return max(view.gpus, sum(offer.gpus * count for offer, count in view.held.items()))

    def _shares(self, rentable: Rentable, heights: Sequence[float], gpus: int) -> list[Width]:
        self.plannings += 1
        widths = rentable.profile.widths
        packed = max(1, round(1 / min(widths)))
        widest = max(1, math.floor(max(widths)))
        return static_fluid(heights, gpus, packed, widest, narrow=self._narrow)

    def _narrow(self, share: float, packed: int) -> Width:
        """Return the width of a share below one GPU."""
        return whole_trials(share, packed)

    def _unknown(self, view: View, trial: TrialId) -> bool:
        """Whether a trial must train an epoch before its width can be planned."""
        return False

    @staticmethod
    def _remaining_seconds(
        view: View, trial: TrialId, until: int, rentable: Rentable, width: Width = 1.0
    ) -> float:
        """Return the remaining seconds of a trial's budget at a width."""
        epoch = view.trials[trial].epoch if trial in view.trials else 0
        measured = clamp_width(rentable, width)
        return max(0, until - epoch) * view.epoch_seconds(trial, rentable.offer, measured)


class DynamicFluid(Fluid):
    """Shares all GPUs again whenever trials or GPUs come or go, and resizes if it pays.

    A trial grows if that ends it sooner, including the cost of the resize, and shrinks if that
    saves GPU-seconds. It is resized after its next epoch, when it has a checkpoint. Beyond what
    Fluid publishes:

    - a trial shrinks only if another lacks GPUs; otherwise the GPUs would idle;
    - GPUs that no trial waits for go where they save most time;
    - if a trial's epochs differ from the plan, it is replanned with the measured ones.
    """

    name = "fluid"

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[TrialId, int] = {}  # trials that want to start, and their last epoch
        self._planned_for: object = None
        self._plan: dict[TrialId, Width] = {}
        self._epochs: dict[TrialId, float] = {}  # the epoch seconds that each was planned with

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        self._follow_trials(view)
        waiting = {t.trial.id: t.until for t in tasks if t.trial.id not in self._members}
        if (
            waiting or not tasks
        ):  # otherwise the task is of a trial that comes back: the others still wait
            self._waiting = waiting
        rentable = reference(view)
        plan = self._follow(view)
        default = clamp_width(rentable, 1.0)
        return [
            default if self._unknown(view, task.trial.id) else plan.get(task.trial.id, default)
            for task in tasks
        ]

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the share, if a resize to it pays, or a width that uses idle GPUs well."""
        self._note_drift(view, trial)
        self._follow_trials(view)
        rentable = self._rentable(view, trial)
        resize = self._resize(view)
        width = self._planned_width(view, trial, rentable)
        now, then = (self._seconds(view, trial, candidate) for candidate in (trial.width, width))
        if width > trial.width and scales_up(now, then, resize):
            return width
        pays = width < trial.width and scales_down(trial.width, now, width, then, resize)
        if pays and self._is_short(view, trial):
            return width
        return self._from_idle(view, trial) or trial.width

    def _planned_width(self, view: View, trial: TrialProgress, rentable: Rentable) -> Width:
        return clamp_width(rentable, self._follow(view).get(trial.id, trial.width))

    def _resize(self, view: View) -> float:
        return resize_seconds(view, reference(view))

    def _rentable(self, view: View, trial: TrialProgress) -> Rentable:
        matching = (rentable for rentable in view.rentables if rentable.offer == trial.offer)
        return next(matching, reference(view))

    def _follow(self, view: View) -> dict[TrialId, Width]:
        """Return the widths of all trials, replanned only if trials or GPUs have changed."""
        waiting = self._waiting.keys() - self._members
        gpus = self._gpus(view)
        names = frozenset(self._members | waiting)
        state = (names, gpus, frozenset(name for name in names if self._unknown(view, name)))
        if state != self._planned_for:
            # Only if the state has changed: a plan at every report would resize back and forth.
            self._planned_for = state
            wanted = {name: view.until(name) for name in view.trials if name in self._members}
            wanted |= {name: until for name, until in self._waiting.items() if name in waiting}
            self._plan = self._plan_widths(view, wanted, gpus)
        return self._plan

    def _plan_widths(
        self, view: View, wanted: dict[TrialId, int], gpus: int
    ) -> dict[TrialId, Width]:
        rentable = reference(view)
        self._epochs = {name: self._epoch(view, name, rentable) for name in wanted}
        if not wanted or gpus < 1:
            return dict.fromkeys(wanted, clamp_width(rentable, 1.0))
        heights = [
            self._remaining_seconds(view, name, until, rentable) for name, until in wanted.items()
        ]
        shares = self._shares(rentable, heights, gpus)
        return {
            name: clamp_width(rentable, share) for name, share in zip(wanted, shares, strict=True)
        }

    def _note_drift(self, view: View, trial: TrialProgress) -> None:
        """Replan all trials if one isn't as fast as planned."""
        planned = self._epochs.get(trial.id)
        if planned is None:
            return
        epoch = self._epoch(view, trial.id, reference(view))
        if abs(epoch - planned) > _DRIFT * planned:
            self._planned_for = None

    @staticmethod
    def _epoch(view: View, trial: TrialId, rentable: Rentable) -> float:
        return view.epoch_seconds(trial, rentable.offer, clamp_width(rentable, 1.0))

    def _is_short(self, view: View, trial: TrialProgress) -> bool:
        """Whether another trial lacks GPUs; otherwise GPUs given up would only idle."""
        live = {other.id: other for other in view.running if other.status != "stopping"}
        lacking = sum(
            self._plan.get(name, 0.0) - other.width
            for name, other in live.items()
            if name != trial.id and self._plan.get(name, 0.0) > other.width
        )
        lacking += sum(self._plan.get(name, 0.0) for name in self._waiting if name not in live)
        # GPUs that are free already serve the others without any resize.
        return lacking > view.free_gpus + GPU_ROUNDING

    def _from_idle(self, view: View, trial: TrialProgress) -> Width:
        """Return the width that a trial grows to with idle GPUs; 0 if others come first."""
        if view.free_gpus < GPU_ROUNDING or self._waiting.keys() - {t.id for t in view.running}:
            return 0
        return self._best_gain(view, trial)

    def _best_gain(self, view: View, trial: TrialProgress) -> Width:
        """Return the width at which a trial saves most time, if no other would save more."""
        training = (t for t in view.running if t.status in {"training", "at rung"})
        gains = {other.id: self._gain(view, other) for other in training}
        gain, width = gains.get(trial.id, (0.0, 0))
        most = max((seconds for seconds, _ in gains.values()), default=0.0)
        return width if gain > 0 and gain >= most else 0

    def _gain(self, view: View, trial: TrialProgress) -> tuple[float, Width]:
        """Return the most seconds that a trial can save with the idle GPUs, and the width."""
        now = self._seconds(view, trial, trial.width)
        resize = self._resize(view)
        wider = (
            w for w in self._wider(view, trial) if w - trial.width <= view.free_gpus + GPU_ROUNDING
        )
        return max(
            ((now - self._seconds(view, trial, w) - resize, w) for w in wider), default=(0.0, 0)
        )

    def _wider(self, view: View, trial: TrialProgress) -> Iterable[Width]:
        widths = self._rentable(view, trial).profile.widths
        return (width for width in widths if width > trial.width)

    def _seconds(self, view: View, trial: TrialProgress, width: Width) -> float:
        return self._remaining_seconds(
            view, trial.id, view.until(trial.id), self._rentable(view, trial), width
        )
