"""Room for launches: capacity pools by type, market and zone, and quotas of running vCPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudtune.infra.aws import pricing
from cloudtune.infra.emulator.faults import Capacity, Market, Pool, Quota
from cloudtune.infra.emulator.scenario import ec2_error


@dataclass(frozen=True)
class Wanted:
    """A launch that was asked for: of `least` to `most` instances; zone "" means any."""

    instance_type: str
    market: Market
    zone: str
    least: int
    most: int
    vcpus: int


@dataclass(frozen=True)
class Held:
    """An instance that is there; one that is ending holds capacity, but no longer runs vCPUs."""

    pool: Pool
    vcpus: int
    runs: bool


def find_room(
    wanted: Wanted, held: Sequence[Held], capacities: Sequence[Capacity], zones: Sequence[str]
) -> tuple[str, int]:
    """Return the zone of a launch and how many instances there is room for: all in one zone.

    Of several zones the first with room for all is taken, else the one with the most room.

    Raises:
        Ec2Error: InsufficientInstanceCapacity; not even `least` fit anywhere.
    """
    rooms = {
        zone: _room(Pool(wanted.instance_type, wanted.market, zone), held, capacities, wanted.most)
        for zone in ([wanted.zone] if wanted.zone else zones)
    }
    zone = max(rooms, key=lambda zone: rooms[zone])  # the first of equals
    if rooms[zone] < max(1, wanted.least):
        where = f"in {wanted.zone}" if wanted.zone else "in any zone"
        what = f"{wanted.least} {wanted.instance_type} ({wanted.market})"
        text = f"There is no capacity for {what} {where} now."
        raise ec2_error("InsufficientInstanceCapacity", text)
    return zone, rooms[zone]


def _room(pool: Pool, held: Sequence[Held], capacities: Sequence[Capacity], most: int) -> int:
    room = most
    for capacity in capacities:
        if capacity.instances is not None and capacity.fits(pool):
            there = sum(capacity.fits(instance.pool) for instance in held)
            room = min(room, capacity.instances - there)
    return room


def check_quotas(wanted: Wanted, zone: str, held: Sequence[Held], quotas: Sequence[Quota]) -> None:
    """Pass if the vCPUs of a whole launch may run besides those that do.

    Raises:
        Ec2Error: VcpuLimitExceeded, or for spot MaxSpotInstanceCountExceeded.
    """
    pool = Pool(wanted.instance_type, wanted.market, zone)
    for quota in quotas:
        if quota.vcpus is None or not quota.fits(pool):
            continue
        running = sum(
            instance.vcpus for instance in held if instance.runs and quota.fits(instance.pool)
        )
        asked = wanted.vcpus * wanted.most
        if running + asked > quota.vcpus:
            is_spot = wanted.market == "spot"
            code = "MaxSpotInstanceCountExceeded" if is_spot else "VcpuLimitExceeded"
            limit = f"the {wanted.market} limit is {quota.vcpus}"
            raise ec2_error(code, f"{asked} vCPUs were asked for and {running} run; {limit}.")


def pool_of(instance: Any) -> Pool:
    """Return where an instance of moto's is."""
    market: Market = "spot" if instance.lifecycle == "spot" else "on-demand"
    return Pool(instance.instance_type, market, instance.placement.zone)


def vcpus_of(instance_type: str) -> int:
    """Return how many vCPUs a type has; 0 where our table doesn't know it."""
    kind = pricing.instance_types().get(instance_type)
    return 0 if kind is None else kind.vcpus


def wanted_of(backend: Any, parameters: Mapping[str, str]) -> Wanted:
    """Return what a launch asks for."""
    instance_type = parameters.get("InstanceType", "")
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
