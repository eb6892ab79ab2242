"""The routes of the stand-in: a default VPC as AWS makes it, and what an instance reaches.

moto's default VPC has no internet gateway; AWS's has one, and a route to it. Whether an instance
reaches a service is judged from moto's records alone, apart from the product's own look.
"""

from collections.abc import Iterator
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from cloudtune.infra.emulator.machine import Machine

_EVERYWHERE = "0.0.0.0/0"
_TRUE = (True, "true", "True")


def register(backend: Any) -> None:
    """Lead the default VPC of a region to the internet, unless it has a gateway already."""
    led = {gateway.vpc.id for gateway in backend.internet_gateways.values() if gateway.vpc}
    for vpc in list(backend.vpcs.values()):
        if vpc.is_default not in _TRUE or vpc.id in led:
            continue
        gateway = backend.create_internet_gateway()
        backend.attach_internet_gateway(gateway.id, vpc.id)
        (main,) = (it for it in _tables(backend, vpc.id) if it.main_association_id)
        backend.create_route(main.id, _EVERYWHERE, gateway_id=gateway.id)


def leads_to(machine: Machine, name: str) -> bool:
    """Whether a machine has a route to a name of AWS, such as BUCKET.s3.REGION.amazonaws.com."""
    service = "s3" if f".{name}".find(".s3.") >= 0 else name.partition(".")[0]
    return reaches(find_backend(machine), machine.record, service)


def find_backend(machine: Machine) -> Any:
    """Return moto's EC2 of a machine's region."""
    return ec2_backends[DEFAULT_ACCOUNT_ID][machine.settings["AWS_DEFAULT_REGION"]]


def reaches(backend: Any, instance: Any, service: str) -> bool:
    """Whether an instance reaches a service of AWS ("s3"), or "" for the internet."""
    nic = instance.nics[0]
    table = _table(backend, nic.subnet)
    if service in _endpoints(backend, nic.subnet.vpc_id, table.id):
        return True
    has_address = {nic.public_ip_auto_assign, nic.subnet.map_public_ip_on_launch} & set(_TRUE)
    return _leads_out(backend, table, has_address=bool(has_address))


def _leads_out(backend: Any, table: Any, *, has_address: bool) -> bool:
    for route in table.routes:
        if route.destination_cidr_block != _EVERYWHERE or route.local:
            continue
        if route.gateway_id and route.gateway_id.startswith("igw-"):
            return has_address
        if route.nat_gateway:  # it has a public address itself, in a subnet of its own
            alive = backend.nat_gateways.get(route.nat_gateway.id)
            public = alive and _table(backend, backend.get_subnet(alive.subnet_id))
            return bool(public) and _leads_out(backend, public, has_address=True)
        return bool(route.transit_gateway or route.gateway_id or route.instance)
    return False


def _endpoints(backend: Any, vpc: str, table: str) -> Iterator[str]:
    for endpoint in backend.vpc_end_points.values():
        is_gateway = (endpoint.vpc_endpoint_type or "Gateway") == "Gateway"
        by_table = is_gateway and table in endpoint.route_table_ids
        by_name = not is_gateway and endpoint.private_dns_enabled in _TRUE
        if endpoint.vpc_id == vpc and endpoint.state == "available" and (by_table or by_name):
            yield endpoint.service_name.rpartition(".")[2]


def _table(backend: Any, subnet: Any) -> Any:
    tables = _tables(backend, subnet.vpc_id)
    own = [table for table in tables if subnet.id in dict(table._associations).values()]
    return (own or [table for table in tables if table.main_association_id])[0]


def _tables(backend: Any, vpc: str) -> list[Any]:
    return [table for table in backend.route_tables.values() if table.vpc_id == vpc]
