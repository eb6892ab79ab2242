"""StaticFluid and DynamicFluid as allocators: the rules of `fluid` on the state of a run."""

import math
from collections.abc import Iterable, Sequence

from cloudtune.model.plans import Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import GPU_ROUNDING, TrialId, Width
from cloudtune.strategies.allocators.fluid_rules import scales_down, scales_up, static_fluid
from cloudtune.strategies.base import ByWidth, Task, View

# Replan once a trial's epochs differ by more than this share from those planned with.
_DRIFT = 0.2
# Fluid's code widens no trial that has fewer seconds left (docs/allocators.md, F20).
_IDLE_SECONDS = 10.0


def reference(view: View) -> Rentable:
    """Return the rentable whose profile times refer to: the first with instances, or the first."""
    held = [rentable for rentable in view.rentables if view.held.get(rentable.offer, 0)]
    return (held or list(view.rentables))[0]


def offered(rentable: Rentable, width: Width) -> Width:
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


class StaticFluid(ByWidth):
    """Shares the idle GPUs among the trials of a group that are about to start, by their budgets.

    A trial keeps its width until it continues to another rung: the trials that do form a new group,
    and are resized at the end of an epoch if there is room. With `published`, a share below one GPU
    is rounded down to the narrowest width, as in the paper, and a trial without measured epochs
    trains one epoch at one GPU before it gets its share; otherwise the profile and the other
    trials' epochs are good enough for it.
    """

    lookahead = 256
    """Looking at more of a group at every event would take too long."""

    def __init__(self, *, published: bool = False) -> None:
        self._published = published
        self.name = "static-fluid:published" if published else "static-fluid"
        self.plannings = 0
        self._widths: dict[TrialId, Width] = {}  # of trials that continued from a rung
        self._members: set[TrialId] = set()  # trials that started and haven't used their budget
        self._rung_at = -math.inf

    def min_width(self, view: View) -> Width:
        return min(reference(view).profile.widths)

    def in_order(self, view: View, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the longest first, by their time at one GPU; ties in the given order."""
        rentable = reference(view)
        return sorted(
            tasks, key=lambda task: -self._left(view, task.trial.id, task.until, rentable)
        )

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return each task's share of the idle GPUs, including those of booting instances.

        While nothing is rented, a task gets one GPU if that width exists.
        """
        rentable = reference(view)
        idle = self._gpus(view) - sum(trial.width for trial in view.running)
        if not tasks or idle < min(rentable.profile.widths) - GPU_ROUNDING:
            return [offered(rentable, 1.0)] * len(tasks)
        heights = [self._left(view, task.trial.id, task.until, rentable) for task in tasks]
        shares = self._shares(rentable, heights, max(1, math.floor(idle + GPU_ROUNDING)))
        return [
            offered(rentable, 1.0 if self._unknown(view, task.trial.id) else share)
            for task, share in zip(tasks, shares, strict=True)
        ]

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
        heights = [self._left(view, t.id, view.until(t.id), rentable) for t in group]
        gpus = math.floor(self._gpus(view) - busy + GPU_ROUNDING)
        shares = self._shares(rentable, heights, max(1, gpus))
        return {t.id: offered(rentable, share) for t, share in zip(group, shares, strict=True)}

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
        return static_fluid(heights, gpus, packed, widest, repaired=not self._published)

    def _unknown(self, view: View, trial: TrialId) -> bool:
        """Whether a trial must train an epoch before its width can be planned."""
        return self._published and not (trial in view.trials and view.trials[trial].history)

    @staticmethod
    def _left(
        view: View, trial: TrialId, until: int, rentable: Rentable, width: Width = 1.0
    ) -> float:
        """Return the remaining seconds of a trial's budget at a width."""
        epoch = view.trials[trial].epoch if trial in view.trials else 0
        measured = offered(rentable, width)
        return max(0, until - epoch) * view.epoch_seconds(trial, rentable.offer, measured)


class DynamicFluid(StaticFluid):
    """Shares all GPUs again whenever trials or GPUs come or go, and resizes if it pays.

    A trial grows if that ends it sooner, including the cost of the resize, and shrinks if that
    saves GPU-seconds. It is resized after its next epoch, when it has a checkpoint. As published
    that is all (F6, F7, F8), and nothing is planned for a trial before its first epoch (F10); with
    `idle`, an idle GPU goes to the trial with the longest remaining time, one GPU at a time, within
    a rung, as in Fluid's code (F20). Ours differs in three ways:

    - a trial shrinks only if another lacks GPUs; otherwise the GPUs would idle;
    - GPUs that no trial waits for go where they save most time;
    - if a trial's epochs differ from the plan, it is replanned with the measured ones.
    """

    def __init__(self, *, published: bool = False, idle: bool = False) -> None:
        super().__init__(published=published)
        kind = ":published-idle" if idle else ":published"
        self.name = f"dynamic-fluid{kind if published else ''}"
        self._longest_first = idle
        self._waiting: dict[TrialId, int] = {}  # trials that want to start, and their last epoch
        self._planned_for: object = None
        self._plan: dict[TrialId, Width] = {}
        self._epochs: dict[TrialId, float] = {}  # the epoch seconds that each was planned with
        self._grown: set[TrialId] = set()  # by idle GPUs, since the last planning

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        self._follow_trials(view)
        waiting = {t.trial.id: t.until for t in tasks if t.trial.id not in self._members}
        if (
            waiting or not tasks
        ):  # otherwise the task is of a trial that comes back: the others still wait
            self._waiting = waiting
        rentable = reference(view)
        plan = self._follow(view)
        default = offered(rentable, 1.0)
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
        width = offered(rentable, self._follow(view).get(trial.id, trial.width))
        if self._longest_first and trial.id in self._grown:  # until all are replanned
            width = max(width, trial.width)
        now, then = (self._seconds(view, trial, candidate) for candidate in (trial.width, width))
        if width > trial.width and scales_up(now, then, resize):
            return width
        pays = width < trial.width and scales_down(trial.width, now, width, then, resize)
        if pays and (self._published or self._is_short(view, trial)):
            return width
        return self._from_idle(view, trial) or trial.width

    def _resize(self, view: View) -> float:
        return resize_seconds(view, reference(view))

    def _rentable(self, view: View, trial: TrialProgress) -> Rentable:
        matching = (rentable for rentable in view.rentables if rentable.offer == trial.offer)
        return next(matching, reference(view))

    def _follow(self, view: View) -> dict[TrialId, Width]:
        """Return the widths of all trials, replanned only if trials or GPUs have changed.

        As published, also if a trial is measured for the first time.
        """
        waiting = self._waiting.keys() - self._members
        gpus = self._gpus(view)
        names = frozenset(self._members | waiting)
        state = (names, gpus, frozenset(name for name in names if self._unknown(view, name)))
        if state != self._planned_for:
            # Only if the state has changed: a plan at every report would resize back and forth.
            self._planned_for = state
            wanted = {name: view.until(name) for name in view.trials if name in self._members}
            wanted |= {name: until for name, until in self._waiting.items() if name in waiting}
            self._plan = self._planned(view, wanted, gpus)
        return self._plan

    def _planned(self, view: View, wanted: dict[TrialId, int], gpus: int) -> dict[TrialId, Width]:
        rentable = reference(view)
        self._grown.clear()
        self._epochs = {name: self._epoch(view, name, rentable) for name in wanted}
        if not wanted or gpus < 1:
            return dict.fromkeys(wanted, offered(rentable, 1.0))
        heights = [self._left(view, name, until, rentable) for name, until in wanted.items()]
        shares = self._shares(rentable, heights, gpus)
        return {name: offered(rentable, share) for name, share in zip(wanted, shares, strict=True)}

    def _note_drift(self, view: View, trial: TrialProgress) -> None:
        """Replan all trials if one isn't as fast as planned."""
        planned = self._epochs.get(trial.id)
        if self._published or planned is None:
            return
        epoch = self._epoch(view, trial.id, reference(view))
        if abs(epoch - planned) > _DRIFT * planned:
            self._planned_for = None

    @staticmethod
    def _epoch(view: View, trial: TrialId, rentable: Rentable) -> float:
        return view.epoch_seconds(trial, rentable.offer, offered(rentable, 1.0))

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
        training = [t for t in view.running if t.status in {"training", "at rung"}]
        if view.free_gpus < GPU_ROUNDING or self._waiting.keys() - {t.id for t in view.running}:
            return 0
        if self._published:
            width = self._next_wider(view, trial) if self._longest_first else 0
        else:
            width = self._best_gain(view, trial, training)
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

    def _best_gain(
        self, view: View, trial: TrialProgress, training: Iterable[TrialProgress]
    ) -> Width:
        """Return the width at which a trial saves most time, if no other would save more."""
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
        return self._left(view, trial.id, view.until(trial.id), self._rentable(view, trial), width)
