"""The subnets of a run: which ways lead out of them, and how instances get there.

A subnet's own route table decides, or the main one of its VPC. Behind an internet gateway an
instance needs a public address; behind a NAT, transit or virtual private gateway it needs none. An
endpoint leads to one service: a gateway's by the route table, an interface's from anywhere in the
VPC if it takes over the service's name. ("Configure route tables", "Gateway endpoints", "Interface
VPC endpoints": Amazon VPC user guide and AWS PrivateLink guide, as known to us.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cloudtune.infra.aws.errors import CALL_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cloudtune.experiment.cloud import CloudSettings
    from cloudtune.infra.aws.ec2 import Ec2

_EVERYWHERE = "0.0.0.0/0"
_GATEWAYS = (
    *("NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId", "GatewayId"),
    *("CoreNetworkArn", "LocalGatewayId", "CarrierGatewayId"),
)
_TITLES = {"s3": "S3", "ec2": "EC2"}
# What a gigabyte through a NAT gateway costs in us-east-1 (Amazon VPC pricing, as of 2026-11).
_NAT_USD_PER_GB = 0.045


@dataclass(frozen=True)
class Needs:
    """What instances of a kind call: services, by the names of their endpoints.

    `interfaces` are the network interfaces that a person's request names.
    """

    who: str
    services: tuple[str, ...]
    interfaces: Sequence[Any] = ()

    @property
    def may_have_address(self) -> bool:
        """Whether EC2 gives them public addresses on request: not with several interfaces."""
        return len(self.interfaces) <= 1


HEAD = Needs("the head", ("s3", "ec2"))
INSTANCES = Needs("instances", ("s3",))


def instances_of(settings: CloudSettings) -> Needs:
    """Return what a run's instances call; they reach their head within the VPC."""
    return replace(INSTANCES, interfaces=settings.request.get("NetworkInterfaces", ()))


@dataclass(frozen=True)
class Subnet:
    """A subnet, and the ways out of it.

    `gateway` is where its default route leads, "" without one; `is_dead` says that this is gone.
    `endpoints` are the services that have one here; `s3_is_free` says that S3's is by its route
    table, and so costs nothing. `gives_addresses`: instances get a public address unasked.
    """

    id: str
    zone: str
    vpc: str
    table: str = ""
    gateway: str = ""
    is_dead: bool = False
    endpoints: frozenset[str] = frozenset()
    s3_is_free: bool = False
    gives_addresses: bool = False

    @property
    def is_public(self) -> bool:
        return self.gateway.startswith("igw-") and not self.is_dead

    @property
    def has_way_out(self) -> bool:
        return bool(self.gateway) and not self.is_dead

    @property
    def description(self) -> str:
        """What kind of subnet this is, in words."""
        if self.is_public:
            asked = "" if self.gives_addresses else "; runs ask for a public address"
            return f"public, by {self.gateway}{asked}"
        if self.has_way_out:
            return f"private, out by {self.gateway}"
        if self.endpoints:
            return f"private, with endpoints of {', '.join(sorted(self.endpoints))} alone"
        return f"cut off: {self._reason}"

    @property
    def _reason(self) -> str:
        if self.is_dead:
            return f"{self.gateway}, where {self.table} leads, is gone"
        return f"{self.table or 'its route table'} leads to no internet or NAT gateway"

    def why_unusable(self, needs: Needs) -> str:
        """Return why an instance here wouldn't reach what it needs; "" if it would."""
        lacking = [service for service in needs.services if service not in self.endpoints]
        where = f"{self.id} ({self.zone})"
        if self.is_public and lacking and not (self.gives_addresses or needs.may_have_address):
            return (
                f"{where} is public, and EC2 gives no public address to an instance with several "
                "network interfaces (cloud.request)"
            )
        if self.has_way_out or not lacking:
            return ""
        services = " and ".join(_TITLES[service] for service in lacking)
        return f"{where} has no way to {services}: {self._reason}"

    def place(self, needs: Needs) -> dict[str, Any]:
        """Return the part of a launch that places it here, with a public address if it needs one.

        Private subnets get none: nothing could reach it.
        """
        part: dict[str, Any] = {"SubnetId": self.id}
        if self.is_public and not self.gives_addresses and needs.may_have_address:
            own = needs.interfaces[0] if needs.interfaces else {"DeviceIndex": 0}
            part["NetworkInterfaces"] = [{"AssociatePublicIpAddress": True, **own}]
        return part

    def find_saving(self, region: str) -> str:
        """Return how traffic with S3 would cost nothing; "" if it does already."""
        if self.is_public or not self.has_way_out or self.s3_is_free:
            return ""
        return (
            f"traffic with S3 goes through {self.gateway} (NAT: ${_NAT_USD_PER_GB:g} a GB in "
            "us-east-1), and by a gateway endpoint it is free: `aws ec2 create-vpc-endpoint "
            f"--region {region} --vpc-id {self.vpc} --route-table-ids {self.table} "
            f"--service-name com.amazonaws.{region}.s3`"
        )


