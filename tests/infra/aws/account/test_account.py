"""`cloudtune aws`: what an account needs, created, checked (`--live`, too) and deleted."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import boto3
import pytest
from botocore.exceptions import ClientError

from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.account import policies, stack
from cloudtune.infra.aws.account.inventory import (
    Inventory,
    lines,
    load_inventory,
    supported_ubuntus,
)
from cloudtune.infra.aws.account.stack import ChangeSet, Clients, Stack
from cloudtune.infra.aws.account.template import TAG, template
from cloudtune.infra.aws.provider import AWS
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.provider import Endpoint, at_place
from tests.aws_stand_in.account import allow
from tests.bench import called
from tests.builders.experiments import experiment_on_aws
from tests.builders.values import present
from tests.infra.aws.account.test_policies import list_types

REGION = "us-east-1"
BUCKET = "cloudtune-123456789012-us-east-1-an"
SHARED_NAME = BUCKET.removesuffix("-an")
STEPS = 8
ANOTHER_ACCOUNT = {"x-moto-account-id": "999999999999"}
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.fixture(autouse=True)
def account(own_account: Access) -> EmulatorControl:
    """An emulated account, which boto3 finds as it finds AWS."""
    return EmulatorControl(own_account)


def account_now() -> Inventory:
    return load_inventory(Clients(Endpoint(REGION)), REGION)


def missing() -> list[str]:
    return [line.what for line in lines(account_now()) if line.state == "missing"]


def stacks() -> list[dict[str, Any]]:
    try:
        return list(
            boto3.client("cloudformation", REGION).describe_stacks(StackName="cloudtune")["Stacks"]
        )
    except ClientError:
        return []


def test_setup_shows_and_creates_once(capsys: pytest.CaptureFixture[str]) -> None:
    for tag in ("team", "aws:x=1", "cloudtune:run=1", "=1"):
        refused = called(capsys, "aws", "setup", "--yes", "--tag", tag)
        assert (refused.code, stacks()) == (2, [])
        assert "write KEY=VALUE, such as team=vision" in refused.err
    called(capsys, "aws", "check", "--live", "--yes").refused("nothing was done")
    checked = called(capsys, "aws", "check")
    assert checked.code == 1
    assert f"missing  bucket {BUCKET}: `cloudtune aws setup` creates it" in checked.out
    assert "ok       image: ami-" in checked.out

    asked = called(capsys, "aws", "setup").refused(
        "can't ask for confirmation without a terminal, and nothing was changed: add --yes"
    )
    assert "  create Bucket: checkpoints, logs and results; no public access" in asked.out
    assert stacks() == [], "the change set that was shown is gone, and its stack with it"

    done = called(capsys, "aws", "setup", "--yes", "--instances", "g4dn.*, p3.*").succeeded()
    assert done.out.count("\n  create ") == STEPS
    assert "ready: use `cloud: {provider: aws, region: us-east-1}`" in done.out
    again = called(capsys, "aws", "setup", "--yes")
    assert "nothing to create" in again.out, "the types are those of the last setup"
    assert called(capsys, "aws", "check").code == 0
    written = called(capsys, "aws", "check", "-o", "json").json
    assert {line["state"] for line in written["checks"]} == {"ok"}
    blocked = boto3.client("s3", REGION).get_public_access_block(Bucket=BUCKET)
    assert set(blocked["PublicAccessBlockConfiguration"].values()) == {True}

    policy = boto3.client("iam", REGION).get_role_policy(
        RoleName="cloudtune-head-us-east-1", PolicyName="cloudtune"
    )["PolicyDocument"]
    assert list_types(policy) == ["g4dn.*", "p3.*"]
    other = called(capsys, "aws", "setup", "--yes", "--instances", "g5.*")
    assert "This will\n  update HeadRole: role of the instance that controls a run" in other.out
    assert other.out.count("\n  ") == 1

    boto3.client("ec2", REGION).authorize_security_group_ingress(
        GroupId=account_now().group or "",
        CidrIp="0.0.0.0/0",
        IpProtocol="tcp",
        FromPort=22,
        ToPort=22,
    )
    open_to_all = called(capsys, "aws", "check")
    assert open_to_all.code == 1
    assert "0.0.0.0/0 may reach instances, and no run needs it" in open_to_all.out


def test_aws_is_all_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = experiment_on_aws(tmp_path)
    assert (bare.cloud.security_group, bare.cloud.instance_profile) == (None, None)
    assert not bare.storage.startswith("s3://")

    assert called(capsys, "aws", "setup", "--yes").code == 0
    full = experiment_on_aws(tmp_path)
    assert full.storage == f"s3://{BUCKET}/cloudtune"
    assert full.cloud.image == account_now().image
    assert full.cloud.security_group == account_now().group
    assert full.cloud.instance_profile == "cloudtune-node-us-east-1"
    assert full.cloud.subnets == {}, "EC2 chooses among those of the default VPC"
    image = boto3.client("ec2", REGION).describe_images(ImageIds=[full.cloud.image or ""])
    disk = image["Images"][0]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
    a_month, address = 0.08 * disk / 30 / 24, 0.005
    assert full.charges.per_instance_hour == pytest.approx(a_month + address)
    own = {"storage": "s3://mine/x", "charges": {"per_instance_hour": 0.5}}
    kept = experiment_on_aws(tmp_path, **own, cloud={"image": "ami-1"})
    assert (kept.storage, kept.cloud.image) == ("s3://mine/x", "ami-1")
    assert kept.charges.per_instance_hour == 0.5


def test_image_has_newest_ubuntu(
    account: EmulatorControl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in has 22.04 and 24.04, and 26.04 is out as well."""
    del account
    ssm = boto3.client("ssm", REGION)
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-{}/latest/ami-id"
    boto3.client("ec2", REGION).describe_vpcs()  # it registers the images
    ssm.get_parameter(Name=name.format("24.04"))
    assert re.search(r"image: ami-\w+ \(Ubuntu 24\.04\)", called(capsys, "aws", "check").out)
    assert experiment_on_aws(tmp_path).cloud.image == "ami-0c1000000000e8664"
    for year, month, versions in [
        (2026, 3, ["24.04", "22.04"]),
        (2026, 11, ["26.04", "24.04", "22.04"]),
        (2027, 4, ["26.04", "24.04", "22.04"]),
        (2027, 5, ["26.04", "24.04"]),
        (2028, 4, ["28.04", "26.04", "24.04"]),
    ]:
        at = time.struct_time((year, month, 1, 0, 0, 0, 0, 0, 0))
        assert supported_ubuntus(at) == versions


