"""Which offers to rent: by how much training the limits buy on each.

One rule for every strategy that decides as results come in. An offer is worth the epochs that its
fleet trains until the deadline: as many instances as the money pays for until then, less the
seconds and dollars of booting them, less what spot interruptions cost. Money that doesn't pay for
another whole instance buys training on smaller ones.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cloudtune.model.catalog import Offer
from cloudtune.model.plans import Limits, Rentable
from cloudtune.strategies.base import View
from cloudtune.strategies.race import Race

# A fraction of an instance from which on a whole one is rented, for a shorter time.
ROUND = 0.25
# How many offers with the cheapest epochs may take the money that an offer can't spend.
_FILLERS = 4


@dataclass(frozen=True)
class Purchase:
    """How many instances of one offer to rent, and the dollars per second that these leave.

    Without a budget that is inf.
    """

    instances: int
    unspent: float = 0.0


def means_within(limits: Limits, instances: float = math.inf, last_epoch: int = 1) -> "Means":
    """Return the means of a run that has not begun, of at most so many instances at once."""
    seconds = math.inf if limits.deadline is None else limits.deadline
    dollars = math.inf if limits.budget is None else limits.budget
    return Means(seconds, dollars, instances, last_epoch)


def paid_for(dollars: float, price: float, seconds: float, most: int) -> Purchase:
    """Return the largest fleet of one offer that `dollars` pay for over `seconds`.

    `price` is dollars per second of an instance. There is at least one instance, which lasts as
    long as the money does. Without a budget or a price there are `most`.
    """
    if math.isinf(dollars) or price == 0:
        return Purchase(most, math.inf)
    if math.isinf(seconds):
        return Purchase(1)
    rate = max(0.0, dollars) / max(seconds, 1.0)
    instances = min(most, max(1, math.floor(rate / price + ROUND)))
    return Purchase(instances, max(0.0, rate - instances * price))


@dataclass(frozen=True)
class Means:
    """What a run may still use: seconds, dollars and instances at once; inf is no limit.

    Trials train to `last_epoch` at most.
    """

    seconds: float
    dollars: float
    instances: float = math.inf
    last_epoch: int = 1

    def buy(self, rentable: Rentable) -> "Bought":
        """Return what these means buy on one offer.

        Each instance boots first, and must be back before the end. Where even the fastest trial
        can't reach its last epoch by then, epochs count only by the share that it does reach.
        """
        profile = rentable.profile
        price = rentable.offer.usd_per_second
        billed = max(0.0, self.seconds - profile.launch.mean)
        most = int(min(rentable.most, self.instances))
        count = paid_for(self.dollars, price, billed, most).instances
        if price > 0 and count > 0:
            billed = min(billed, self.dollars / (price * count))
        idle = profile.boot.mean + profile.start.mean + profile.release.mean
        span = max(0.0, billed - idle)
        trained = span / max(rentable.epoch_instance_seconds, 1e-9)
        fastest = min(rentable.epoch_seconds(width) for width in profile.widths)
        reached = min(1.0, span / max(self.last_epoch * fastest, 1e-9))
        spent = count * rentable.offer.charge(billed) if price > 0 else 0.0
        return Bought(count, count * trained * reached, spent)

    def less(self, bought: "Bought") -> "Means":
        """Return what a purchase leaves."""
        dollars = max(0.0, self.dollars - bought.dollars)
        return replace(self, dollars=dollars, instances=self.instances - bought.instances)


@dataclass(frozen=True)
class Bought:
    """Instances of one offer until the end, the epochs that they train, and their bill."""

    instances: int
    epochs: float
    dollars: float


def by_worth(rentables: Sequence[Rentable], means: Means) -> tuple[Rentable, ...]:
    """Return the offers, best for these means first.

    That is by the epochs that they buy, together with those that a cheap offer trains for the
    money and the instances that they leave. Without a budget, or without a deadline, money is spent
    where an epoch costs least: then there is nothing that a larger instance would be needed for.
    """
    cheapest = sorted(rentables, key=lambda rentable: rentable.epoch_dollars)
    priced = any(rentable.offer.usd_per_second for rentable in rentables)
    if priced and (math.isinf(means.dollars) or math.isinf(means.seconds)):
        return tuple(cheapest)
    fillers = cheapest[:_FILLERS]

    def worth(rentable: Rentable) -> float:
        return epochs_bought(rentable, means, fillers)

    return tuple(sorted(cheapest, key=worth, reverse=True))


def epochs_bought(rentable: Rentable, means: Means, fillers: Sequence[Rentable]) -> float:
    """Return the epochs that means buy on an offer, and for what it leaves on one of `fillers`."""
    bought = means.buy(rentable)
    rest = means.less(bought)
    if math.isinf(means.dollars) or rest.dollars <= 0 or rest.instances < 1:
        return bought.epochs
    return bought.epochs + max((rest.buy(filler).epochs for filler in fillers), default=0.0)


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
        others = [each.offer for each in ranked if each.offer != offer]
        others.sort(key=self.race.is_left)
        self._rank([self.chosen, *map(self.rentable, others)], corrected)

    def _available(self, view: View, instances: int) -> Rentable:
        now = self.chosen.offer
        held = max(1, view.held.get(now, 0) * now.gpus)
        place = self._places[now]
        joined = Counter(rented.offer for rented in view.fleet.usable()) if place else {}
        for offer in self.in_order[:place]:
            if offer == self.race.scout:
                continue
            if joined.get(offer, 0) * offer.gpus >= held and not view.avoided(offer):
                return self.rentable(offer)
        if not view.avoided(now) or view.held.get(now, 0) >= instances:
            return self.chosen
        worse = self.in_order[place + 1 :]
        willing = (offer for offer in worse if not view.avoided(offer))
        possible = (offer for offer in self.in_order if not view.refused(offer))
        return self.rentable(next(willing, next(possible, now) if view.refused(now) else now))
