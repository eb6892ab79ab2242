"""The offers of a run in the order of their worth, and the one that it plans with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Rentable
from cloudtune.strategies.base import View
from cloudtune.strategies.offers import Means, by_worth
from cloudtune.strategies.race import Race


class Offers:
    """The offers in order of their worth within the limits, and the one planned with.

    Where speeds only follow from those of other GPUs, a run finds out which offer is worth its
    price (`race.py`). Its `race` then says which instance joins for that, and which GPUs were left.
    """

    def __init__(self, rentables: Sequence[Rentable], means: Means) -> None:
        self.means = means
        self._rank(by_worth(rentables, means), rentables)
        self.chosen = self.rentables[0]
        self.race = Race(self.chosen, rentables)

    def _rank(self, rentables: Sequence[Rentable], corrected: Sequence[Rentable]) -> None:
        """Take an order; `corrected` are the same offers with the speeds that are expected."""
        self.rentables = tuple(rentables)
        self.in_order = tuple(rentable.offer for rentable in rentables)
        self._places = {offer: place for place, offer in enumerate(self.in_order)}
        by_price = sorted(corrected, key=lambda rentable: rentable.epoch_dollars)
        self.by_price = [self.rentable(rentable.offer) for rentable in by_price]

    def rentable(self, offer: Offer) -> Rentable:
        return self.rentables[self._places[offer]]

    def look(self, view: View, instances: int) -> bool:
        """Whether to plan with another offer now; `instances` are planned of the present one.

        A refused offer gives way to the next, unless all of its planned instances are there. A
        better offer is back once its GPUs that take trials equal those held of the present one.
        What the run has seen of speeds may show that another offer is worth a move.
        """
        before = self.chosen
        self.chosen = self._available(view, instances)
        if self.race.has_news(view, self.chosen.offer):
            self._decide(view)
        self.race.follow(view, self.chosen.offer)
        return self.chosen is not before

    def _decide(self, view: View) -> None:
        """Rank the offers by what is known of their speeds now; choose by that."""
        means = replace(self.means, seconds=view.seconds_left, dollars=view.dollars_left)
        corrected = [view.on_average(rentable) for rentable in self.rentables]
        ranked = by_worth(corrected, means)
        offer = self.race.decide(view, self.chosen.offer, ranked, means)
        self.chosen = self.rentable(offer)
        # The chosen one comes first: others don't take over only because some of them are held.
        others = [self.rentable(each.offer) for each in ranked if each.offer != offer]
        self._rank([self.chosen, *others], corrected)

    def _available(self, view: View, instances: int) -> Rentable:
        now = self.chosen.offer
        held = max(1, view.held.get(now, 0) * now.gpus)
        place = self._places[now]
        joined = Counter(rented.offer for rented in view.fleet.usable()) if place else {}
        for offer in self.in_order[:place]:
            if offer in self.race.scouts:
                continue
            if joined.get(offer, 0) * offer.gpus >= held and not view.avoided(offer):
                return self.rentable(offer)
        if not view.avoided(now) or view.held.get(now, 0) >= instances:
            return self.chosen
        worse = self.in_order[place + 1 :]
        willing = (offer for offer in worse if not view.avoided(offer))
        possible = (offer for offer in self.in_order if not view.refused(offer))
        return self.rentable(next(willing, next(possible, now) if view.refused(now) else now))