def test_spot_p6_quota_is_found_by_name(
    account: EmulatorControl, capsys: pytest.CaptureFixture[str]
) -> None:
    account.add({"kind": "quota", "type": "p6*", "market": "spot", "vcpus": 0})
    checked = called(capsys, "aws", "check").out
    assert (
        "missing  quota spot p6: 0 vCPUs; ask for more in the console: Service Quotas, EC2, "
        in (checked)
    )
    assert "ok       quota spot p5: 768 vCPUs" in checked


def test_runs_use_the_network_and_tags(
    account: EmulatorControl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ec2 = boto3.client("ec2", REGION)
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.1.{number}.0/24", AvailabilityZone=zone)
        for number, zone in enumerate(["us-east-1a", "us-east-1a", "us-east-1b"])
    ]
    first, second, third = (answer["Subnet"]["SubnetId"] for answer in subnets)
    unclear = called(capsys, "aws", "setup", "--yes", "--vpc", vpc)
    assert unclear.code == 2
    assert f"{first} and {second} are both in us-east-1a: name one subnet a zone" in unclear.err
    strange = called(capsys, "aws", "setup", "--yes", "--subnets", first)
    assert f"--subnets: {first} isn't a subnet of vpc-" in strange.err
    assert stacks() == []

    network = ("--vpc", vpc, "--subnets", f"{first},{third}")
    boundary = boto3.client("iam", REGION).create_policy(
        PolicyName="at-most", PolicyDocument=json.dumps(allow("*"))
    )["Policy"]["Arn"]
    named = (*network, "--tag", "team=vision", "--boundary", boundary)
    called(capsys, "aws", "setup", "--yes", *named, "--role-path", "/vision/").succeeded()
    assert "nothing to create" in called(capsys, "aws", "setup", "--yes").out
    settings = experiment_on_aws(tmp_path).cloud
    assert settings.subnets == {"us-east-1a": first, "us-east-1b": third}
    assert settings.tags == {"team": "vision"}
    group = ec2.describe_security_groups(GroupIds=[settings.security_group or ""])
    assert group["SecurityGroups"][0]["VpcId"] == vpc
    role = boto3.client("iam", REGION).get_role(RoleName="cloudtune-head-us-east-1")["Role"]
    assert {"Key": "team", "Value": "vision"} in role["Tags"]
    assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == boundary
    assert role["Arn"].endswith(":role/vision/cloudtune-head-us-east-1")
    assert experiment_on_aws(tmp_path, cloud={"zones": ["us-east-1c"]}).cloud.subnets == {}
    fewer = called(capsys, "aws", "setup", "--yes", "--subnets", second)
    assert "This will\n  update the settings of the stack\n" in fewer.out
    assert experiment_on_aws(tmp_path).cloud.subnets == {"us-east-1a": second}
    assert experiment_on_aws(tmp_path).cloud.tags == {"team": "vision"}, "as before"

    cloud = AWS.open(experiment_on_aws(tmp_path), tmp_path, pace=False)
    request = {**at_place(cloud.request, cloud.places, ""), "InstanceType": "g4dn.xlarge"}
    AWS.calls(cloud.endpoint).run_instance("t", cloud.tags, request)
    account.move_clock(2.0)  # until EC2 shows the instance
    (instance,) = ec2.describe_instances()["Reservations"][0]["Instances"]
    assert instance["MetadataOptions"]["HttpTokens"] == "required", "IMDSv2"
    for kind in ("instance", "volume"):
        tagged = ec2.describe_tags(
            Filters=[
                {"Name": "tag:team", "Values": ["vision"]},
                {"Name": "resource-type", "Values": [kind]},
            ]
        )
        assert len(tagged["Tags"]) == 1, kind

    moved = called(capsys, "aws", "setup", "--yes", "--vpc", "vpc-1")
    assert moved.code == 2
    assert f"--vpc vpc-1: setup uses {vpc}; to change it, run `cloudtune aws teardown`" in moved.err


