"""How many calls EC2 takes: token buckets, of an account in a region.

EC2 developer guide, "Request throttling for the Amazon EC2 API" (read 2026-11): tables of request
token and of resource token buckets, by category of action.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudtune.infra.emulator.requests import Ec2Error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Rate:
    """A bucket of `size` tokens, filled again with `refill` of them a second."""

    size: float
    refill: float


NON_MUTATING = Rate(100, 20)
UNFILTERED = Rate(50, 10)
MUTATING = Rate(50, 5)
OF_THEIR_OWN: Mapping[str, Rate] = {
    "RunInstances": Rate(5, 2),
    "TerminateInstances": Rate(100, 5),
    "GetConsoleOutput": Rate(100, 10),
    "DescribeSpotPriceHistory": NON_MUTATING,
}
RESOURCES: Mapping[str, Rate] = {
    "RunInstances": Rate(1000, 2),
    "TerminateInstances": Rate(1000, 20),
}
_READS = ("Describe", "Get", "List", "Search")


def category(action: str, parameters: Mapping[str, str]) -> tuple[str, Rate]:
    """Return the bucket that a call is taken from: its name, and its rate."""
    if action in OF_THEIR_OWN:
        return action, OF_THEIR_OWN[action]
    if not action.startswith(_READS):
        return "mutating", MUTATING
    narrowed = any(
        name.startswith(("Filter.", "MaxResults")) or ".1" in name for name in parameters
    )
    return ("non-mutating", NON_MUTATING) if narrowed else ("unfiltered", UNFILTERED)


@dataclass
class _Bucket:
    rate: Rate
    tokens: float
    at: float

    def take(self, count: float, now: float) -> bool:
        grown = self.tokens + (now - self.at) * self.rate.refill
        self.tokens, self.at = min(self.rate.size, grown), now
        if self.tokens < count:
            return False
        self.tokens -= count
        return True


@dataclass
class Throttle:
    """The buckets of an account; `now` gives seconds."""

    now: Callable[[], float]
    _buckets: dict[tuple[str, str], _Bucket] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, region: str, action: str, parameters: Mapping[str, str]) -> None:
        """Take a call's tokens.

        Raises:
            Ec2Error: RequestLimitExceeded, there are none left.
        """
        name, rate = category(action, parameters)
        wanted = [(name, rate, 1.0)]
        if action in RESOURCES:
            count = float(parameters.get("MaxCount", 1))
            if action == "TerminateInstances":
                count = sum(each.startswith("InstanceId") for each in parameters)
            wanted.append((f"{action} resources", RESOURCES[action], count))
        with self._lock:
            for bucket, its, count in wanted:
                if not self._bucket(region, bucket, its).take(count, self.now()):
                    raise Ec2Error("RequestLimitExceeded", "Request limit exceeded.", 503)

    def _bucket(self, region: str, name: str, rate: Rate) -> _Bucket:
        return self._buckets.setdefault((region, name), _Bucket(rate, rate.size, self.now()))
