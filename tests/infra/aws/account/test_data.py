"""Data in a bucket of AWS: setup lets heads and instances read it, and a run says what it lacks."""

from pathlib import Path

import boto3
import pytest

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.emulator.requests import Access
from cloudtune.lifecycle.data import with_data
from cloudtune.lifecycle.runner import preflight
from cloudtune.runs.job import read_charges
from tests.aws_stand_in.policies import Asked, verdict
from tests.bench import called
from tests.builders.experiments import experiment_on_aws

REGION = "us-east-1"
GIGABYTE = 10**9


@pytest.fixture(autouse=True)
def account(own_account: Access) -> None:
    """An account with a bucket in the region, and one elsewhere."""
    boto3.client("s3", REGION).create_bucket(Bucket="near")
    there = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3", "eu-west-1").create_bucket(Bucket="far", CreateBucketConfiguration=there)
    for bucket in ("near", "far"):
        for name in ("a", "b"):
            boto3.client("s3").put_object(Bucket=bucket, Key=f"sets/{name}", Body=b"x" * 1000)


def renting(tmp_path: Path, **data: str) -> Experiment:
    (tmp_path / "x").mkdir(exist_ok=True)
    return experiment_on_aws(tmp_path / "x", data=data)


def test_a_run_names_what_its_instances_may_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called(capsys, "aws", "setup", "--yes", "--data", "s3://near/sets/a").succeeded()
    with pytest.raises(UsageError) as refused:
        preflight(renting(tmp_path, train="s3://near/sets", test="s3://none/x", b="s3://near/set"))
    message = str(refused.value)
    assert "data.test: nothing is below s3://none/x/; correct the address" in message
    assert "data.b: nothing is below s3://near/set/" in message
    assert "data.train: instances may not read s3://near/sets: `cloudtune aws setup" in message
    assert "--data s3://near/sets/a,s3://near/sets,s3://none/x,s3://near/set` lets" in message
    assert "nothing was launched" in message

    both = ("--data", "s3://near/sets,s3://far")
    called(capsys, "aws", "setup", "--yes", *both).succeeded("update NodeRole", "update HeadRole")
    preflight(renting(tmp_path, train="s3://near/sets", test="s3://far/sets"))
    assert "nothing to create" in called(capsys, "aws", "setup", "--yes").out


@pytest.mark.parametrize("role", ["node", "head"])
def test_roles_read_below_those_addresses_alone(
    role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--data", "s3://near/sets,s3://far")
    called(capsys, "aws", "setup", "--yes", *named).succeeded()
    for key, may in (("sets/a", "allowed"), ("sets", "not allowed"), ("sets2/a", "not allowed")):
        assert may_do(role, "s3:GetObject", f"near/{key}") == may
    assert may_do(role, "s3:GetObject", "far/anything") == "allowed"
    assert may_do(role, "s3:PutObject", "near/sets/a") == "not allowed"
    for prefix, may in (("sets/", "allowed"), ("sets/a", "allowed"), ("", "not allowed")):
        assert may_do(role, "s3:ListBucket", "near", prefix) == may
    assert may_do(role, "s3:ListBucket", "far", "") == "allowed"
    ours = "cloudtune-123456789012-us-east-1-an/cloudtune/data/0/a"
    assert may_do(role, "s3:GetObject", ours) == "allowed"
    if role == "node":
        assert may_do(role, "s3:PutObject", ours) == "denied", "other runs read it, too"
    called(capsys, "aws", "setup", "--yes", "--data", "none").succeeded("update NodeRole")
    assert may_do(role, "s3:GetObject", "near/sets/a") == "not allowed"


def may_do(role: str, action: str, resource: str, prefix: str = "") -> str:
    name = f"cloudtune-{role}-{REGION}"
    policy = boto3.client("iam", REGION).get_role_policy(RoleName=name, PolicyName="cloudtune")
    context = {"s3:prefix": [prefix], "s3:ResourceAccount": ["123456789012"]}
    return verdict([policy["PolicyDocument"]], Asked(action, f"arn:aws:s3:::{resource}", context))


@pytest.mark.parametrize("text", ["near/sets", "s3://", "s3://near/*", "/data"])
def test_setup_refuses_what_is_no_address(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "aws", "setup", "--yes", "--data", text).refused("is no address in S3")


def test_requests_and_transfer_are_charged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called(capsys, "aws", "setup", "--yes", "--data", "s3://near,s3://far").succeeded()
    near = renting(tmp_path, train="s3://near/sets")
    assert read_charges(near).usd_per_launch == 0.0, "less than a tenth of a cent"
    far = renting(tmp_path, train="s3://far/sets")
    assert far.charges.data is not None
    assert (far.charges.data.region, far.charges.data.gb) == ("eu-west-1", 2000 / GIGABYTE)
    monkeypatch.setattr("cloudtune.infra.aws.data.USD_PER_REQUEST", 0.5)
    assert read_charges(renting(tmp_path, train="s3://near/sets")).usd_per_launch == 1.0


def test_laptop_folder_goes_to_bucket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "aws", "setup", "--yes").succeeded()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.gz").write_bytes(b"not zipped")
    wanted = renting(tmp_path, train=str(tmp_path / "mine"))
    preflight(wanted)
    stored = with_data(wanted)
    address = stored.data["train"]
    assert address.startswith("s3://cloudtune-123456789012-us-east-1-an/cloudtune/data/")
    bucket, _, key = address.removeprefix("s3://").partition("/")
    body = boto3.client("s3").get_object(Bucket=bucket, Key=f"{key}/a.gz")["Body"].read()
    assert body == b"not zipped"
    preflight(stored)  # what setup made lets instances read it
    capsys.readouterr()
    assert with_data(wanted).data == stored.data
    assert "uploaded" not in capsys.readouterr().err
