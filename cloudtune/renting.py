"""What every policy of a run does about money and time: brakes, requests, returns, the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cloudtune.bookkeeping import Books
from cloudtune.commands import Command, EndRun, Launch, Release, SetTimer
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtune.catalog import Offer
    from cloudtune.events import Event
    from cloudtune.fleet import Rented


class Renter(Books):
    """Rents and gives back within the limits; what for, is its subclasses' business."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one event in and return what is to be done about it, in order."""
        if self.ended:
            return ()
        self.now = event.at
        commands = [*self._note(event), *self._advance()]
        self.check_invariants()
        return tuple(commands)

    def _advance(self) -> Iterable[Command]:
        """Decide what is to be done now that an event has been noted."""
        raise NotImplementedError

    # ---- the limits ----------------------------------------------------------------------

    @property
    def _ahead(self) -> float:
        """By when all could be given back, if that were decided only at the next tick."""
        return self.now + self.brakes.tick + self.brakes.drain

    def _brake(self) -> None:
        """End the run while what it holds can still be given back within both limits."""
        if self.limits.deadline is not None and self._ahead >= self.limits.deadline:
            self._end(EndReason.DEADLINE)
        elif self.limits.budget is not None and self.spent(self._ahead) > self.limits.budget:
            self._end(EndReason.BUDGET)

    def _next_brake(self) -> float:
        """Return a time before which neither limit can come near with the fleet as it is.

        Not sooner than the next tick: to be one late is what the brakes reckon with.
        """
        at, limits, tick = math.inf, self.limits, self.brakes.tick
        if limits.deadline is not None:
            at = limits.deadline - tick - self.brakes.drain
        if limits.budget is not None:
            rate, grains = self._burn()
            left = limits.budget - self.spent(self._ahead) - grains
            at = min(at, self.now + left / rate) if rate > 0 else at
        return max(at, self.now + tick)

    def safe_until(self) -> float:
        """Return when all that is rented must be gone if nothing more is decided; inf: never.

        So long a lease keeps both limits even if this policy is never asked again.
        """
        limits = self.limits
        at = math.inf if limits.deadline is None else limits.deadline
        if limits.budget is not None:
            rate, grains = self._burn()
            left = limits.budget - self.spent(self.now) - grains
            at = min(at, self.now + left / rate) if rate > 0 else at
        return max(at, self.now)

    def _burn(self) -> tuple[float, float]:
        """Return dollars a second as things are, and what rounding up may add in the end."""
        alive = self.fleet.alive()
        rate = sum(r.offer.usd_per_second for r in alive) + self.charges.usd_per_second
        return rate, sum(r.offer.usd_per_second * r.offer.granularity_seconds for r in alive)

    def _restless(self) -> bool:
        """Whether something is due that no event would tell: a node, a return, another request."""
        return self.fleet.unsettled() or any(
            self.now < t.relaunch_at for t in self.troubles.values()
        )

    def _affordable(self, wanted: Iterable[Offer]) -> list[Offer]:
        """Return what of it could be rented, and all given back, on the budget."""
        if self.limits.budget is None:
            return list(wanted)
        bill = self.spent(self._ahead)
        found: list[Offer] = []
        for offer in wanted:
            charge = offer.charge(self._ahead - self.now) + self.charges.usd_per_launch
            if bill + charge <= self.limits.budget:
                bill += charge
                found.append(offer)
        return found

    # ---- the fleet -----------------------------------------------------------------------

    def _may_ask(self, offer: Offer) -> bool:
        trouble = self._trouble(offer)
        return self.now >= trouble.relaunch_at and not trouble.for_good

    def _launch(self, offer: Offer) -> Command:
        zone = self._trouble(offer).zone(self._zones(offer))
        intent = self.fleet.request(offer, self.now, zone).intent
        return Launch(intent, offer.instance_type.name, offer.market, zone, offer.usd_per_hour)

    def _release(self, rented: Rented) -> Command:
        rented.released, rented.released_at = True, self.now
        return Release(rented.intent)

    # ---- the end -------------------------------------------------------------------------

    def _wind_down(self) -> Iterable[Command]:
        """Stop every session and give every instance back, then end; repeat until confirmed."""
        commands: list[Command] = [
            self._stop(trial, "parked")
            for trial in self.trials.values()
            if trial.live and trial.status != "stopping"
        ]
        commands += [self._release(r) for r in self.fleet.alive() if not r.released]
        if not self.fleet.alive() or self.cleanups > self.brakes.patience:
            self.ended = True
            assert self.ending is not None
            commands.append(EndRun(self.ending))
        elif not self.winding_down:
            commands.append(SetTimer("cleanup", self.now + self.brakes.cleanup))
        self.winding_down = True
        return commands
