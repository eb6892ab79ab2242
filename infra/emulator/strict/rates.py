"""How often EC2 lets an account call it in a region: token buckets.

From "Request throttling for the Amazon EC2 API" (EC2 developer guide, tables "Request token bucket
sizes and refill rates" and "Resource token bucket sizes and refill rates", a copy of 2025): each
action has a bucket of its own, its size and refill by its category. Not there: the categories of
the console, and the actions with figures of their own that cloudtune never calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Rate(NamedTuple):
    """How many calls may come at once, and how many a second after that."""

    burst: float
    per_second: float


READING = Rate(100, 20)
UNFILTERED = Rate(50, 10)
WRITING = Rate(50, 5)
_READING = ("Describe", "Get", "List", "Search")
_UNFILTERED = frozenset(
    {
        "DescribeInstances",
        "DescribeInstanceStatus",
        "DescribeNetworkInterfaces",
        "DescribeSecurityGroups",
        "DescribeSnapshots",
        "DescribeSpotInstanceRequests",
        "DescribeVolumes",
    }
)
_OWN = {
    "AssociateIamInstanceProfile": Rate(100, 5),
    "CreateTags": Rate(100, 10),
    "CreateVolume": Rate(100, 5),
    "DeleteTags": Rate(100, 10),
    "DeleteVolume": Rate(100, 5),
    "RunInstances": Rate(5, 2),
    "StartInstances": Rate(5, 2),
    "TerminateInstances": Rate(100, 5),
}
_RESOURCES = {
    "RunInstances": Rate(1000, 2),
    "StartInstances": Rate(1000, 2),
    "StopInstances": Rate(1000, 20),
    "TerminateInstances": Rate(1000, 20),
}
"""Buckets of instances, besides those of calls."""
_NARROWED = re.compile(r"(Filter|MaxResults|NextToken|\w+Id)(\.|$)")


def rate_of(action: str, parameters: Mapping[str, str] | None = None) -> tuple[str, Rate]:
    """Return the bucket that a call takes a token of: its name, and its figures.

    Without `parameters` a call counts as filtered.
    """
    if action in _OWN:
        return action, _OWN[action]
    if not action.startswith(_READING):
        return action, WRITING
    plain = parameters is not None and not any(map(_NARROWED.match, parameters))
    if plain and action in _UNFILTERED:
        return f"{action}, unfiltered", UNFILTERED
    return action, READING


def instances_of(action: str, parameters: Mapping[str, str]) -> int:
    """Return how many instances a call is about, where those are rationed as well; else 0."""
    if action not in _RESOURCES:
        return 0
    if action == "RunInstances":
        return int(parameters.get("MaxCount", "1"))
    return sum(name.startswith("InstanceId") for name in parameters)


@dataclass
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """The buckets of an account; the caller serialises access. `now` is in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[str, _Bucket] = {}

    def take(self, name: str, rate: Rate, tokens: int = 1) -> bool:
        """Take tokens out of a bucket, which is full at first; False where it hasn't as many."""
        now = self._now()
        bucket = self._buckets.setdefault(name, _Bucket(rate.burst, now))
        gained = max(0.0, now - bucket.at) * rate.per_second
        bucket.tokens, bucket.at = min(rate.burst, bucket.tokens + gained), now
        if bucket.tokens < tokens:
            return False
        bucket.tokens -= tokens
        return True

    def let_in(self, region: str, action: str, parameters: Mapping[str, str]) -> bool:
        """Whether EC2 takes a call now, by the figures of its page; if so it is counted."""
        name, rate = rate_of(action, parameters)
        if not self.take(f"{region} {name}", rate):
            return False
        instances = instances_of(action, parameters)
        return not instances or self.take(
            f"{region} {action}: instances", _RESOURCES[action], instances
        )
