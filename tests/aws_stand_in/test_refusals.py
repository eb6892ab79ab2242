"""What moto takes and EC2 refuses (W17), with EC2's codes."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtune.infra.aws.ec2 import Ec2
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


def test_network_interfaces_have_a_runs_subnet_and_groups(account: Account) -> None:
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
