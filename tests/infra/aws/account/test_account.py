"""`cloudtune aws`: what an account needs, made, looked at and taken away, by the command."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from cloudtune.api.experiments import for_renting
from cloudtune.infra.aws.account import names, policies, steps
from cloudtune.infra.aws.account.found import Clients, Found, look
from cloudtune.infra.aws.account.policies import Place
from cloudtune.infra.aws.account.report import lines
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import find_emulator, stop_emulator
from cloudtune.infra.provider import Endpoint
from tests.aws_stand_in.account import start
from tests.bench import called

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REGION = "us-east-1"
BUCKET = "cloudtune-123456789012-us-east-1"
MADE = 12


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An emulated account, which boto3 finds as it finds AWS."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    access = start(tmp_path / "emulator").access
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it has the keys of a test before
    monkeypatch.setenv("AWS_ENDPOINT_URL", access.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", access.secret)
    yield
    stop_emulator(tmp_path / "emulator", only_if_idle=False)


def seen() -> Found:
    return look(Clients(Endpoint(REGION)), REGION, ("g4dn.*",))


def missing() -> list[str]:
    return [each.what for each in lines(seen()) if each.state == "missing"]


def test_setup_shows_makes_and_has_nothing_more_to_make(
    capsys: pytest.CaptureFixture[str],
) -> None:
    looked = called(capsys, "aws", "check")
    assert looked.code == 1
    assert f"missing  bucket {BUCKET}: `cloudtune aws setup` makes it" in looked.out
    assert "ok       image: ami-" in looked.out

    asked = called(capsys, "aws", "setup")
    assert asked.code == 2
    assert (
        "can't ask for confirmation without a terminal: add --yes; nothing was changed" in asked.err
    )
    assert f"  bucket {BUCKET}: checkpoints, logs and results; no public access" in asked.out
    assert "security group cloudtune" in missing()

    made = called(capsys, "aws", "setup", "--yes", "--instances", "g4dn.*, p3.*")
    assert made.code == 0, made.out + made.err
    assert made.out.count("\ncreating ") == MADE
    assert "ready: use `cloud: {provider: aws, region: us-east-1}`" in made.out
    again = called(capsys, "aws", "setup", "--yes")
    assert "nothing to create" in again.out, "the types are those of the last setup"
    assert called(capsys, "aws", "check").code == 0
    told = called(capsys, "aws", "check", "-o", "json").json
    assert {each["state"] for each in told} == {"ok"}

    policy = boto3.client("iam", REGION).get_role_policy(
        RoleName="cloudtune-head-us-east-1", PolicyName="cloudtune"
    )["PolicyDocument"]
    assert policies.types_of(policy) == ("g4dn.*", "p3.*")
    other = called(capsys, "aws", "setup", "--yes", "--instances", "g5.*")
    assert "creating the policy of cloudtune-head-us-east-1" in other.out
    assert other.out.count("\ncreating ") == 1


def test_an_experiment_needs_to_say_no_more_than_aws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("def train(config): ...\n")
    fields = {
        "name": "x",
        "train": "train.py:train",
        "metric": {"name": "loss", "mode": "min"},
        "search": {"lr": {"uniform": [0, 1]}},
        "trials": 1,
        "epochs": {"min": 1, "max": 1},
        "limits": {"budget": "$1"},
        "cloud": {"provider": "aws", "instances": ["g4dn.xlarge"]},
        "directory": str(tmp_path),
    }
    bare = for_renting(fields, {})
    assert (bare.cloud.security_group, bare.cloud.instance_profile) == (None, None)
    assert not bare.storage.startswith("s3://")

    assert called(capsys, "aws", "setup", "--yes").code == 0
    full = for_renting(fields, {})
    assert full.storage == f"s3://{BUCKET}/cloudtune"
    assert full.cloud.image == seen().image
    assert full.cloud.security_group == seen().group
    assert full.cloud.instance_profile == "cloudtune-node-us-east-1"
    image = boto3.client("ec2", REGION).describe_images(ImageIds=[full.cloud.image or ""])
    disk = image["Images"][0]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
    a_month, address = 0.08 * disk / 30 / 24, 0.005
    assert full.charges.per_instance_hour == pytest.approx(a_month + address)
    own = {**fields, "storage": "s3://mine/x", "charges": {"per_instance_hour": 0.5}}
    own["cloud"] = {"provider": "aws", "instances": ["g4dn.xlarge"], "image": "ami-1"}
    kept = for_renting(own, {})
    assert (kept.storage, kept.cloud.image) == ("s3://mine/x", "ami-1")
    assert kept.charges.per_instance_hour == 0.5


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_setup_that_is_cut_off_goes_on_from_there(cut: int) -> None:
    """At each of its steps, before it and behind it; the second time makes no second one."""
    clients = Clients(Endpoint(REGION))
    todo = list(steps.to_make(clients, seen()))
    assert len(todo) == MADE
    for step in todo[:cut]:
        steps.done(step)
    for step in steps.to_make(clients, seen()):
        steps.done(step)
    assert list(steps.to_make(clients, seen())) == []
    groups = boto3.client("ec2", REGION).describe_security_groups(
        Filters=[{"Name": "group-name", "Values": [names.GROUP]}]
    )["SecurityGroups"]
    assert len(groups) == 1
    taken = list(steps.to_remove(clients, seen(), with_bucket=False))
    for step in taken[:cut]:
        steps.done(step)
    for step in steps.to_remove(clients, seen(), with_bucket=False):
        steps.done(step)
    left = seen()
    assert (left.group, left.bucket) == (None, False)
    assert not any(role.exists or role.profile for role in left.roles.values())


def test_a_group_cut_off_before_its_rule_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    vpc = seen().vpc
    assert vpc is not None
    made = boto3.client("ec2", REGION).create_security_group(
        GroupName=names.GROUP, Description="x", VpcId=vpc
    )
    assert "its members reach each other" in missing()
    done = called(capsys, "aws", "setup", "--yes")
    assert f"creating a rule of cloudtune ({made['GroupId']})" in done.out
    assert seen().open_within


def test_a_role_of_that_name_that_is_somebody_elses_is_left_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    iam, name = boto3.client("iam", REGION), "cloudtune-head-us-east-1"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(policies.trust()))
    done = called(capsys, "aws", "setup", "--yes")
    assert done.code == 1
    assert f"a role {name} is there that cloudtune hasn't made" in done.err
    assert called(capsys, "aws", "teardown", "--yes").code == 0
    assert iam.get_role(RoleName=name)
    assert iam.list_role_policies(RoleName=name)["PolicyNames"] == []


def test_a_bucket_cut_off_half_made_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(Endpoint(REGION))
    (step,) = (s for s in steps.to_make(clients, seen()) if s.what.startswith("bucket "))
    with monkeypatch.context() as patch:
        patch.setattr(clients["s3"], "put_public_access_block", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            steps.done(step)
    assert f"bucket {BUCKET}" in missing()
    for each in steps.to_make(clients, seen()):
        steps.done(each)
    blocked = clients["s3"].get_public_access_block(Bucket=BUCKET)
    assert set(blocked["PublicAccessBlockConfiguration"].values()) == {True}
    assert f"bucket {BUCKET}" not in missing()


def test_a_door_to_the_world_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "aws", "setup", "--yes").code == 0
    group = seen().group
    assert group is not None
    boto3.client("ec2", REGION).authorize_security_group_ingress(
        GroupId=group, CidrIp="0.0.0.0/0", IpProtocol="tcp", FromPort=22, ToPort=22
    )
    done = called(capsys, "aws", "check")
    assert done.code == 1
    assert "0.0.0.0/0 may reach instances, and no run needs it" in done.out


def test_a_teardown_keeps_results_and_refuses_while_something_is_alive(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert called(capsys, "aws", "setup", "--yes").code == 0
    s3, ec2 = boto3.client("s3", REGION), boto3.client("ec2", REGION)
    s3.put_object(Bucket=BUCKET, Key="cloudtune/run/best/model.pt", Body=b"x")
    tags: Any = [{"Key": "cloudtune:run", "Value": "r"}]
    image = seen().image
    assert image is not None
    launched = ec2.run_instances(
        ImageId=image,
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"][0]["InstanceId"]
    emulator = find_emulator(tmp_path / "emulator")
    assert emulator is not None
    EmulatorControl(emulator.access).move_clock(2.0)  # until EC2 shows the instance
    refused = called(capsys, "aws", "teardown", "--yes")
    assert refused.code == 2
    assert f"{launched} of run r is alive in us-east-1: `cloudtune gc --all" in refused.err
    ec2.terminate_instances(InstanceIds=[launched])

    done = called(capsys, "aws", "teardown", "--yes")
    assert done.code == 0, done.out + done.err
    assert f"keep bucket {BUCKET}: it isn't empty" in done.out
    assert s3.get_object(Bucket=BUCKET, Key="cloudtune/run/best/model.pt")["Body"].read() == b"x"
    assert called(capsys, "aws", "teardown", "--yes", "--bucket").code == 0
    with pytest.raises(ClientError):
        s3.head_bucket(Bucket=BUCKET)
    assert "nothing to delete" in called(capsys, "aws", "teardown", "--yes").out


def test_without_credentials_one_line_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    done = called(capsys, "aws", "check")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "Give this machine credentials" in done.err


def test_quotas_of_nothing_are_missing_and_say_what_to_ask_for() -> None:
    found = replace(seen(), quotas={"on-demand g": 0.0, "spot g": 64.0})
    told = {each.what: each for each in lines(found)}
    assert told["quota spot g"].note == "64 vCPUs"
    assert told["quota on-demand g"].state == "missing"
    assert "Running On-Demand G and VT instances (L-DB2E81BA)" in told["quota on-demand g"].note


def test_no_policy_reaches_beyond_its_region_its_types_or_what_is_tagged() -> None:
    place = Place("111122223333", "eu-west-1", ("g5.*",))
    for document in (policies.head(place), policies.person(place), policies.node(place)):
        for statement in document["Statement"]:
            reading = all(
                action.partition(":")[2].startswith(("Describe", "Get", "List"))
                for action in actions(statement)
            )
            assert statement["Resource"] != "*" or reading, statement
            if "ec2:RunInstances" in actions(statement):
                assert "arn:aws:ec2:eu-west-1" in json.dumps(statement["Resource"])
            if "ec2:TerminateInstances" in actions(statement):
                assert statement["Condition"] == {
                    "Null": {"aws:ResourceTag/cloudtune:run": "false"}
                }
    assert policies.types_of(policies.head(place)) == ("g5.*",)
    assert policies.types_of(policies.person(place)) == ("m7i.large",)
    assert policies.types_of(policies.node(place)) == ()


def actions(statement: Mapping[str, Any]) -> list[str]:
    given = statement["Action"]
    return [given] if isinstance(given, str) else list(given)