def test_a_key_encrypts_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key, words in [("alias/mine", "write the key's ARN"), (KEY, "a key of eu-west-1 is")]:
        refused = called(capsys, "aws", "setup", "--yes", "--kms", key, "--region", "eu-west-1")
        assert (refused.code, stacks()) == (2, [])
        assert words in refused.err
    named = ("--kms", KEY, "--head-type", "m6i.large")
    called(capsys, "aws", "setup", "--yes", *named).succeeded()
    assert f"ok       {KEY} encrypts it" in called(capsys, "aws", "check").out
    assert "nothing to create" in called(capsys, "aws", "setup", "--yes").out, "as before"
    person = called(capsys, "aws", "policy", "person").json
    assert list_types(person) == ["m6i.large"]

    wanted = experiment_on_aws(tmp_path)
    (disk,) = wanted.cloud.request["BlockDeviceMappings"]
    assert disk["Ebs"].items() >= {"Encrypted": True, "KmsKeyId": KEY}.items()
    head = AWS.head(wanted, tmp_path)
    assert head is not None
    assert (head.instance_type, head.second_type) == ("m6i.large", "")
    assert head.usd_per_hour == pytest.approx(0.096 + (wanted.charges.per_instance_hour or 0))
    request = {**head.request, "InstanceType": head.instance_type}
    AWS.calls(Endpoint(REGION)).run_instance("t", {"cloudtune:run": "r"}, request)
    (volume,) = boto3.client("ec2", REGION).describe_volumes()["Volumes"]
    assert (volume["Encrypted"], volume["KmsKeyId"]) == (True, KEY)
    other_type = AWS.head(experiment_on_aws(tmp_path, cloud={"head_type": "m5.large"}), tmp_path)
    assert other_type is not None
    assert other_type.instance_type == "m5.large"
    own = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200}}]
    kept = experiment_on_aws(tmp_path, cloud={"request": {"BlockDeviceMappings": own}})
    assert kept.cloud.request["BlockDeviceMappings"] == own

    boto3.client("s3", REGION).delete_bucket_encryption(Bucket=BUCKET)
    lacking = f"missing  {KEY} encrypts it: AWS's own key does"
    assert lacking in called(capsys, "aws", "check").out


