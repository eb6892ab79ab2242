"""Subnets without a way out are found before anything is rented; addresses are asked for."""

from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudtune.api.experiments import for_renting
from cloudtune.infra.aws.provider import AWS
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.heads import launch
from cloudtune.infra.heads.launch import Remote
from cloudtune.infra.provider import at_place
from cloudtune.lifecycle import runner
from cloudtune.runs import home
from tests.bench import TRAIN, called
from tests.builders.experiments import write_experiment

REGION = "us-east-1"
EXPERIMENT = """
name: small
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0.01, 0.1]}, n: {randint: [0, 1000]}}
trials: 2
epochs: {max: 2}
limits: {deadline: 20m, budget: $5}
cloud: {provider: aws, region: us-east-1, instances: [g4dn.xlarge]}
"""


class Vpc:
    """A VPC that isn't the default one, as AWS makes it: subnets that lead nowhere."""

    def __init__(self) -> None:
        self.ec2 = boto3.client("ec2", REGION)
        self.id = self.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
        tables = self.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [self.id]}])
        self.main = tables["RouteTables"][0]["RouteTableId"]
        self.subnets = [self._subnet(number, zone) for number, zone in enumerate("ab")]

    def _subnet(self, number: int, zone: str) -> str:
        made = self.ec2.create_subnet(
            VpcId=self.id, CidrBlock=f"10.1.{number}.0/24", AvailabilityZone=f"{REGION}{zone}"
        )
        return made["Subnet"]["SubnetId"]

    def lead(self, subnet: str, **where: str) -> str:
        """Give a subnet a route table of its own with a default route."""
        table = self.ec2.create_route_table(VpcId=self.id)["RouteTable"]["RouteTableId"]
        self.ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
        if where:
            everywhere: Any = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0", **where}
            self.ec2.create_route(**everywhere)
        return table

    def open(self, subnet: str) -> None:
        gateway = self.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        self.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=self.id)
        self.lead(subnet, GatewayId=gateway)

    def nat(self, place: str, subnet: str) -> str:
        """Lead a subnet out by a NAT gateway in a public one; return its route table."""
        address = self.ec2.allocate_address(Domain="vpc")["AllocationId"]
        made = self.ec2.create_nat_gateway(SubnetId=place, AllocationId=address)
        return self.lead(subnet, NatGatewayId=made["NatGateway"]["NatGatewayId"])

    def endpoint(self, service: str, table: str = "") -> None:
        kind: Any = {"VpcEndpointType": "Interface", "PrivateDnsEnabled": True}
        if table:
            kind = {"VpcEndpointType": "Gateway", "RouteTableIds": [table]}
        name = f"com.amazonaws.{REGION}.{service}"
        self.ec2.create_vpc_endpoint(VpcId=self.id, ServiceName=name, **kind)

    def set_up(self, capsys: pytest.CaptureFixture[str], *subnets: str) -> None:
        named = ("--vpc", self.id, "--subnets", ",".join(subnets or self.subnets))
        called(capsys, "aws", "setup", "--yes", *named).succeeded()


