"""SEER, made stronger: the best metric within a deadline and a budget, without barriers.

Of the SEER paper we know the abstract (Dunlap et al., "Elastic Hyperparameter Tuning on the Cloud",
SoCC 2021): many configurations at first, fewer and fewer, more GPUs for those that remain, so that
they are trained sufficiently before the deadline. The method here is our own, with that aim: rungs,
and who is held back at them, are HyperSched's; new are when to stop exploring, with which trials,
and what to do with the rest of the money and time. docs/seer.md has the figures behind each choice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.strategies.base import Verdict
from cloudtune.strategies.hypersched import HyperSched
from cloudtune.strategies.hypersched_rules import Cutoff, Median, Overhead, open_rungs, quantile
from cloudtune.strategies.rungs import at_rest, capped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.plan import Limits, Rentable
    from cloudtune.progress import TrialProgress
    from cloudtune.strategies.base import Decision, Sampler, TrialGroup, View
    from cloudtune.trial import Mode, TrialId, Width

APART = 3
"""A rung is so many times as many epochs as the one below."""
HELD_BACK = (3, 5)
"""The part of a rung that is held back: gentler than eta 3 has it, as they may come back."""
CATCH_UP = 3.0
"""Something new may start while there is so many times as long left as the furthest has trained."""
_MOMENT = 2.0
"""Another season needs the time of so many epochs, and of so many restarts."""


class _Cutoff(Cutoff):
    """A rung that asks for more than `HELD_BACK` of its records reached."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch, APART)

    @property
    def value(self) -> float | None:
        """The score that has to be reached; None with fewer than two records."""
        return quantile(self._ordered, *HELD_BACK) if len(self._ordered) > 1 else None


