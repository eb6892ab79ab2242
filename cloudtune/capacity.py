"""EC2's words for "not now": which refusals of a launch are for want of capacity.

The codes are those that Karpenter and AWS ParallelCluster act on (their sources, 2026).
"""

from __future__ import annotations

from typing import Final

QUOTA: Final = frozenset(
    {
        "InstanceLimitExceeded",
        "MaxFleetCountExceeded",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
    }
)
"""The account has as many as it may have, in whatever zone."""
NO_CAPACITY: Final = QUOTA | {
    "InsufficientCapacity",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientReservedInstanceCapacity",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "Unsupported",
}
"""There is none of that type in that market and zone just now."""