@dataclass(frozen=True)
class Network:
    """The subnets that a run may use; none if the caller may not see them.

    `are_named` says that a person has named them, or setup; else they are the default VPC's.
    """

    region: str
    subnets: tuple[Subnet, ...] = ()
    are_named: bool = False

    def usable(self, needs: Needs) -> list[Subnet]:
        return [subnet for subnet in self.subnets if not subnet.why_unusable(needs)]

    def places(self, needs: Needs) -> dict[str, dict[str, Any]]:
        """Return the parts of launches by zone; {} leaves the choice to EC2.

        In a default VPC that is as AWS makes it, EC2 chooses best.
        """
        usable = self.usable(needs)
        are_usual = len(usable) == len(self.subnets) and all(it.gives_addresses for it in usable)
        if are_usual and not self.are_named:
            return {}
        return {subnet.zone: subnet.place(needs) for subnet in usable}

    def find_problem(self, needs: Needs) -> str:
        """Return why no subnet could have such an instance, and what to do; "" if one could."""
        if not self.subnets or self.usable(needs):
            return ""
        reasons = "; ".join(subnet.why_unusable(needs) for subnet in self.subnets)
        return (
            f"{needs.who} would never come up: {reasons}. Add a route to a NAT gateway or to an "
            f"internet gateway, or endpoints of {' and '.join(needs.services)}, or name another "
            "subnet (cloud.subnets, `cloudtune aws setup --subnets`)"
        )

    def find_missing_packages(self) -> str:
        """Return why a head couldn't install packages from the internet; "" if it could.

        A gateway endpoint of S3 and an interface endpoint of EC2 let it work, and no more.
        """
        usable = self.usable(HEAD)
        if not usable or any(subnet.has_way_out for subnet in usable):
            return ""
        return (
            f"the head couldn't install its packages at its first boot: {usable[0].id} has "
            "endpoints, and no way to PyPI. Name an index that it reaches (`export UV_INDEX_URL=…`)"
            ", an image with cloudtune (cloud.image), or a subnet with a way out"
        )

    def notes(self, needs: Needs) -> Iterator[str]:
        """Yield which subnets are left out, and what would cost less."""
        for subnet in self.subnets:
            if reason := subnet.why_unusable(needs):
                yield f"left out for {needs.who}: {reason}"
        for subnet in self.usable(needs):
            if saving := subnet.find_saving(self.region):
                yield saving


