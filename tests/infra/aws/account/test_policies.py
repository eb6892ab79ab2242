"""What the policies of setup allow, by themselves: no account is asked."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from cloudtune.infra.aws.account import policies
from cloudtune.infra.aws.account.policies import Place
from cloudtune.infra.aws.account.template import template
from cloudtune.infra.heads.launch import REMOTE
from cloudtune.infra.heads.store import BOOT, ORDER, PARCEL, RECORD, STATE, STOP
from tests.aws_stand_in.policies import Asked, verdict


def list_types(policy: Mapping[str, Any]) -> list[str] | None:
    conditions = (it.get("Condition", {}).get("StringLike", {}) for it in policy["Statement"])
    return next((its["ec2:InstanceType"] for its in conditions if its), None)


IN_REGION = {"StringEquals": {"aws:RequestedRegion": "eu-west-1"}}


def test_policies_stay_within_their_region() -> None:
    place = Place("111122223333", "eu-west-1", ("g5.*",))
    for document in (policies.head(place), policies.person(place), policies.node(place)):
        for statement in document["Statement"]:
            reading = all(
                action.partition(":")[2].startswith(("Describe", "Get", "List"))
                for action in actions(statement)
            )
            # An agent's own messages and interrupts, which AWS can't limit to a resource.
            in_region = statement.get("Condition") == IN_REGION
            assert statement["Resource"] != "*" or reading or in_region, statement
            if "ec2:RunInstances" in actions(statement):
                assert "arn:aws:ec2:eu-west-1" in json.dumps(statement["Resource"])
            if "ec2:TerminateInstances" in actions(statement):
                assert statement["Condition"] == {
                    "Null": {"aws:ResourceTag/cloudtune:run": "false"}
                }
    assert list_types(policies.head(place)) == ["g5.*"]
    assert list_types(policies.person(place)) == ["m7i.large", "m7i-flex.large"]
    assert list_types(policies.node(place)) is None


NODES_BUCKET = "arn:aws:s3:::cloudtune-111122223333-eu-west-1-an/cloudtune"
NODE = policies.node(Place("111122223333", "eu-west-1", ("g5.*",)))


@pytest.mark.parametrize(
    ("key", "reads", "writes"),
    [
        ("own-1/trials/t00/model.pt", "allowed", "allowed"),
        ("own-1/trials/t00/head/weights.pt", "allowed", "allowed"),
        ("other-2/trials/t00/model.pt", "allowed", "allowed"),
        ("environments/abc/manifest.json", "allowed", "denied"),
        ("environments/abc/1-0.tar.zst", "allowed", "denied"),
        ("other-2/head/certificates.pem", "allowed", "denied"),
        *(
            (f"other-2/head/{name}", "denied", "denied")
            for name in (
                *(BOOT, ORDER, PARCEL, REMOTE, STATE, STOP),
                *(f"{RECORD}/run/ledger.jsonl@000000000000", f"{RECORD}/profiles/a.json"),
            )
        ),
    ],
)
def test_what_training_reads_and_writes_in_the_bucket(key: str, reads: str, writes: str) -> None:
    for action, expected in [("Get", reads), ("Put", writes), ("Delete", writes)]:
        for account, answer in [("111122223333", expected), ("999999999999", "not allowed")]:
            name = f"{NODES_BUCKET}/{key}"  # which another account may have squatted
            asked = Asked(f"s3:{action}Object", name, {"s3:ResourceAccount": [account]})
            assert verdict([NODE], asked) == (answer if expected != "denied" else "denied")


@pytest.mark.parametrize(
    ("region", "partition"),
    [("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn"), ("eusc-de-east-1", "aws-eusc")],
)
def test_each_arn_is_of_the_region_s_partition(region: str, partition: str) -> None:
    place = Place(
        "111122223333",
        region,
        secrets=("ssm:/team/token", "aws-secretsmanager:hf"),
        data=("s3://data/some", "s3://whole"),
        storages=("s3://mine/x",),
    )
    documents = [policies.person(place), policies.maker(place), template(place)]
    arns = re.findall(r"arn:([\w-]+):", json.dumps(documents))
    assert len(arns) > 50
    assert set(arns) == {partition}
    assert "arn:aws:" in json.dumps(policies.head(Place("111122223333", "xx-new-1")))


def actions(statement: Mapping[str, Any]) -> list[str]:
    given = statement["Action"]
    return [given] if isinstance(given, str) else list(given)


@pytest.mark.parametrize(
    ("who", "document", "tag", "expected"),
    [
        ("person", "AWS-RunShellScript", "small-1", "allowed"),
        ("person", "AWS-RunShellScript", None, "not allowed"),
        ("person", "AWS-RunRemoteScript", "small-1", "not allowed"),
        ("head", "AWS-RunShellScript", "small-1", "not allowed"),
        ("node", "AWS-RunShellScript", "small-1", "not allowed"),
    ],
)
def test_people_enter_instances_of_runs_alone(
    who: str, document: str, tag: str | None, expected: str
) -> None:
    policy = getattr(policies, who)(Place("111122223333", "eu-west-1"))
    where = "arn:aws:ec2:eu-west-1:111122223333:instance/i-1"
    tags = {} if tag is None else {"ssm:resourceTag/cloudtune:run": [tag]}
    needed = [
        Asked("ssm:SendCommand", where, tags),
        Asked("ssm:SendCommand", f"arn:aws:ssm:eu-west-1::document/{document}"),
    ]
    answers = {verdict([policy], asked) for asked in needed}
    assert (answers == {"allowed"}) is (expected == "allowed")


@pytest.mark.parametrize("who", ["head", "node"])
def test_agents_of_instances_take_commands(who: str) -> None:
    policy = getattr(policies, who)(Place("111122223333", "eu-west-1"))
    for name in ("ssm:UpdateInstanceInformation", "ssmmessages:OpenDataChannel"):
        for region, expected in (("eu-west-1", "allowed"), ("us-east-1", "not allowed")):
            asked = Asked(name, "*", {"aws:RequestedRegion": [region]})
            assert verdict([policy], asked) == expected