class Seer(HyperSched):
    """Explores while a newcomer could still win, then gives its GPUs to those that are ahead.

    - Money is time: what is left is the deadline's, or what the budget pays the fleet for, if less.
    - Exploring ends when less is left than `CATCH_UP` times what the furthest has trained; or less
      than a whole training takes on the GPUs of one instance.
    - Nobody is dropped for good. When all that trained have come to their end and time and money
      are left, another season of exploring begins, with all that the rungs know by then.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        min_epochs: int,
        max_epochs: int,
        mode: Mode,
        rentables: Sequence[Rentable],
        max_instances: int,
        limits: Limits,
        constant: bool = False,
    ) -> None:
        self.rentables = tuple(rentables)
        self.constant = constant
        super().__init__(
            sampler,
            min_epochs=min_epochs,
            max_epochs=max_epochs,
            eta=APART,
            mode=mode,
        )
        self._rungs = [_Cutoff(epoch) for epoch in open_rungs(min_epochs, max_epochs, APART)]
        self.name = "seer-constant" if constant else "seer"
        self._limits = limits
        self._max_instances = max_instances
        self._overhead = Overhead()
        self._epoch = Median()
        self._longest = 0.0
        self.season = 0
        self._season_of: dict[TrialId, int] = {}
        self._before: dict[TrialId, float] = {}  # seconds that each had trained by then

    # ---- time and money ------------------------------------------------------------------

    def rentable(self, view: View) -> Rentable:
        """Return the first of the rentables that can be had."""
        return next((r for r in self.rentables if not view.refused(r.offer)), self.rentables[0])

    def atom(self, view: View) -> Width:
        """Return the width at which trials start: what is rented may not have that of another."""
        return cheapest_width(self.rentable(view))

    def instances(self, view: View) -> int:
        """Return as many instances as the budget pays for until the deadline, rounded up."""
        price, limits = self.rentable(view).offer.usd_per_second, self._limits
        if limits.budget is None or price == 0:
            return self._max_instances
        if limits.deadline is None:
            return 1
        most = limits.budget / (max(limits.deadline, 1.0) * price)
        return max(1, min(self._max_instances, math.ceil(most - 1e-9)))

    def time_left(self, view: View) -> float:
        """Return the seconds that are left: the deadline's, or those that the fleet can be paid."""
        rate = self.instances(view) * self.rentable(view).offer.usd_per_second
        paid = view.dollars_left / rate if rate > 0 else math.inf
        return min(view.seconds_left, paid)

    def _least(self, view: View) -> float:
        """Return how much time has to be left for something to start."""
        longest = (self._longest - self._overhead.seconds(view)) * CATCH_UP
        epoch = self._epoch.value
        if epoch is None:
            return longest
        return min(longest, self._last * epoch * self._fastest(view))

    def _fastest(self, view: View) -> float:
        """Return an epoch's time on the GPUs of one instance, as a share of that on one atom."""
        rentable, atom = view.corrected(self.rentable(view), ()), self.atom(view)
        epochs = rentable.profile.epoch
        inside = [w for w in epochs if atom <= w <= rentable.gpus] or list(epochs)
        return min(epochs[width].mean for width in inside) / epochs[atom].mean

    def _another(self, view: View) -> float:
        """Return how much time has to be left for another season."""
        epoch = self._epoch.value or 0.0
        return _MOMENT * (epoch + self.rentable(view).profile.resize.mean)

    # ---- the strategy --------------------------------------------------------------------

    def _open(self, view: View) -> bool:
        """Whether something may start; a season that is closed stays so until all have ended."""
        left = self.time_left(view)
        self._closed = self._closed or left < self._least(view)
        if self._closed and not view.running and left > self._another(view):
            self._closed, self._longest = False, 0.0
            self.season += 1
            self._before = {trial.id: trial.seconds for trial in view.trials.values()}
        return not self._closed

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return promotions, then new trials, then what else is paused; none in a closed season."""
        groups = super().requests(view, room)
        for group in groups:
            for task in group.tasks:
                self._season_of[task.trial.id] = self.season
        return groups

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Pause a trial that a rung which it has passed would hold back now."""
        if trial.width == self.atom(view):
            self._epoch.add(trial.epoch_seconds)
        if self.is_new(trial.id):
            trained = trial.seconds - self._before.get(trial.id, 0.0)
            self._longest = max(self._longest, trained)
        decision = super().on_result(view, trial)
        if decision is Verdict.CUT:
            self._top[trial.id].rest(trial.id)
            return Verdict.PAUSE
        return decision

    def is_new(self, trial: TrialId) -> bool:
        """Whether a trial began, or came back, in this season."""
        return self._season_of.get(trial, 0) == self.season

    def closing(self, view: View) -> bool:
        """Whether nothing will start any more: too little would be left when all have ended."""
        return self._closed and self.time_left(view) <= self._another(view) + self._busy(view)

    def _busy(self, view: View) -> float:
        """Return the seconds for which some trial will train: the one that is done first, at best.

        The others may be held back at their next result, so they say nothing.
        """
        ends = [self._soonest(view, trial) for trial in view.running if trial.offer is not None]
        return min(ends, default=0.0)

    def _soonest(self, view: View, trial: TrialProgress) -> float:
        """Return the seconds that a trial takes to its end at its fastest width."""
        rentable = next(each for each in self.rentables if each.offer == trial.offer)
        left = capped(trial.trial, self._last) - trial.epoch
        widths = rentable.profile.epoch
        return left * min(view.epoch_seconds(trial.id, rentable.offer, w) for w in widths)

    def done(self, view: View) -> bool:
        """Whether all trials have trained to their end, or the rest is worth no other season."""
        if view.running or not at_rest(view):
            return False
        if self._closed and self.time_left(view) <= self._another(view):
            return True
        return self._new.dry(view) and next(self._paused(view), None) is None


def cheapest_width(rentable: Rentable) -> Width:
    """Return the width of at most one GPU at which an epoch costs least."""
    epochs = rentable.profile.epoch
    shared = [width for width in epochs if width <= 1] or [min(epochs)]
    return min(shared, key=lambda width: (width * epochs[width].mean, -width))
