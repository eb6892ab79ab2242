"""Capacity for launches: pools by type, market and zone, and quotas of running vCPUs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cloudtune.infra.emulator.faults import Capacity, Pool, Quota
from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.scenario import ec2_error


def find_room(
    wanted: Pool,
    counts: tuple[int, int],
    machines: Sequence[Machine],
    capacities: Sequence[Capacity],
    zones: Iterable[str],
) -> tuple[Pool, int]:
    """Return the pool of a launch, and how many instances fit, all in one zone.

    `counts` are the minimum and the maximum. Of several zones, the first with room for all counts,
    or else the one with the most room. A machine that is ending still takes room.

    Raises:
        Ec2Error: InsufficientInstanceCapacity; not even the minimum fits anywhere.
    """
    least, most = counts
    rooms: dict[Pool, int] = {}
    for pool in (replace(wanted, zone=zone) for zone in zones):
        rooms[pool] = most
        for capacity in capacities:
            if capacity.instances is not None and capacity.fits(pool):
                used = sum(capacity.fits(machine.pool) for machine in machines)
                rooms[pool] = min(rooms[pool], capacity.instances - used)
    pool = max(rooms, key=rooms.__getitem__)  # the first of equals
    if rooms[pool] < max(1, least):
        where = f"in {wanted.zone}" if wanted.zone else "in any zone"
        what = f"{least} {wanted.instance_type} ({wanted.market})"
        text = f"There is no capacity for {what} {where} now."
        raise ec2_error("InsufficientInstanceCapacity", text)
    return pool, rooms[pool]


def check_quotas(
    pool: Pool, vcpus: int, machines: Sequence[Machine], quotas: Sequence[Quota]
) -> None:
    """Check that the vCPUs of a whole launch may run on top of those that do.

    Raises:
        Ec2Error: VcpuLimitExceeded, or for spot MaxSpotInstanceCountExceeded.
    """
    running = [machine for machine in machines if not machine.is_leaving]
    for quota in quotas:
        if quota.vcpus is None or not quota.fits(pool):
            continue
        used = sum(machine.vcpus for machine in running if quota.fits(machine.pool))
        if used + vcpus > quota.vcpus:
            is_spot = pool.market == "spot"
            code = "MaxSpotInstanceCountExceeded" if is_spot else "VcpuLimitExceeded"
            limit = f"the {pool.market} limit is {quota.vcpus}"
            raise ec2_error(code, f"{vcpus} vCPUs were asked for and {used} run; {limit}.")
