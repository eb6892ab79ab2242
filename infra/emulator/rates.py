"""How often EC2 lets an account call it: token buckets, which a `throttle` of a scenario uses.

From "Request throttling for the Amazon EC2 API" (EC2 developer guide, table "Request token bucket
sizes and refill rates", a copy of 2025): each action has its own bucket, and its category
determines size and refill. Console actions, and those that cloudtune never calls, are left out.
"""

from collections.abc import Callable
from typing import NamedTuple


class Rate(NamedTuple):
    """The number of calls at once, and per second after that."""

    burst: float
    per_second: float


READING = Rate(100, 20)
WRITING = Rate(50, 5)
_READING_PREFIXES = ("Describe", "Get", "List", "Search")
# Actions with their own figures, whatever their category.
OWN_RATES = {
    "AssociateIamInstanceProfile": Rate(100, 5),
    "CreateTags": Rate(100, 10),
    "CreateVolume": Rate(100, 5),
    "DeleteTags": Rate(100, 10),
    "DeleteVolume": Rate(100, 5),
    "RunInstances": Rate(5, 2),
    "StartInstances": Rate(5, 2),
    "TerminateInstances": Rate(100, 5),
}


def find_rate(action: str) -> Rate:
    """Return the rate of an action; a Describe call counts as one with filters."""
    usual = READING if action.startswith(_READING_PREFIXES) else WRITING
    return OWN_RATES.get(action, usual)


class Buckets:
    """Token buckets by name; the caller serialises access. `now` is in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and the time of that number

    def take(self, name: str, rate: Rate, tokens: int = 1) -> bool:
        """Take tokens from a bucket, which is full at first; False if it has too few."""
        now = self._now()
        before, at = self._buckets.get(name, (rate.burst, now))
        available = min(rate.burst, before + max(0.0, now - at) * rate.per_second)
        is_enough = available >= tokens
        self._buckets[name] = (available - tokens if is_enough else available, now)
        return is_enough
