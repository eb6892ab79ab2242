"""How a run keeps its deadline and budget: when to wind down, what may still be rented."""

import math
from collections.abc import Iterable
from typing import Protocol

from cloudtune.model.catalog import Offer
from cloudtune.model.fleet import FleetBook
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import Brakes

# Precision in seconds of the computed end of a lease.
_FINEST = 0.01


class Spender(Protocol):
    """What the limits need of a run: its instances, its charges and the time."""

    limits: Limits
    brakes: Brakes
    charges: Charges
    fleet: FleetBook
    now: float

    def spent(self, at: float) -> float:
        """Return the bill in dollars if everything were returned at that time."""


class LimitKeeper:
    """Watches deadline and budget, so that all instances can be returned within both."""

    def __init__(self, state: Spender) -> None:
        self._state = state
        self._look_at = 0.0  # neither limit can come near before that

    @property
    def _ahead(self) -> float:
        return self._state.brakes.ahead(self._state.now)

    def passed_limit(self) -> EndReason | None:
        """Return the limit that ends the run now, while everything can still be returned in it."""
        state = self._state
        limits = state.limits
        if state.now < self._look_at:
            return None
        if limits.deadline is not None and self._ahead >= limits.deadline:
            return EndReason.DEADLINE
        if limits.budget is not None and state.spent(self._ahead) > limits.budget:
            return EndReason.BUDGET
        return None

    def next_look(self) -> float:
        """Return the run second of the next look at the limits; inf: never.

        Before that, `passed_limit` returns None without computing the bill. So an event is cheap to
        handle, however many instances bill.
        """
        if self._state.now >= self._look_at:
            self._look_at = self._next_look()
        return self._look_at

    def note_launch(self) -> None:
        """Record a launch: money runs faster from now on, so the next look may come sooner."""
        self._look_at = 0.0

    def _next_look(self) -> float:
        """Return a time before which neither limit can come near with the present fleet.

        Not sooner than the next tick: `Brakes.ahead` already allows for a late tick.
        """
        state = self._state
        limits = state.limits
        at = math.inf
        tick = state.brakes.tick
        if limits.deadline is not None:
            at = limits.deadline - tick - state.brakes.drain
        if limits.budget is not None:
            rate, grains = self._burn()
            left = limits.budget - state.spent(self._ahead) - grains
            at = min(at, state.now + left / rate) if rate > 0 else at
        return max(at, state.now + tick)

    def safe_until(self) -> float:
        """Return when all instances must be gone if nothing more is decided; inf: never.

        A lease until then keeps both limits even if the policy is never called again. Exact to a
        hundredth of a second, and including seconds already paid for by a minimum charge.
        """
        state = self._state
        limits = state.limits
        at = math.inf if limits.deadline is None else limits.deadline
        rate, _ = self._burn()
        if limits.budget is not None and rate > 0:
            offers = [rented.offer for rented in state.fleet.alive()]
            paid = max((o.minimum_seconds + o.granularity_seconds for o in offers), default=0.0)
            left = max(0.0, limits.budget - state.spent(state.now))
            at = min(at, self._last_within(limits.budget, state.now + left / rate + paid))
        return max(at, state.now)

    def _last_within(self, budget: float, late: float) -> float:
        """Return the last run second, up to `late`, at which the bill is within the budget."""
        state = self._state
        low = state.now
        high = late
        if state.spent(high) <= budget:
            return high
        while high - low > _FINEST:
            middle = (low + high) / 2
            low, high = (middle, high) if state.spent(middle) <= budget else (low, middle)
        return low

    def _burn(self) -> tuple[float, float]:
        """Return the present dollars per second, and what rounding up may add at the end."""
        alive = self._state.fleet.alive()
        rate = sum(r.offer.usd_per_second for r in alive) + self._state.charges.usd_per_second
        return rate, sum(r.offer.usd_per_second * r.offer.granularity_seconds for r in alive)

    def affordable(self, offers: Iterable[Offer]) -> list[Offer]:
        """Return those of the offers, in order, that the budget still pays for.

        It does if the bill stays within the budget with one such instance launched now and
        everything returned by `Brakes.ahead`.
        """
        state = self._state
        budget = state.limits.budget
        if budget is None:
            return list(offers)
        bill = state.spent(self._ahead)
        paid_for: list[Offer] = []
        for offer in offers:
            soon = self._ahead - state.now
            charge = offer.charge(soon) if not offer.per_function else soon * offer.usd_per_second
            charge += state.charges.usd_per_launch
            if bill + charge <= budget:
                bill += charge
                paid_for.append(offer)
        return paid_for
