"""How long an offer that the cloud refuses stays away, and so what it is still worth.

An offer without capacity isn't gone: its instances come later. What the limits buy on it then is
compared with what they buy elsewhere at once. Where money bounds the fleet, a wait costs little, as
the same money pays for more instances afterwards; where time does, it costs epochs.
"""

import math
from collections.abc import Sequence

from cloudtune.model.catalog import SpotBehaviour
from cloudtune.model.plans import Rentable
from cloudtune.strategies.base import View
from cloudtune.strategies.worth import FILLERS, Means, epochs_bought


def by_worth_after_waits(
    view: View, rentables: Sequence[Rentable], means: Means
) -> Sequence[Rentable]:
    """Return the offers, best first, by what means buy once the cloud is expected to have them."""
    cheapest = sorted(rentables, key=lambda rentable: rentable.epoch_dollars)
    waits = {rentable.offer: expected_wait(view, rentable) for rentable in cheapest}
    fillers = [rentable for rentable in cheapest if waits[rentable.offer] == 0][:FILLERS]

    def worth(rentable: Rentable) -> float:
        seconds = means.seconds - waits[rentable.offer]
        if seconds <= 0:
            return 0.0
        return epochs_bought(rentable, means._replace(seconds=seconds), fillers)

    return sorted(cheapest, key=worth, reverse=True)


def expected_wait(view: View, rentable: Rentable) -> float:
    """Return the seconds until the cloud is expected to have an offer; 0 if it has it now.

    That is inf after a refusal for another reason than capacity: waiting doesn't help against a
    quota.
    """
    backoff = view.backoffs.get(rentable.offer)
    if backoff is None:
        return 0.0
    pause = max(0.0, backoff.relaunch_at - view.now)
    if backoff.empty_since is not None and not backoff.for_good:
        away = backoff.empty_at - backoff.empty_since
        left = outage_left(rentable.behaviours, away, view.now - backoff.empty_at)
        return max(pause, left)
    return math.inf if backoff.refusals or view.refused(rentable.offer) else pause


def outage_left(behaviours: Sequence[SpotBehaviour], away: float, unasked: float) -> float:
    """Return the mean seconds that a pool stays away, asked `unasked` seconds ago.

    It had been away for `away` seconds then. It behaves in one of several ways, equally likely at
    first. A pool that is often away, and for long, is the likelier one to be found so. Since it was
    asked it may have come back, and gone again. Of a pool about which nothing is known, the time
    that it has been away is the best guess.
    """
    chances = []
    left = []
    for way in behaviours:
        chance = (1 - way.availability) * _still(away, way.outage)
        chances.append(chance)
        returned = 1 - _still(unasked, way.outage * way.availability)
        left.append(chance * way.outage * (1 - way.availability * returned))
    total = math.fsum(chances)
    if total <= 0:
        return away * _still(unasked, away)
    return math.fsum(left) / total


def _still(seconds: float, mean: float) -> float:
    """Return the chance that what lasts for `mean` seconds on average lasts longer than that."""
    return math.exp(-seconds / mean) if mean > 0 else 0.0
