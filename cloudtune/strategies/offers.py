"""The offers of a run in the order of their worth, and the one that it plans with."""

import math
from collections import Counter
from collections.abc import Sequence

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Rentable
from cloudtune.strategies.base import Moment, View
from cloudtune.strategies.scouting import Scouting, choose_first
from cloudtune.strategies.waiting import by_worth_after_waits
from cloudtune.strategies.worth import Means, by_worth


class Offers:
    """The offers in order of their worth within the limits, and the one planned with.

    Where speeds only follow from those of other GPUs, a run finds out which offer is worth its
    price: its `scouting` says which instance joins for that, and which GPUs were left.

    `until_limits`: the run ends by its limits, not with some number of trials. What is saved by
    waiting for an offer then pays for more trials.
    """

    def __init__(self, rentables: Sequence[Rentable], means: Means, *, until_limits: bool) -> None:
        self.means = means
        self._until_limits = until_limits
        self._rank(by_worth(rentables, means), rentables)
        self.chosen = choose_first(self.rentables, means)
        self.scouting = Scouting(self.chosen, rentables)
        self._asked: tuple[Offer, int, int] | None = None
        self._answer = self.chosen.offer
        self._last_look: tuple[Moment, int] | None = None

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
        look = view.moment, instances
        if look == self._last_look:
            return False
        before = self.chosen, self.scouting.small
        self.chosen = self._available(view, instances)
        decides = self.scouting.has_news(view, self.chosen.offer)
        if decides:
            self._decide(view)
        self.scouting.follow(view, self.chosen.offer)
        if before == (self.chosen, self.scouting.small) and not decides:
            self._last_look = look  # another one would change nothing, either
        return self.chosen is not before[0]

    def _decide(self, view: View) -> None:
        """Rank the offers by what is known of their speeds now; choose by that."""
        means = self.means._replace(seconds=view.seconds_left, dollars=view.dollars_left)
        corrected = [view.on_average(rentable) for rentable in self.rentables]
        ranked = by_worth(corrected, means)
        offer = self.scouting.decide(view, self.chosen.offer, ranked, means)
        self.chosen = self.rentable(offer)
        # The chosen one comes first: others don't take over only because some of them are held.
        others = [each.offer for each in ranked if each.offer != offer]
        others.sort(key=self.scouting.is_left)
        self._rank([self.chosen, *map(self.rentable, others)], corrected)

    def _available(self, view: View, instances: int) -> Rentable:
        now = self.chosen.offer
        held = max(1, view.held.get(now, 0) * now.gpus)
        # What happens to be there of another offer is no reason to drop a choice made just now.
        is_new = now == self._answer and now not in view.held
        place = 0 if is_new and self.may_wait(view) else self._places[now]
        joined = Counter(rented.offer for rented in view.fleet.usable()) if place else {}
        for offer in self.in_order[:place]:
            if offer in self.scouting.scouts:
                continue
            if joined.get(offer, 0) * offer.gpus >= held and not view.avoided(offer):
                return self.rentable(offer)
        if not view.avoided(now) or view.held.get(now, 0) >= instances:
            return self.chosen
        if self.may_wait(view):
            return self._soonest(view)
        worse = self.in_order[self._places[now] + 1 :]
        willing = (offer for offer in worse if not view.avoided(offer))
        possible = (offer for offer in self.in_order if not view.refused(offer))
        return self.rentable(next(willing, next(possible, now) if view.refused(now) else now))

    def is_too_dear(self, view: View, offer: Offer) -> bool:
        """Whether instances of an offer are worth replacing by the planned one, of the same GPU.

        So are those that stood in for it when the cloud refused it.
        """
        one = self.rentable(offer)
        if not self.scouting.on or not self.scouting.could_replace(view, one, self.chosen):
            return False
        means = self.means._replace(seconds=view.seconds_left, dollars=view.dollars_left)
        return self.scouting.replaces(one, self.chosen, means)

    def fills(self, view: View, rentable: Rentable, count: int) -> bool:
        """Whether money that is left over is well spent on so many instances of an offer now.

        Later it pays for another instance of the planned offer, for a shorter time. With a number
        of trials, money that is saved buys nothing.
        """
        seconds = view.seconds_left
        if not self._until_limits or math.isinf(seconds) or math.isinf(view.dollars_left):
            return True
        dollars = count * rentable.offer.usd_per_second * seconds
        rest = self.means._replace(seconds=seconds, dollars=dollars)
        later = rest.buy(view.on_average(self.chosen)).epochs
        return rest.buy(view.on_average(rentable)).epochs >= later

    def may_wait(self, view: View) -> bool:
        """Whether time can be weighed against money, and something has trained.

        Until then a single instance is out, which finds out soon whether the script trains at all.
        """
        limited = view.limits.deadline is not None and view.limits.budget is not None
        saves = self._until_limits and limited
        return saves and self.chosen.offer.usd_per_second > 0 and not self.scouting.small

    def _soonest(self, view: View) -> Rentable:
        """Return the offer that buys most, with the time that refused ones are expected to take.

        Decided once in each round of refusals: until the next nothing more is known.
        """
        offer = self.chosen.offer
        backoff = view.backoffs[offer]
        asked = offer, backoff.refusals, backoff.no_shows
        if asked != self._asked:
            self._asked = asked
            means = self.means._replace(seconds=view.seconds_left, dollars=view.dollars_left)
            expected = [view.on_average(each) for each in self.rentables]
            self._answer = by_worth_after_waits(view, expected, means)[0].offer
        return self.rentable(self._answer)
