"""What pools and quotas need to know, read from moto's records and from launch requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtune.infra import pricing
from cloudtune.infra.emulated_faults import Market, Pool
from cloudtune.infra.emulated_pools import Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping


def pool_of(instance: Any) -> Pool:
    """Return where an instance of moto's is."""
    market: Market = "spot" if instance.lifecycle == "spot" else "on-demand"
    return Pool(instance.instance_type, market, instance.placement.zone)


def vcpus_of(instance_type: str) -> int:
    """Return how many vCPUs a type has; 0 where our table doesn't know it."""
    known = pricing.instance_types().get(instance_type)
    return 0 if known is None else known.vcpus


def wanted_of(backend: Any, parameters: Mapping[str, str]) -> Wanted | None:
    """Return what a launch asks for; None where the type is left to a launch template."""
    instance_type = parameters.get("InstanceType")
    if instance_type is None:
        return None
    zone = parameters.get("Placement.AvailabilityZone", "")
    if subnet := parameters.get("SubnetId"):
        zone = backend.get_subnet(subnet).availability_zone
    most = int(parameters.get("MaxCount", "1"))
    return Wanted(
        instance_type,
        "spot" if parameters.get("InstanceMarketOptions.MarketType") == "spot" else "on-demand",
        zone,
        least=int(parameters.get("MinCount", "1")),
        most=most,
        vcpus=vcpus_of(instance_type),
    )
