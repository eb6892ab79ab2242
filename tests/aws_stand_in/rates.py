"""How often EC2 lets an account call it in a region, by its page on throttling.

Besides the figures of `cloudtune.infra.emulator.rates`: Describe calls without filters, and
"Resource token bucket sizes and refill rates", by which instances are rationed too.
"""

import re
from collections.abc import Callable, Mapping

from cloudtune.infra.emulator import rates
from cloudtune.infra.emulator.rates import OWN_RATES, Buckets, Rate

UNFILTERED = Rate(50, 10)
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
_INSTANCES = {"RunInstances": Rate(1000, 2), "TerminateInstances": Rate(1000, 20)}
"""Buckets of instances, besides those of calls."""
_NARROWED = re.compile(r"(Filter|MaxResults|NextToken|\w+Id)(\.|$)")


def find_rate(action: str, parameters: Mapping[str, str]) -> tuple[str, Rate]:
    """Return the name and the figures of the bucket that a call takes a token of."""
    is_narrowed = any(map(_NARROWED.match, parameters))
    if action in _UNFILTERED and action not in OWN_RATES and not is_narrowed:
        return f"{action}, unfiltered", UNFILTERED
    return action, rates.find_rate(action)


class AccountRates:
    """The buckets of an account; the caller serialises access. `now` is in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._buckets = Buckets(now)

    def let_in(self, region: str, action: str, parameters: Mapping[str, str]) -> bool:
        """Whether EC2 takes a call now; if so it counts."""
        name, rate = find_rate(action, parameters)
        if not self._buckets.take(f"{region} {name}", rate):
            return False
        if action not in _INSTANCES:
            return True
        named = sum(name.startswith("InstanceId") for name in parameters)
        count = named or int(parameters.get("MaxCount", "1"))
        return self._buckets.take(f"{region} {action}: instances", _INSTANCES[action], count)
