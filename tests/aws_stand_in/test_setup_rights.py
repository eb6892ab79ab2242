"""Who sets an account up, who tunes in it, and what neither may do, by the policies of setup."""

import json
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from benchmarks.rights import PLACE, World, failures
from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.account import policies, stack
from cloudtune.infra.aws.account.inventory import load_inventory
from cloudtune.infra.aws.account.policies import Place
from cloudtune.infra.aws.account.stack import Clients
from cloudtune.infra.aws.ec2 import Ec2, market_request
from cloudtune.infra.provider import RUN_TAG, Endpoint
from tests.aws_stand_in.account import Account, set_up


def launched(world: World, who: Endpoint, kind: str, role: str) -> str:
    request: dict[str, Any] = {**world.request, **market_request("on-demand", "")}
    request |= {"InstanceType": kind, "IamInstanceProfile": {"Name": role}}
    return Ec2(who).run_instance(f"{kind}-{role}", {RUN_TAG: "r"}, request)


@pytest.fixture(scope="module")
def head_profile(account: Account) -> None:
    account.client("iam").create_instance_profile(InstanceProfileName=PLACE.head)


def test_a_person_launches_heads_and_nothing_else(world: World, head_profile: None) -> None:
    person = world.person(dict(policies.person(PLACE)))
    head = launched(world, person, "m7i.large", PLACE.head)
    world.control.move_clock(2.0)
    with pytest.raises(ClientError, match=r"ec2:RunInstances on resource: .*instance/"):
        launched(world, person, "g4dn.xlarge", PLACE.head)
    with pytest.raises(ClientError, match=f"iam:PassRole on resource: .*{PLACE.node}"):
        launched(world, person, "m7i.large", PLACE.node)
    Ec2(person).terminate([head])


def test_none_rents_other_types_or_ends_others(world: World, account: Account) -> None:
    head = world.person(dict(policies.head(PLACE)))
    with pytest.raises(ClientError, match=r"ec2:RunInstances on resource: .*instance/"):
        launched(world, head, "p3.2xlarge", PLACE.node)
    theirs = account.client("ec2").run_instances(**world.request, MinCount=1, MaxCount=1)
    world.control.move_clock(2.0)
    instance = theirs["Instances"][0]["InstanceId"]
    with pytest.raises(ClientError, match="ec2:TerminateInstances on resource"):
        Ec2(head).terminate([instance])
    with pytest.raises(ClientError, match="AccessDenied"):
        world.client("s3", head).get_object(Bucket="somebody-elses", Key="x")
    with pytest.raises(ClientError, match="AccessDenied"):
        world.client("iam", head).create_role(RoleName="x", AssumeRolePolicyDocument="{}")


def test_head_may_use_its_bucket(world: World) -> None:
    assert failures(world, dict(policies.head(PLACE)), "instance") == []


def test_setup_needs_two_documents(world: World) -> None:
    place = Place(PLACE.account, "eu-west-1", ("g5.*",))
    both = [*policies.person(place)["Statement"], *policies.maker(place)["Statement"]]
    who = world.person({"Version": "2012-10-17", "Statement": both})
    clients = Clients(Endpoint("eu-west-1", who.url, who.key, who.secret))
    set_up(clients, "eu-west-1", place.types)
    stack.create_spot_role(clients)
    after = load_inventory(clients, "eu-west-1")
    assert after.unknown == {}
    assert (after.is_current, after.place.types) == (True, place.types)
    assert after.quotas["on-demand g"] == 768.0
    set_up(clients, "eu-west-1", ("g4dn.*",))
    assert load_inventory(clients, "eu-west-1").place.types == ("g4dn.*",)
    stack.delete(clients)
    stack.delete_bucket(clients, place.bucket)
    assert load_inventory(clients, "eu-west-1").stack is None


def test_setup_without_rights_undoes_everything(world: World) -> None:
    place = Place(PLACE.account, "eu-west-2", ("g5.*",))
    who = world.person(dict(policies.person(place)))
    clients = Clients(Endpoint("eu-west-2", who.url, who.key, who.secret))
    with pytest.raises(
        CloudtuneError, match=r"cloudformation:CreateChangeSet.*continues from here"
    ):
        set_up(clients, "eu-west-2", place.types)
    less = dict(policies.maker(place))
    less["Statement"] = [it for it in less["Statement"] if it["Sid"] != "MakeRoles"]
    both = [*policies.person(place)["Statement"], *less["Statement"]]
    who = world.person({"Version": "2012-10-17", "Statement": both})
    clients = Clients(Endpoint("eu-west-2", who.url, who.key, who.secret))
    with pytest.raises(CloudtuneError, match=r"NodeRole: .*iam:CreateRole.*undid the rest"):
        set_up(clients, "eu-west-2", place.types)
    assert load_inventory(clients, "eu-west-2").group is None


KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def test_encrypted_disks_need_the_rights_to_the_key(world: World, head_profile: None) -> None:
    by_key = {"Encrypted": True, "KmsKeyId": KEY, "VolumeSize": 100}
    disks = [{"DeviceName": "/dev/sda1", "Ebs": by_key}]
    request = {**world.request, "InstanceType": "m7i.large", "BlockDeviceMappings": disks}
    request["IamInstanceProfile"] = {"Name": PLACE.head}

    def launch(place: Place) -> str:
        person = Ec2(world.person(dict(policies.person(place))))
        return person.run_instance("encrypted", {RUN_TAG: "r"}, request)

    with pytest.raises(ClientError, match=f"kms:DescribeKey on resource: {KEY}"):
        launch(PLACE)
    assert launch(replace(PLACE, kms=KEY)).startswith("i-")


def test_policies_keep_to_iams_sizes() -> None:
    person, maker = json.dumps(policies.person(PLACE)), json.dumps(policies.maker(PLACE))
    assert max(len(person), len(maker)) < 6144, "a managed policy's limit (IAM quotas, 2026-11)"
    assert len(json.dumps(policies.head(PLACE))) < 10240, "a role's inline policies together"
