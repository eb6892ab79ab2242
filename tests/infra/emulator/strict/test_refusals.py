"""What EC2 refuses and moto takes; how many calls it takes; what it doesn't know of yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from cloudtune.infra.emulator.requests import Ec2Error
from cloudtune.infra.emulator.strict.images import offer_image
from cloudtune.infra.emulator.strict.throttle import OF_THEIR_OWN, Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.infra.emulator.strict.conftest import Account

PARAMETER = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)


def launching(account: Account) -> Callable[..., str]:
    """Return what launches an instance; fields of None are left out."""
    image = account.client("ssm").get_parameter(Name=PARAMETER)["Parameter"]["Value"]
    ec2 = account.client("ec2")
    plain = {
        "ImageId": image,
        "InstanceType": "g4dn.xlarge",
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": "#!/bin/bash\nsleep 30\n",
    }

    def launch(**changed: Any) -> str:
        asked = {name: v for name, v in {**plain, **changed}.items() if v is not None}
        instance: str = ec2.run_instances(**asked)["Instances"][0]["InstanceId"]
        account.gone(instance)
        return instance

    return launch


def tagged(key: str, value: str, count: int = 1) -> dict[str, Any]:
    tags = [{"Key": f"{key}{n or ''}", "Value": value} for n in range(count)]
    return {"TagSpecifications": [{"ResourceType": "instance", "Tags": tags}]}


def on_spot(price: str) -> dict[str, Any]:
    options = {"SpotInstanceType": "one-time", "MaxPrice": price}
    return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}


REFUSED: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "no image": ({"ImageId": None}, "MissingParameter", "ImageId"),
    "no such image": (
        {"ImageId": "ami-0123456789abcdef0"},
        "InvalidAMIID.NotFound",
        "does not exist",
    ),
    "no image's name": ({"ImageId": "my-image"}, "InvalidAMIID.Malformed", "expecting"),
    "arm": ({"InstanceType": "g5g.xlarge"}, "InvalidParameterValue", "architecture 'arm64'"),
    "user data": ({"UserData": "x" * 20_000}, "InvalidParameterValue", "16384 bytes"),
    "token": ({"ClientToken": "t" * 70}, "InvalidParameterValue", "clientToken"),
    "tag key": (tagged("k" * 129, "v"), "InvalidParameterValue", "Tag key exceeds"),
    "tag value": (tagged("k", "v" * 300), "InvalidParameterValue", "Tag value exceeds"),
    "aws's tags": (tagged("aws:mine", "v"), "InvalidParameterValue", "reserved"),
    "51 tags": (tagged("k", "v", 51), "TagLimitExceeded", "50"),
    "group": (
        {"SecurityGroupIds": ["sg-0123456789abcdef0"]},
        "InvalidGroup.NotFound",
        "does not exist",
    ),
    "subnet": ({"SubnetId": "subnet-0123"}, "InvalidSubnetID.NotFound", "does not exist"),
    "profile": (
        {"IamInstanceProfile": {"Name": "none"}},
        "InvalidParameterValue",
        "Invalid IAM Instance Profile name",
    ),
    "price": (on_spot("0.00001"), "SpotMaxPriceTooLow", "lower than the minimum"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_launch_that_ec2_refuses_is_refused_in_its_words(account: Account, what: str) -> None:
    given, code, words = REFUSED[what]
    with pytest.raises(ClientError, match=words) as refused:
        launching(account)(**given)
    assert refused.value.response["Error"]["Code"] == code
    found = account.client("ec2").describe_instances()["Reservations"]
    assert all(i["State"]["Name"] != "running" for r in found for i in r["Instances"])


def test_a_subnet_of_another_zone_and_a_group_of_another_vpc_are_refused(account: Account) -> None:
    ec2, launch = account.client("ec2"), launching(account)
    subnet = ec2.describe_subnets(
        Filters=[{"Name": "availability-zone", "Values": ["us-east-1b"]}]
    )["Subnets"][0]["SubnetId"]
    assert launch(SubnetId=subnet, Placement={"AvailabilityZone": "us-east-1b"})
    with pytest.raises(ClientError, match="is not that of subnet"):
        launch(SubnetId=subnet, Placement={"AvailabilityZone": "us-east-1a"})
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(GroupName="far", Description="x", VpcId=vpc)["GroupId"]
    with pytest.raises(ClientError, match="does not exist in VPC"):
        launch(SubnetId=subnet, SecurityGroupIds=[group])
    with pytest.raises(ClientError, match="does not exist in VPC"):
        launch(SecurityGroupIds=[group])


def test_a_new_instance_is_not_seen_at_once(account: Account) -> None:
    ec2 = account.client("ec2")
    image = offered(account)
    made = ec2.run_instances(
        ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1, UserData="#!/bin/sh\n"
    )["Instances"][0]["InstanceId"]
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        ec2.describe_instances(InstanceIds=[made])
    account.gone(made)


def offered(account: Account) -> str:
    found: str = account.client("ssm").get_parameter(Name=PARAMETER)["Parameter"]["Value"]
    return found


def test_calls_are_taken_from_buckets_that_fill_again() -> None:
    now = 0.0
    throttle = Throttle(lambda: now)

    def many(action: str, **given: str) -> int:
        """Return how many calls there are until one is refused."""
        for count in range(5000):
            try:
                throttle.check("us-east-1", action, given)
            except Ec2Error:
                return count
        return 5000

    assert many("RunInstances", MaxCount="1") == OF_THEIR_OWN["RunInstances"].size == 5
    assert many("DescribeInstances") == 50
    assert many("DescribeInstances", **{"Filter.1.Name": "tag-key"}) == 100
    assert many("CreateTags") == 50
    with pytest.raises(Ec2Error) as refused:
        throttle.check("us-east-1", "CreateTags", {})
    assert (refused.value.code, refused.value.status) == ("RequestLimitExceeded", 503)
    now = 1.0
    assert many("RunInstances", MaxCount="1") == 2
    assert many("DescribeInstances", **{"Filter.1.Name": "tag-key"}) == 20
    throttle.check("eu-west-1", "RunInstances", {"MaxCount": "1"})
    now = 3600.0
    assert many("RunInstances", MaxCount="900") == 1, "1,000 instances are the most at once"


def test_the_image_is_the_same_each_time() -> None:
    assert offer_image("eu-north-1") == offer_image("eu-north-1") != offer_image("eu-west-2")