def test_an_admin_deploys_the_printed_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        account = ("--account", "123456789012")
        printed = called(capsys, "aws", "template", *account, "--tag", "team=vision")
        policy = called(capsys, "aws", "policy", "maker", *account, "--format", "cloudformation")
        assert policy.json["Resources"]["Policy"]["Type"] == "AWS::IAM::ManagedPolicy"
    deploy(printed.out, Subnets="subnet-1")  # no JSON
    done = called(capsys, "aws", "check")
    assert done.code == 1
    assert "an output of stack cloudtune is missing or malformed" in done.err
    boto3.client("cloudformation", REGION).delete_stack(StackName="cloudtune")
    deploy(printed.out)
    assert called(capsys, "aws", "check").code == 1, "AWS's role for spot isn't in the stack"
    assert missing() == ["the role of spot.amazonaws.com"]
    assert experiment_on_aws(tmp_path).storage == f"s3://{BUCKET}/cloudtune"


def deploy(body: str, **parameters: str) -> None:
    """Deploy a template as an admin does who has these parameters and the VPC."""
    given = {"Vpc": account_now().vpc or "", **parameters}
    names = {"StackName": "cloudtune", "ChangeSetName": "mine"}
    cloudformation = boto3.client("cloudformation", REGION)
    cloudformation.create_change_set(
        **names,
        ChangeSetType="CREATE",
        TemplateBody=body,
        Parameters=[{"ParameterKey": name, "ParameterValue": given[name]} for name in given],
    )
    cloudformation.execute_change_set(**names)


def test_a_failed_setup_is_undone_and_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    iam, name = boto3.client("iam", REGION), "cloudtune-head-us-east-1"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(policies.TRUST))
    called(capsys, "aws", "setup", "--yes").refused(
        "stack cloudtune was not changed: HeadRole: ", f"{name} already exists", code=1
    )
    assert account_now().group is None
    assert iam.list_role_policies(RoleName=name)["PolicyNames"] == [], "another one's"
    assert "stack cloudtune: it is ROLLBACK_COMPLETE" in called(capsys, "aws", "check").out
    iam.delete_role(RoleName=name)
    assert called(capsys, "aws", "setup", "--yes").code == 0
    assert missing() == []


def squat(name: str, region: str) -> None:
    """Create a bucket of another account that is tagged as ours."""
    theirs = boto3.client("s3", region)
    theirs.meta.events.register(
        "before-send.s3", lambda request, **_: request.headers.update(ANOTHER_ACCOUNT)
    )
    where: Any = {"CreateBucketConfiguration": {"LocationConstraint": region}}
    theirs.create_bucket(Bucket=name, **({} if region == REGION else where))
    theirs.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": TAG, "Value": "1"}]})


