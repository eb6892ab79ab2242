"""How wide SEER trains its trials, and on how many instances (cloudtune/strategies/seer.py)."""

import math
from collections.abc import Collection, Mapping, Sequence

from cloudtune.model.catalog import Offer
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import Width
from cloudtune.strategies.base import ByWidth, Task, View
from cloudtune.strategies.fleets import Unplanned, emptied
from cloudtune.strategies.seer import Seer
from cloudtune.strategies.seer_rules import ROUND


class SeerAllocator(ByWidth):
    """The strategy's widths: one while it explores, then each seat's own."""

    name = "seer"

    def __init__(self, strategy: Seer) -> None:
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


class SeerFleet(Unplanned):
    """As many instances as the strategy's planned dollars per second pay for.

    Held instances of any offer count, cheapest first; the rest are of the planned offer, or of the
    next that isn't refused. If there are too many, trials move together as their epochs end.
    """

    name = "seer"

    def __init__(self, strategy: Seer, allocator: SeerAllocator) -> None:
        self._strategy = strategy
        self._allocator = allocator
        self._asked: tuple[object, ...] = ()
        self._target: Mapping[Offer, int] = {}

    def could_ask(self, view: View) -> Collection[Offer]:
        return self._strategy.offers.in_order

    def max_gpus(self, view: View) -> int:
        return sum(offer.gpus * count for offer, count in self.target(view, 0.0).items())

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the planned fleet, cached: each round reads it several times."""
        planned = self._strategy.rentable(view).offer
        count = self._strategy.instances(view)
        willing = self._willing(view, planned)
        asked = planned, count, willing, view.held
        if asked != self._asked:
            self._asked, self._target = asked, self._planned(view, planned, count, willing)
        return self._target

    def _planned(
        self, view: View, planned: Offer, count: int, willing: Offer
    ) -> Mapping[Offer, int]:
        if planned.usd_per_second == 0 or count == 0:
            return {planned: count}
        wanted: dict[Offer, int] = {}
        left = count * planned.usd_per_second
        for offer in self._strategy.offers.in_order:
            wanted[offer] = min(view.held.get(offer, 0), self._for(left, offer, count))
            left -= wanted[offer] * offer.usd_per_second
        least = 0 if any(wanted.values()) else 1
        more = self._for(left, willing, count - sum(wanted.values()))
        return {**wanted, willing: max(least, wanted[willing] + more)}

    @staticmethod
    def _for(rate: float, offer: Offer, free: int) -> int:
        """Return how many instances `rate` dollars per second pay for, or a quarter short of it.

        `free` for an offer that costs nothing.
        """
        if offer.usd_per_second == 0:
            return max(0, free)
        return max(0, math.floor(rate / offer.usd_per_second + ROUND))

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return the emptiest surplus instances, if their trials fit elsewhere."""
        target = self.target(view, needed)
        if all(held <= target.get(offer, 0) for offer, held in view.held.items()):
            return ()
        return tuple(emptied(view, target))

    def _willing(self, view: View, planned: Offer) -> Offer:
        """Return the planned offer, or the cheapest that isn't refused now."""
        if not view.avoided(planned):
            return planned
        willing = (offer for offer in self._strategy.offers.in_order if not view.avoided(offer))
        return next(willing, planned)
