"""What moto takes and EC2 refuses (W17), with EC2's codes."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtune.infra.aws.ec2 import Ec2, market_request
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.provider import RUN_TAG, Endpoint
from tests.aws_stand_in.account import Account
from tests.aws_stand_in.images import IMAGES

TYPE = "g4dn.xlarge"


@pytest.fixture(autouse=True, scope="module")
def _unhurried(account: Account) -> None:
    account.unhurried()


def launch(account: Account, **request: Any) -> str:
    """Launch an instance and return its id, or the code with which that is refused."""
    usual = {"ImageId": IMAGES["x86_64"], "InstanceType": TYPE, "MinCount": 1, "MaxCount": 1}
    whole = {**usual, **request}
    try:
        answer = account.client("ec2").run_instances(
            **{name: value for name, value in whole.items() if value is not None}
        )
    except ClientError as error:
        details = error.response["Error"]
        return f"{details['Code']}: {details['Message']}"
    return str(answer["Instances"][0]["InstanceId"])


def tagged(tags: dict[str, str]) -> dict[str, Any]:
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {"TagSpecifications": [{"ResourceType": "instance", "Tags": listed}]}


SPOT = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.00001"}}
REFUSED = [
    ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound: The image id '[ami-0123"),
    ({"ImageId": "ami-nonsense"}, "InvalidAMIID.Malformed: "),
    ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound: The subnet ID"),
    ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound: The security"),
    ({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound: The key pair 'nobody's' does not"),
    ({"ImageId": IMAGES["arm64"]}, "InvalidParameterValue: The architecture 'x86_64' of the"),
    ({"InstanceType": "g5g.xlarge"}, "InvalidParameterValue: The architecture 'arm64' of the"),
    ({"IamInstanceProfile": {"Name": "none"}}, "InvalidParameterValue: Value (none) for parameter"),
    ({"Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported: Your requested instance typ"),
    ({"InstanceMarketOptions": SPOT}, "SpotMaxPriceTooLow: Your Spot request price of 0.00001 is"),
]


@pytest.mark.parametrize(("request_", "refusal"), REFUSED, ids=lambda each: str(each)[:40])
def test_a_launch_is_refused_as_ec2_does(
    account: Account, request_: dict[str, Any], refusal: str
) -> None:
    assert launch(account, **request_).startswith(refusal)


def test_a_launch_that_is_right_is_taken(account: Account) -> None:
    ec2 = account.client("ec2")
    zone = ec2.describe_availability_zones()["AvailabilityZones"][1]["ZoneName"]
    where = [{"Name": "availability-zone", "Values": [zone]}]
    (subnet,) = ec2.describe_subnets(Filters=where)["Subnets"]
    group = ec2.create_security_group(
        GroupName="ours", Description="of a test", VpcId=subnet["VpcId"]
    )
    tags = tagged({"k" * 128: "v" * 256, **{str(n): "" for n in range(49)}})
    launched = launch(
        account,
        SubnetId=subnet["SubnetId"],
        SecurityGroupIds=[group["GroupId"]],
        ClientToken="t" * 64,
        UserData="#" * 16_384,
        **market_request("spot", zone),
        **tags,
    )
    assert launched.startswith("i-")


def test_a_subnet_is_in_one_zone_and_a_group_in_one_vpc(account: Account) -> None:
    ec2 = account.client("ec2")
    zones = ec2.describe_subnets()["Subnets"]
    here, there = zones[0], zones[1]["AvailabilityZone"]
    elsewhere = {"SubnetId": here["SubnetId"], "Placement": {"AvailabilityZone": there}}
    assert launch(account, **elsewhere).startswith("InvalidParameterValue: The subnet")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    foreign = ec2.create_security_group(GroupName="theirs", Description="x", VpcId=vpc)["GroupId"]
    refused = launch(account, SubnetId=here["SubnetId"], SecurityGroupIds=[foreign])
    assert refused == (
        f"InvalidParameter: Security group {foreign} and subnet {here['SubnetId']} belong to "
        "different networks."
    )


def test_network_interfaces_have_the_subnet_and_the_groups_of_a_run(account: Account) -> None:
    """`cloud.request.NetworkInterfaces`, as for EFA, beside the subnet that a run chooses."""
    subnet = account.client("ec2").describe_subnets()["Subnets"][0]
    (group,) = account.client("ec2").describe_security_groups(
        Filters=[{"Name": "vpc-id", "Values": [subnet["VpcId"]]}], GroupNames=["default"]
    )["SecurityGroups"]
    own = {"SubnetId": subnet["SubnetId"], "SecurityGroupIds": [group["GroupId"]]}
    interfaces = {"NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "efa"}]}
    twice = launch(account, **interfaces, **own)
    assert twice.startswith("InvalidParameterCombination: Network interfaces and an instance-level")
    access = account.access
    ec2 = Ec2(Endpoint("us-east-1", access.endpoint, access.key, access.secret))
    request = {"ImageId": IMAGES["x86_64"], "InstanceType": TYPE, **interfaces, **own}
    made = ec2.run_instance("efa", {RUN_TAG: "r"}, request)
    EmulatorControl(access).move_clock(2.0)  # then all calls see it
    (described,) = account.client("ec2").describe_instances(InstanceIds=[made])["Reservations"]
    (instance,) = described["Instances"]
    assert instance["SubnetId"] == subnet["SubnetId"]
    (interface,) = instance["NetworkInterfaces"]
    assert [it["GroupId"] for it in interface["Groups"]] == [group["GroupId"]]


@pytest.mark.parametrize(
    ("market", "code"),
    [("on-demand", "VcpuLimitExceeded"), ("spot", "MaxSpotInstanceCountExceeded")],
)
def test_an_account_has_vcpu_quotas_and_tells_them(
    account: Account, market: str, code: str
) -> None:
    quotas = account.client("service-quotas")
    bucket = {"on-demand": "L-DB2E81BA", "spot": "L-3819A6DF"}[market]
    quota = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=bucket)["Quota"]
    assert quota["Value"] == 768.0
    many = {"InstanceType": "g4dn.12xlarge", "MinCount": 17, "MaxCount": 17}
    refused = launch(account, **many, **market_request(market, ""))
    assert refused.startswith(code)
    names = {each["QuotaCode"] for each in quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]}
    assert {"L-DB2E81BA", "L-417A185B", "L-3819A6DF", "L-7212CCBC"} <= names


def test_the_image_is_found_as_awss_are(account: Account) -> None:
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest"
    image_id = account.client("ssm").get_parameter(Name=f"{name}/ami-id")["Parameter"]["Value"]
    (image,) = account.client("ec2").describe_images(ImageIds=[image_id])["Images"]
    assert (image["Architecture"], image["OwnerId"]) == ("x86_64", "898082745236")