@pytest.fixture(autouse=True)
def account(
    own_account: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> EmulatorControl:
    write_experiment(tmp_path, EXPERIMENT, TRAIN.format(trouble=""))
    monkeypatch.chdir(tmp_path)
    return EmulatorControl(own_account)


def list_launches() -> list[Any]:
    reservations = boto3.client("ec2", REGION).describe_instances()["Reservations"]
    return [instance for one in reservations for instance in one["Instances"]]


def test_subnets_without_exit_are_unused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    vpc = Vpc()
    vpc.set_up(capsys)
    first, second = vpc.subnets
    checked = called(capsys, "aws", "check")
    assert checked.code == 1
    assert f"ok       {first} in us-east-1a: cut off: rtb-" in checked.out
    assert f"missing  a way out: the head would never come up: {first} (us-east-1a) " in checked.out
    refused = called(capsys, "run", "experiment.yaml", "--yes")
    assert refused.code == 2, refused.out + refused.err
    assert (
        f"the head would never come up: {first} (us-east-1a) has no way to S3 and EC2: rtb-"
        in refused.err
    )
    assert f"; {second} (us-east-1b) has no way" in refused.err
    assert "Add a route to a NAT gateway or to an internet gateway" in refused.err
    assert refused.err.rstrip().endswith("nothing was launched")
    assert list_launches() == []


def plan_places(experiment: str = "experiment.yaml") -> tuple[Any, Any]:
    """Return the offered head, and the cloud of the other instances, as `run` opens them."""
    wanted = for_renting(Path(experiment), {})
    head = AWS.head(wanted, home.home())
    assert head is not None
    return head, AWS.open(wanted, home.home(), pace=False)


def test_public_addresses_are_a_last_resort(
    account: EmulatorControl, capsys: pytest.CaptureFixture[str]
) -> None:
    vpc = Vpc()
    public, private = vpc.subnets
    vpc.open(public)
    table = vpc.nat(public, private)
    vpc.set_up(capsys)
    checked = called(capsys, "aws", "check").succeeded()
    assert f"ok       {public} in us-east-1a: public, by igw-" in checked.out
    assert "; runs ask for a public address" in checked.out
    assert f"ok       {private} in us-east-1b: private, out by nat-" in checked.out
    assert f"--route-table-ids {table} --service-name com.amazonaws.us-east-1.s3" in checked.out
    vpc.endpoint("s3", table)
    assert "create-vpc-endpoint" not in called(capsys, "aws", "check").succeeded().out

    head, cloud = plan_places()
    assert list(head.places) == list(cloud.places) == ["us-east-1a", "us-east-1b"]
    for zone, has_address in [("us-east-1a", True), ("us-east-1b", False)]:
        kinds = [
            (head.request, head.places, "m7i.large"),
            (cloud.request, cloud.places, "g4dn.xlarge"),
        ]
        for number, (request, places, kind) in enumerate(kinds):
            asked = {**at_place(request, places, zone), "InstanceType": kind}
            AWS.calls(cloud.endpoint).run_instance(f"{zone}{number}", {"a": "b"}, asked)
            account.move_clock(2.0)  # until EC2 shows the instance
            (instance,) = [it for it in list_launches() if it["ClientToken"] == f"{zone}{number}"]
            assert instance["SubnetId"] == {"us-east-1a": public, "us-east-1b": private}[zone]
            (interface,) = instance["NetworkInterfaces"]
            assert ("PublicIp" in interface.get("Association", {})) == has_address


def test_endpoints_are_enough_for_what_they_lead_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vpc = Vpc()
    subnet, other = vpc.subnets
    vpc.endpoint("s3", vpc.lead(subnet))
    vpc.set_up(capsys)
    refused = called(capsys, "run", "experiment.yaml", "--yes")
    assert f"the head would never come up: {subnet} (us-east-1a) has no way to EC2" in refused.err
    assert "instances would never" not in refused.err, "they need S3 alone"

    vpc.endpoint("ec2")
    refused = called(capsys, "run", "experiment.yaml", "--yes")
    assert refused.code == 2
    assert "the head couldn't install its packages at its first boot" in refused.err
    assert list_launches() == []
    assert f"{subnet} in us-east-1a: private, with endpoints of ec2, s3 alone" in (
        called(capsys, "aws", "check").succeeded().out
    )
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example.com/simple")
    head, _ = plan_places()
    assert [place["SubnetId"] for place in head.places.values()] == [subnet]
    assert runner.preflight(for_renting(Path("experiment.yaml"), {}), head).notes == (
        (
            f"left out for the head: {other} (us-east-1b) has no way to S3: "
            f"{vpc.main} leads to no internet or NAT gateway"
        ),
        (
            f"left out for instances: {other} (us-east-1b) has no way to S3: "
            f"{vpc.main} leads to no internet or NAT gateway"
        ),
    )


def test_a_head_is_asked_for_in_each_subnet(
    account: EmulatorControl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vpc = Vpc()
    vpc.open(vpc.subnets[0])
    vpc.nat(*vpc.subnets)
    vpc.set_up(capsys)
    monkeypatch.setattr(launch, "_PAUSE_SECONDS", 0.0)
    account.add({"kind": "capacity", "zone": "us-east-1a", "instances": 0})
    head, cloud = plan_places()
    remote = Remote("s3://b/p/r", "aws", REGION, until=4e9, asked_at=1.9e9, usd_per_hour=0.1)
    said: list[str] = []
    calls = AWS.calls(cloud.endpoint)
    instance = launch.launch(calls, "r", remote, head, lambda _: {}, say=said.append)
    account.move_clock(2.0)  # until EC2 shows the instance
    (there,) = list_launches()
    assert (there["InstanceId"], there["SubnetId"]) == (instance, vpc.subnets[1])
    assert said[0].startswith("note: no head of type m7i.large in us-east-1a: ")


def test_a_default_vpc_may_lead_nowhere_too(capsys: pytest.CaptureFixture[str]) -> None:
    ec2 = boto3.client("ec2", REGION)
    called(capsys, "aws", "setup", "--yes").succeeded()
    assert "public, by igw-" in called(capsys, "aws", "check").succeeded().out
    head, cloud = plan_places()
    assert (head.places, cloud.places) == ({}, {}), "EC2 chooses"
    for table in ec2.describe_route_tables()["RouteTables"]:
        ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")
    refused = called(capsys, "run", "experiment.yaml", "--yes")
    assert refused.code == 2
    assert "the head would never come up: subnet-" in refused.err


def test_several_interfaces_get_no_public_address(capsys: pytest.CaptureFixture[str]) -> None:
    vpc = Vpc()
    vpc.open(vpc.subnets[0])
    vpc.set_up(capsys, vpc.subnets[0])
    two = "{NetworkInterfaces: [{DeviceIndex: 0}, {DeviceIndex: 1, NetworkCardIndex: 1}]}"
    Path("experiment.yaml").write_text(EXPERIMENT.rstrip()[:-1] + f", request: {two}}}\n")
    refused = called(capsys, "run", "experiment.yaml", "--yes")
    assert refused.code == 2
    assert "is public, and EC2 gives no public address to an instance with several" in refused.err
    one = "{NetworkInterfaces: [{DeviceIndex: 0, InterfaceType: efa}]}"
    Path("experiment.yaml").write_text(EXPERIMENT.rstrip()[:-1] + f", request: {one}}}\n")
    _, cloud = plan_places()
    assert cloud.places["us-east-1a"]["NetworkInterfaces"] == [
        {"AssociatePublicIpAddress": True, "DeviceIndex": 0, "InterfaceType": "efa"}
    ]
