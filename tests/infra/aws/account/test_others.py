"""A storage and a role that setup didn't make: it allows them, or a run says what is missing."""

import json
from pathlib import Path

import boto3
import pytest

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.infra.aws.account import policies
from cloudtune.infra.aws.account.policies import Place
from cloudtune.infra.aws.rights import lacking_rights
from cloudtune.infra.emulator.requests import Access
from cloudtune.lifecycle.runner import preflight
from tests.aws_stand_in.policies import Asked, verdict
from tests.bench import called
from tests.builders.experiments import experiment_on_aws

REGION = "us-east-1"
ROLE = "arn:aws:iam::123456789012:role/team/mine"


@pytest.fixture(autouse=True)
def account(own_account: Access) -> None:
    """An account with a bucket and a role of its own."""
    boto3.client("s3", REGION).create_bucket(Bucket="ours-too")
    iam = boto3.client("iam", REGION)
    iam.create_role(RoleName="mine", Path="/team/", AssumeRolePolicyDocument=json.dumps({}))
    iam.create_instance_profile(InstanceProfileName="my-profile")
    iam.add_role_to_instance_profile(InstanceProfileName="my-profile", RoleName="mine")


def lacks(experiment: Experiment, *, has_head: bool = True) -> list[str]:
    return list(lacking_rights(experiment, has_head=has_head))


def test_another_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "aws", "setup", "--yes").succeeded()
    wanted = experiment_on_aws(tmp_path, storage="s3://ours-too/runs")
    with pytest.raises(UsageError) as refused:
        preflight(wanted)
    setup = "`cloudtune aws setup --region us-east-1 --storage s3://ours-too/runs`"
    assert str(refused.value).splitlines() == [
        f"storage: heads and instances may not write to s3://ours-too/runs: {setup} lets them",
        "nothing was launched",
    ]
    allowed = called(capsys, "aws", "setup", "--yes", "--storage", "s3://ours-too/runs")
    allowed.succeeded("update NodeRole", "update HeadRole")
    preflight(wanted)
    preflight(experiment_on_aws(tmp_path))
    assert lacks(experiment_on_aws(tmp_path, storage="s3://ours-too/run"))
    assert "nothing to create" in called(capsys, "aws", "setup", "--yes").out


def test_another_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "aws", "setup", "--yes").succeeded()
    assert lacks(experiment_on_aws(tmp_path, {"instance_profile": "none"})) == [
        "cloud.instance_profile: the account has no instance profile none"
    ]
    wanted = experiment_on_aws(tmp_path, {"instance_profile": "my-profile"})
    assert lacks(wanted) == [
        (
            f"cloud.instance_profile: heads may not give instances {ROLE}: `cloudtune aws setup "
            f"--region us-east-1 --role {ROLE}` lets them"
        )
    ]
    assert not lacks(wanted, has_head=False), "EC2's dry run says what this machine may"
    called(capsys, "aws", "setup", "--yes", "--role", ROLE).succeeded("update HeadRole")
    assert not lacks(wanted)
    called(capsys, "aws", "setup", "--yes", "--role", "mine").refused("--role mine: write its ARN")


FOLDER = "ours-too/runs"


@pytest.mark.parametrize(
    ("who", "action", "resource", "expected"),
    [
        ("node", "s3:PutObject", f"{FOLDER}/small-1/trials/t00/a", "allowed"),
        ("node", "s3:GetObject", f"{FOLDER}/small-1/head/parcel.tar.gz", "denied"),
        ("node", "s3:PutObject", f"{FOLDER}/environments/a", "denied"),
        ("node", "s3:GetObject", f"{FOLDER}/environments/a", "allowed"),
        ("node", "s3:PutObject", "ours-too/elsewhere", "not allowed"),
        ("node", "s3:ListBucket", "ours-too", "allowed"),
        ("head", "s3:PutObject", f"{FOLDER}/environments/a", "allowed"),
        ("head", "s3:PutObject", "ours-too/elsewhere", "not allowed"),
        ("person", "s3:PutObject", f"{FOLDER}/small-1/head/order.json", "allowed"),
    ],
)
def test_rights_in_another_storage(who: str, action: str, resource: str, expected: str) -> None:
    place = Place("123456789012", REGION, storages=(f"s3://{FOLDER}",))
    asked = Asked(action, f"arn:aws:s3:::{resource}", {"s3:ResourceAccount": ["999999999999"]})
    assert verdict([getattr(policies, who)(place)], asked) == expected


@pytest.mark.parametrize(("role", "expected"), [(ROLE, "allowed"), (f"{ROLE}2", "not allowed")])
def test_heads_give_that_role_alone(role: str, expected: str) -> None:
    place = Place("123456789012", REGION, other_roles=(ROLE,))
    asked = Asked("iam:PassRole", role, {"iam:PassedToService": ["ec2.amazonaws.com"]})
    assert verdict([policies.head(place)], asked) == expected
    assert verdict([policies.person(place)], asked) == "not allowed"
