"""How a run's money is spread over its time: how many instances, and what they leave."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from cloudtune.strategies.worth import Purchase, buy_instances

if TYPE_CHECKING:
    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Rentable
    from cloudtune.model.trial import Width
    from cloudtune.strategies.base import View
    from cloudtune.strategies.offers import Offers

# The share of a run's time after which a fleet may grow again, by what was left over.
GROWTH = 0.05
# A further instance boots in at most this share of the time that is left.
LATE_BOOT = 0.2


class Spending(Protocol):
    """What a run's money is planned to be spent on, as results come in."""

    @property
    def offers(self) -> Offers:
        """The offers that it may rent, and the one that it plans with."""

    def instances(self, view: View) -> int:
        """Return how many instances of the planned offer there should be."""

    def unspent(self, view: View) -> float:
        """Return the dollars per second that these instances leave."""

    def width(self, view: View) -> Width:
        """Return the width at which new trials train."""


class EvenSpending:
    """Spends what the limits leave evenly until the deadline.

    The number of instances is chosen when the run begins, and again for another offer or once the
    fleet is no longer held back. From time to time more are rented for what was left over: a
    fleet is of whole instances, and those on spot may have been away.
    """

    def __init__(self, offers: Offers, width: Width) -> None:
        self.offers = offers
        self._width = width
        self._planned_for: tuple[Offer, bool] | None = None
        self._bought = Purchase(0)
        self._planned_at = 0.0

    def instances(self, view: View) -> int:
        return self._plan(view).instances

    def unspent(self, view: View) -> float:
        return self._plan(view).unspent

    def width(self, view: View) -> Width:
        return self._width

    def _plan(self, view: View) -> Purchase:
        self.offers.look(view, self._bought.instances)
        rentable = self.offers.chosen
        planned = rentable.offer, self.offers.scouting.small
        if self._planned_for != planned:
            self._planned_for = planned
            self._planned_at = view.now
            self._bought = self._buy(view, rentable)
        elif self._may_grow(view):
            self._planned_at = view.now
            more = self._buy(view, rentable)
            if more.instances > self._bought.instances:
                self._bought = more
        return self._bought

    def _may_grow(self, view: View) -> bool:
        """Whether to look for money that was left over since the fleet was planned.

        Not if another instance could hardly train any more.
        """
        ends_at = view.now + view.seconds_left
        if math.isinf(ends_at) or view.now - self._planned_at < GROWTH * ends_at:
            return False
        offer = self.offers.chosen.offer
        delay = view.delay(offer, "launch") + view.delay(offer, "boot")
        return delay < LATE_BOOT * view.seconds_left

    @staticmethod
    def _buy(view: View, rentable: Rentable) -> Purchase:
        if math.isinf(view.seconds_left):  # nothing says how slowly money may be spent
            return Purchase(rentable.most, math.inf)
        price = rentable.offer.usd_per_second
        return buy_instances(view.dollars_left, price, view.seconds_left, rentable.most)
