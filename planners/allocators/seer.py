"""How wide SEER trains its trials, and on how many instances (cloudtune/strategies/seer.py)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.planners.fleets import Unplanned, emptied
from cloudtune.strategies.base import ByWidth

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.progress import TrialProgress
    from cloudtune.strategies.base import Task, View
    from cloudtune.strategies.seer import Seer
    from cloudtune.trial import Width


class SeerAllocator(ByWidth):
    """As wide as the strategy has planned: one width while it explores, then each seat's own."""

    name = "seer"

    def __init__(self, strategy: Seer) -> None:
        self._strategy = strategy

    def min_width(self, view: View) -> Width:
        """Return the width at which trials explore, or the narrowest seat's."""
        seats = self._strategy.seats.values()
        return min([seat.width for seat in seats], default=self._strategy.width(view))

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return the width of each task."""
        seats, width = self._strategy.seats, self._strategy.width(view)
        if not seats:
            return [width] * len(tasks)
        return [seats[t.trial.id].width if t.trial.id in seats else width for t in tasks]

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width of its seat; one without a seat keeps what it has."""
        seat = self._strategy.seats.get(trial.id)
        return trial.width if seat is None else seat.width


class SeerFleet(Unplanned):
    """As many instances as the strategy has planned.

    The fleet is of the first offer that can be had; instances rented already count, whatever their
    offer. Where there are too many, trials move together as their epochs end.
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
        """Return the fleet as planned."""
        rentable, count = self._strategy.rentable(view), self._strategy.instances(view)
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

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return the emptiest instances that are too many, if their trials fit elsewhere."""
        target = self.target(view, needed)
        if all(held <= target.get(offer, 0) for offer, held in view.held.items()):
            return ()
        return tuple(emptied(view, target))

    def _willing(self, view: View, first: Offer) -> Offer:
        """Return the first offer that isn't refused just now; the very first if all are."""
        offers = (each.offer for each in self._strategy.rentables)
        return next((offer for offer in (first, *offers) if not view.avoided(offer)), first)
