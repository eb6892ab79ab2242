"""Instances of an isolated cloud reach what their routes lead to, and nothing else."""

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.outside import Outside, isolated_account

pytestmark = pytest.mark.cluster

LAUNCHES = """
import boto3, json
ec2 = boto3.client("ec2", region_name="us-east-1")
vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
tables, subnets = {}, {}
for at, name in enumerate(["public", "unasked", "nat", "endpoint", "cut"]):
    made = ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.1.{at}.0/24", AvailabilityZone="us-east-1a")
    subnets[name] = made["Subnet"]["SubnetId"]
    tables[name] = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=tables[name], SubnetId=subnets[name])
gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
everywhere = {"DestinationCidrBlock": "0.0.0.0/0"}
for name in ("public", "unasked"):
    ec2.create_route(RouteTableId=tables[name], GatewayId=gateway, **everywhere)
nat = ec2.create_nat_gateway(
    SubnetId=subnets["public"], AllocationId=ec2.allocate_address(Domain="vpc")["AllocationId"]
)["NatGateway"]["NatGatewayId"]
ec2.create_route(RouteTableId=tables["nat"], NatGatewayId=nat, **everywhere)
ec2.create_vpc_endpoint(
    VpcId=vpc,
    ServiceName="com.amazonaws.us-east-1.s3",
    VpcEndpointType="Gateway",
    RouteTableIds=[tables["endpoint"]],
)
script = '''#!/bin/bash
for service in s3 ec2; do
  curl -s -m 3 -o /dev/null https://$service.us-east-1.amazonaws.com/ && echo "reached $service"
done
echo done
'''
launched = {}
for name, subnet in subnets.items():
    interface = {"DeviceIndex": 0, "SubnetId": subnet}
    if name == "public":
        interface["AssociatePublicIpAddress"] = True
    made = ec2.run_instances(
        ImageId="ami-0c1000000000e8664",
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        UserData=script,
        NetworkInterfaces=[interface],
    )
    launched[name] = made["Instances"][0]["InstanceId"]
print(json.dumps(launched))
"""


@pytest.fixture(scope="module")
def account(leaves_nothing: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with isolated_account(tmp_path_factory.mktemp("routes")) as account:
        yield account


def test_an_instance_reaches_what_its_routes_lead_to(account: Outside) -> None:
    launched = json.loads(account.python("owner", LAUNCHES))
    reached = {name: what_it_reached(account, instance) for name, instance in launched.items()}
    assert reached == {
        "public": ["s3", "ec2"],
        "unasked": [],
        "nat": ["s3", "ec2"],
        "endpoint": ["s3"],
        "cut": [],
    }


def what_it_reached(account: Outside, instance: str) -> list[str]:
    console = account.world.home / "instances" / instance / "console.log"
    give_up = time.monotonic() + 60
    while not console.exists() or not re.search("^done$", console.read_text(), re.MULTILINE):
        assert time.monotonic() < give_up, console.read_text()
        time.sleep(0.2)
    return re.findall(r"^reached (\w+)$", console.read_text(), re.MULTILINE)