def test_squatted_bucket_name_stops_setup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the shared namespace its name tells anyone what a bucket of ours will be called."""
    squat(SHARED_NAME, REGION)
    assert called(capsys, "aws", "setup", "--yes").code == 0
    assert missing() == []
    assert account_now().settings.storage == f"s3://{BUCKET}/cloudtune"
    boto3.client("s3", REGION).head_bucket(Bucket=BUCKET)
    deployed = called(capsys, "aws", "template").json
    assert deployed["Resources"]["Bucket"]["Properties"]["BucketNamespace"] == "account-regional"

    without, name = "me-south-1", "cloudtune-123456789012-me-south-1"
    squat(name, without)
    done = called(capsys, "aws", "setup", "--yes", "--region", without)
    assert done.code == 1
    assert f"unknown: bucket {name}: An error occurred (AccessDenied)" in done.err


def test_an_earlier_setup_keeps_its_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    """Set-ups up to 0.2.0 have one in the shared namespace, and runs in it."""
    place = policies.Place("123456789012", REGION, ("g4dn.*",), shared_namespace=True)
    deploy(json.dumps(template(place)))
    s3 = boto3.client("s3", REGION)
    s3.put_object(Bucket=SHARED_NAME, Key="cloudtune/run/best/model.pt", Body=b"x")
    assert called(capsys, "aws", "setup", "--yes", "--instances", "g5.*").code == 0
    assert account_now().settings.storage == f"s3://{SHARED_NAME}/cloudtune"
    for _ in range(2):  # it is kept without a stack, too, and by the next setup
        kept = called(capsys, "aws", "teardown", "--yes")
        assert f"keep bucket {SHARED_NAME}: it isn't empty" in kept.out
        assert called(capsys, "aws", "setup", "--yes").code == 0
        assert account_now().settings.storage == f"s3://{SHARED_NAME}/cloudtune"
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [SHARED_NAME]


def test_teardown_keeps_results(
    account: EmulatorControl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(capsys, "aws", "setup", "--yes").code == 0
    s3, ec2 = boto3.client("s3", REGION), boto3.client("ec2", REGION)
    s3.put_object(Bucket=BUCKET, Key="cloudtune/run/best/model.pt", Body=b"x")
    tags: Any = [{"Key": "cloudtune:run", "Value": "r"}]
    image = present(account_now().image)
    launched = ec2.run_instances(
        ImageId=image,
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"][0]["InstanceId"]
    account.move_clock(2.0)  # until EC2 shows the instance
    refused = called(capsys, "aws", "teardown", "--yes")
    assert refused.code == 2
    assert f"{launched} of run r is alive in us-east-1: `cloudtune gc --all" in refused.err
    ec2.terminate_instances(InstanceIds=[launched])

    called(capsys, "aws", "teardown", "--yes").succeeded(f"keep bucket {BUCKET}: it isn't empty")
    assert s3.get_object(Bucket=BUCKET, Key="cloudtune/run/best/model.pt")["Body"].read() == b"x"
    assert called(capsys, "aws", "setup", "--yes").code == 0, "its bucket is used again"
    assert missing() == []
    assert "nothing to create" in called(capsys, "aws", "setup", "--yes").out
    assert called(capsys, "aws", "teardown", "--yes", "--bucket").code == 0
    with pytest.raises(ClientError):
        s3.head_bucket(Bucket=BUCKET)
    assert "nothing to delete" in called(capsys, "aws", "teardown", "--yes").out


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Clients of an AWS that accepts everything; `see` says what becomes of the stack."""
    clients = MagicMock()
    described = {"Status": "CREATE_COMPLETE", "Changes": []}
    clients["cloudformation"].describe_change_set.return_value = described
    monkeypatch.setattr(stack, "_PAUSE_SECONDS", 0.0)
    return clients


def see(monkeypatch: pytest.MonkeyPatch, *statuses: str) -> Iterator[Stack | None]:
    """Let the stack be in these states, one for each look; "" if there is none."""
    looks = iter([Stack(status) if status else None for status in statuses])
    monkeypatch.setattr(stack, "read", lambda _clients: next(looks))
    return looks


@pytest.mark.parametrize(
    "statuses",
    [
        ("", "REVIEW_IN_PROGRESS", "CREATE_IN_PROGRESS", "CREATE_COMPLETE"),
        ("UPDATE_IN_PROGRESS", "CREATE_COMPLETE", "UPDATE_IN_PROGRESS", "UPDATE_COMPLETE"),
        ("REVIEW_IN_PROGRESS", "CREATE_COMPLETE"),  # its change set was never executed
    ],
)
def test_a_change(clients: Any, monkeypatch: pytest.MonkeyPatch, statuses: tuple[str, ...]) -> None:
    looks = see(monkeypatch, *statuses)
    with ChangeSet(clients, {}, {}) as change_set:
        change_set.execute()
    assert list(looks) == []
    clients["cloudformation"].delete_change_set.assert_not_called()


def test_a_deletion_is_waited_for(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = see(monkeypatch, "CREATE_COMPLETE", "DELETE_IN_PROGRESS", "")
    stack.delete(clients)
    assert list(looks) == []
    see(monkeypatch, "DELETE_IN_PROGRESS", "DELETE_FAILED")
    with pytest.raises(CloudtuneError, match="stack cloudtune was not deleted"):
        stack.delete(clients)


def test_an_interrupt_before_leaves_nothing(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, "")
    with pytest.raises(KeyboardInterrupt), ChangeSet(clients, {}, {}):
        raise KeyboardInterrupt
    clients["cloudformation"].delete_change_set.assert_called_once()
    clients["cloudformation"].delete_stack.assert_called_once()
