"""What a caller may do on a strict cloud is what their policies say, resource by resource."""

import urllib.error
import urllib.request
from typing import Any

import pytest

from benchmarks.rights import World, documented, failures, rights
from cloudtune.train.storage import upload_address
from tests.aws_stand_in.account import Account, allow
from tests.aws_stand_in.images import IMAGES

LAUNCHES = {"launch, on demand", "launch, spot"}
FAILS = {
    "See: ec2:DescribeInstances": {"see what is rented"},
    "LaunchTagged: ec2:RunInstances": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1::image/*": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:capacity-reservation/*": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:key-pair/*": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:network-interface/*": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:placement-group/*": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:security-group/*": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:spot-instances-request/*": {
        "launch, spot"
    },
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:subnet/*": LAUNCHES,
    "LaunchFromThese: arn:aws:ec2:us-east-1:123456789012:volume/*": LAUNCHES,
    "TagAtLaunch: arn:aws:ec2:us-east-1:123456789012:instance/*": LAUNCHES,
    "TagAtLaunch: arn:aws:ec2:us-east-1:123456789012:volume/*": LAUNCHES,
    "GiveBackOurs: ec2:TerminateInstances": {"give back"},
    "GiveInstancesTheirRole: iam:PassRole": LAUNCHES,
    "SeeConsoles: ec2:GetConsoleOutput": {"read a console"},
    "See: ec2:DescribeAvailabilityZones": {"see the zones"},
    "See: ec2:DescribeRouteTables": {"see where subnets lead"},
    "See: ec2:DescribeSubnets": {"see where subnets lead"},
    "See: ec2:DescribeVpcEndpoints": {"see where subnets lead"},
    "SeePrices: pricing:GetProducts": {"prices on demand"},
    "See: ec2:DescribeSpotPriceHistory": {"prices on the spot market"},
    # pyarrow looks before it deletes, and writes the folder that it deletes from
    "Keep: s3:GetObject": {"read a checkpoint", "delete an old one"},
    "Keep: s3:PutObject": {"write a checkpoint", "delete an old one"},
    "Keep: s3:DeleteObject": {"delete an old one"},
    "Keep: s3:AbortMultipartUpload": {"give an upload up"},
    "List: s3:ListBucket": {"list checkpoints"},
}
POLICIES = documented()
# Of Systems Manager's agent, which no run calls; `test_laptop.py` and `test_policies.py` do.
OF_THE_AGENT = "BeEntered: "
CASES = [
    (role, name, less)
    for role in POLICIES
    for name, less in rights(POLICIES[role])
    if not name.startswith(OF_THE_AGENT)
]


@pytest.mark.parametrize("role", list(POLICIES))
def test_documented_policies_suffice_for_runs(world: World, role: str) -> None:
    assert failures(world, POLICIES[role], role) == []


@pytest.mark.parametrize(("role", "right", "less"), CASES, ids=[name for _, name, _ in CASES])
def test_lacking_a_right_fails(world: World, role: str, right: str, less: dict[str, Any]) -> None:
    failed = failures(world, less, role)
    assert {call for call, _ in failed} == FAILS[right]
    action = right.partition(": ")[2]
    if not action.startswith("arn:"):
        messages = [message for _, message in failed if "No response body" not in message]
        assert all(f"no identity-based policy allows the {action} action" in it for it in messages)


def launch(client: Any, **request: Any) -> Any:
    usual = {"ImageId": IMAGES["x86_64"], "InstanceType": "g4dn.xlarge", "MinCount": 1}
    return client.run_instances(**{**usual, "MaxCount": 1, **request})


def test_signed_addresses_are_of_one_object(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.client("s3").create_bucket(Bucket="signed")
    account.person("writer", allow("s3:PutObject", resource="arn:aws:s3:::signed/*"))
    account.person("reader", allow("s3:GetObject"))
    create = account.client("iam").create_access_key
    keys = {who: create(UserName=who)["AccessKey"] for who in ("writer", "reader")}
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.access.endpoint)

    def put(who: str, change: tuple[str, str] = ("", ""), seconds: int = 60) -> int:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys[who]["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys[who]["SecretAccessKey"])
        address = upload_address("s3://signed/r/boot.log", seconds).replace(*change)
        plain = {"Content-Type": "text/plain"}  # else urllib says that it is a form
        asked = urllib.request.Request(address, b"one\n", plain, method="PUT")
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            refused.close()
            return refused.code

    assert put("writer") == 200
    kept = account.client("s3").get_object(Bucket="signed", Key="r/boot.log")["Body"]
    assert kept.read() == b"one\n"
    kept.close()
    assert put("writer", ("boot.log", "order.json")) == 403
    assert put("writer", seconds=-1) == 403
    assert put("reader") == 403, "it has its signer's rights"