def read_network(ec2: Ec2, settings: CloudSettings) -> Network:
    """Return the subnets of an experiment, or else of the default VPC."""
    named = [settings.subnet] if settings.subnet else list(settings.subnets.values())
    filters = [] if named else [{"Name": "default-for-az", "Values": ["true"]}]
    try:
        subnets = tuple(read_subnets(ec2.look, named, filters))
    except CALL_ERRORS:
        return Network(
            settings.region
        )  # the caller has no right, or EC2 has no such subnet: a dry run says so
    zones = settings.zones or [subnet.zone for subnet in subnets]
    allowed = tuple(subnet for subnet in subnets if subnet.zone in zones)
    return Network(settings.region, allowed, are_named=bool(named))


def find_places(
    network: Network, settings: CloudSettings, needs: Needs
) -> dict[str, dict[str, Any]]:
    """Return the parts of launches by zone: in the subnets that will do, or else in the named."""
    if places := network.places(needs):
        return places
    named = settings.subnets or ({"": settings.subnet} if settings.subnet else {})
    return {zone: {"SubnetId": subnet} for zone, subnet in named.items()}


def read_subnets(
    look: Any, ids: Sequence[str], filters: Sequence[Mapping[str, Any]] = ()
) -> Iterator[Subnet]:
    """Yield subnets, in the order of their `ids`; `look` makes a call of EC2.

    Raises:
        botocore.exceptions.ClientError: there is no right, or no such subnet.
    """
    chosen = {"SubnetIds": list(ids)} if ids else {"Filters": list(filters)}
    described = {it["SubnetId"]: it for it in look("describe_subnets", **chosen)["Subnets"]}
    if not described:
        return
    networks = sorted({it["VpcId"] for it in described.values()})
    of_them = [{"Name": "vpc-id", "Values": networks}]
    tables = look("describe_route_tables", Filters=of_them)["RouteTables"]
    endpoints = look("describe_vpc_endpoints", Filters=of_them)["VpcEndpoints"]
    for name in ids or sorted(described, key=lambda it: described[it]["AvailabilityZone"]):
        yield _read(described[name], tables, endpoints)


def _read(
    described: Mapping[str, Any],
    tables: Sequence[Mapping[str, Any]],
    endpoints: Iterable[Mapping[str, Any]],
) -> Subnet:
    vpc = described["VpcId"]
    table = _find_table(described["SubnetId"], vpc, tables)
    routes = [it for it in table.get("Routes", ()) if it.get("DestinationCidrBlock") == _EVERYWHERE]
    gateway = next(
        (str(routes[0][name]) for name in _GATEWAYS if routes and routes[0].get(name)), ""
    )
    name = str(table.get("RouteTableId", ""))
    ours = [it for it in endpoints if it["VpcId"] == vpc and _leads_here(it, name)]
    services = {_service(it): it.get("VpcEndpointType", "Gateway") for it in ours}
    return Subnet(
        id=described["SubnetId"],
        zone=described["AvailabilityZone"],
        vpc=vpc,
        table=name,
        gateway=gateway,
        is_dead=bool(routes) and routes[0].get("State") == "blackhole",
        endpoints=frozenset(services),
        s3_is_free=services.get("s3") == "Gateway",
        gives_addresses=bool(described.get("MapPublicIpOnLaunch")),
    )


def _find_table(subnet: str, vpc: str, tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the route table of a subnet: the one that names it, or else its VPC's main one."""
    main: Mapping[str, Any] = {}
    for table in tables:
        for association in table.get("Associations", ()):
            if association.get("SubnetId") == subnet:
                return table
            if association.get("Main") and table["VpcId"] == vpc:
                main = table
    return main


def _leads_here(endpoint: Mapping[str, Any], table: str) -> bool:
    if str(endpoint.get("State", "available")).lower() != "available":
        return False
    if endpoint.get("VpcEndpointType", "Gateway") == "Gateway":
        return table in endpoint.get("RouteTableIds", ())
    # Without it, the service's own name still leads to its public address.
    return bool(endpoint.get("PrivateDnsEnabled"))


def _service(endpoint: Mapping[str, Any]) -> str:
    return str(endpoint["ServiceName"]).rpartition(".")[2]
