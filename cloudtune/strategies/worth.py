"""Which offers to rent: by how much training the limits buy on each.

One rule for every strategy that decides as results come in. An offer is worth the epochs that its
fleet trains until the deadline: as many instances as the money pays for until then, less the
seconds and dollars of booting them, less what spot interruptions cost. Money that doesn't pay for
another whole instance buys training on smaller ones.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from cloudtune.model.plans import Limits, Rentable

# A fraction of an instance from which on a whole one is rented, for a shorter time.
ROUND = 0.25
# How many offers with the cheapest epochs may take the money that an offer can't spend.
FILLERS = 4


class Purchase(NamedTuple):
    """How many instances of one offer to rent, and the dollars per second that these leave.

    Without a budget that is inf.
    """

    instances: int
    unspent: float = 0.0


def means_within(
    limits: Limits,
    instances: float = math.inf,
    last_epoch: int = 1,
    trials_at_once: float = math.inf,
) -> "Means":
    """Return the means of a run that has not begun, of at most so many instances at once."""
    seconds = math.inf if limits.deadline is None else limits.deadline
    dollars = math.inf if limits.budget is None else limits.budget
    return Means(seconds, dollars, instances, last_epoch, trials_at_once)


def buy_instances(dollars: float, price: float, seconds: float, most: int) -> Purchase:
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


class Means(NamedTuple):
    """What a run may still use: seconds, dollars and instances at once; inf is no limit.

    Trials train to `last_epoch` at most, `trials_at_once` of them on average: other GPUs are idle.
    """

    seconds: float
    dollars: float
    instances: float = math.inf
    last_epoch: int = 1
    trials_at_once: float = math.inf

    def buy(self, rentable: Rentable) -> "Bought":
        """Return what these means buy on one offer.

        Each instance boots first, and must be back before the end. Where trials can't reach their
        last epoch by then, epochs count only by the share that they do reach: at the width at which
        that comes to most. A wide trial reaches more, and leaves room for fewer.
        """
        price = rentable.offer.usd_per_second
        billed = max(0.0, self.seconds - rentable.profile.launch.mean)
        most = int(min(rentable.most, self.instances))
        count = buy_instances(self.dollars, price, billed, most).instances
        if price > 0 and count > 0:
            billed = min(billed, self.dollars / (price * count))
        span = max(0.0, billed - rentable.idle_seconds)
        trained = 0.0
        for seconds, instance_seconds in rentable.paces:
            if instance_seconds <= count * seconds:  # so many instances have GPUs for one trial
                reached = min(1.0, span / (self.last_epoch * seconds))
                trained = max(trained, span / instance_seconds * reached)
        rooms = max(1.0, count * rentable.gpus / max(1.0, rentable.cheapest_width))
        busy = min(1.0, self.trials_at_once / rooms)
        spent = count * rentable.offer.charge(billed) if price > 0 else 0.0
        return Bought(count, count * trained * busy, spent)

    def less(self, bought: "Bought") -> "Means":
        """Return what a purchase leaves."""
        dollars = max(0.0, self.dollars - bought.dollars)
        instances = self.instances - bought.instances
        return Means(self.seconds, dollars, instances, self.last_epoch, self.trials_at_once)


class Bought(NamedTuple):
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
    fillers = cheapest[:FILLERS]

    def worth(rentable: Rentable) -> float:
        return epochs_bought(rentable, means, fillers)

    return tuple(sorted(cheapest, key=worth, reverse=True))


def epochs_bought(rentable: Rentable, means: Means, fillers: Sequence[Rentable]) -> float:
    """Return the epochs that means buy on an offer.

    What whole instances of it leave buys more on one of `fillers`, or on another one of it later.
    """
    bought = means.buy(rentable)
    rest = means.less(bought)
    if math.isinf(means.dollars) or rest.dollars <= 0 or rest.instances < 1:
        return bought.epochs
    more = 0.0
    for filler in (*fillers, rentable):
        # Most can't buy more than the first: at most this share of what they cost trains.
        share = 1 - filler.idle_seconds / max(1.0, rest.seconds)
        if more * filler.epoch_dollars < rest.dollars * share:
            more = max(more, rest.buy(filler).epochs)
    return bought.epochs + more
