"""How wide SEER trains its trials, and on how many instances (cloudtune/strategies/seer.py)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.planners.allocators.hypersched import HyperSchedAllocator
from cloudtune.planners.fleets import Unplanned

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Rentable
    from cloudtune.progress import TrialProgress
    from cloudtune.strategies.base import Task, View
    from cloudtune.strategies.seer import Seer
    from cloudtune.trial import Width


class SeerAllocator(HyperSchedAllocator):
    """Shares the GPUs out as HyperSched does, and looks again after every result but the first.

    The first result of a session never resizes the trial (`recharge` is 1). A trial that has
    trained since an earlier season may grow, but never shrinks for the new ones.
    """

    name = "seer"

    def __init__(self, strategy: Seer) -> None:
        super().__init__(recharge=1)
        self._strategy = strategy

    def min_width(self, view: View) -> Width:
        """Return one atom of what is rented now."""
        self._atom = self._strategy.atom(view)
        return self._atom

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return one atom for each task."""
        return [self.min_width(view)] * len(tasks)

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the trial's share, if a resize pays; else the width that it has."""
        self.min_width(view)
        width = super().resized(view, trial)
        return width if self._strategy.is_new(trial.id) else max(width, trial.width)

    def usable(self, view: View) -> float:
        """Return the GPUs that the running trials could ever use, each at its largest useful width.

        Shares come and go as trials end, so what idles now may be wanted at the next result.
        """
        rentable = learned(view, self._strategy.rentable(view))
        return sum(self._most(view, trial, rentable) for trial in self._live(view))

    def _most(self, view: View, trial: TrialProgress, rentable: Rentable) -> Width:
        if trial.width not in rentable.profile.epoch:
            return trial.width
        wider = (width for width in rentable.profile.widths if width > trial.width)
        gain = self._min_gain
        useful = [w for w in wider if self.gain(view, rentable, trial.width, w) > gain]
        return _fastest(useful, rentable) or trial.width

    def _rounded(self, atoms: int, rentable: Rentable) -> Width:
        """Return the fastest width for so many atoms or fewer; 0 where there is none.

        Not simply the widest: past a node's edge a wider trial may be slower.
        """
        widths = rentable.profile.widths
        return _fastest([w for w in widths if self._is_share(w, atoms)], rentable)

    def resizable(self, view: View, trial: TrialProgress) -> Rentable:
        """Return where a trial trains, at the speeds that this run has seen."""
        return learned(view, super().resizable(view, trial))


def learned(view: View, rentable: Rentable) -> Rentable:
    """Return a rentable at the speeds that this run has seen, by width."""
    return view.corrected(rentable, ())


def _fastest(widths: Sequence[Width], rentable: Rentable) -> Width:
    """Return the width with the shortest epochs, the narrowest of equals; 0 of none."""
    seconds = rentable.profile.epoch_seconds
    return min(widths, key=lambda width: (seconds(width), width), default=0.0)


class SeerFleet(Unplanned):
    """As many instances as the budget pays for until the deadline.

    The fleet is of the first offer that can be had; instances rented already count, whatever their
    offer. Empty instances go back when nothing will start any more, except with `constant`.
    """

    name = "seer"

    def __init__(self, strategy: Seer, allocator: SeerAllocator) -> None:
        self._strategy = strategy
        self._allocator = allocator

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return all that can be rented."""
        return tuple(each.offer for each in self._strategy.rentables)

    def max_gpus(self, view: View) -> int:
        """Return the GPUs of the whole fleet."""
        return self._strategy.instances(view) * self._strategy.rentable(view).gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the whole fleet; once nothing will start any more, as much as is still needed."""
        rentable, count = self._strategy.rentable(view), self._strategy.instances(view)
        if not self._strategy.constant and self._strategy.closing(view):
            wanted_gpus = max(needed, self._allocator.usable(view))
            count = min(count, math.ceil(wanted_gpus / rentable.gpus - 1e-6))
        wanted: dict[Offer, int] = {}
        for offer, held in view.held.items():
            if offer != rentable.offer:
                wanted[offer] = min(held, count)
                count -= wanted[offer]
        willing = self._willing(view, rentable.offer)
        if willing != rentable.offer:
            staying = min(count, view.held.get(rentable.offer, 0))
            gpus = (count - staying) * rentable.gpus
            wanted[willing] = wanted.get(willing, 0) + math.ceil(gpus / willing.gpus)
            count = staying
        return {**wanted, rentable.offer: count}

    def _willing(self, view: View, first: Offer) -> Offer:
        """Return the first offer that isn't refused just now; the very first if all are."""
        offers = (each.offer for each in self._strategy.rentables)
        return next((offer for offer in (first, *offers) if not view.avoided(offer)), first)
