"""The policies that `cloudtune aws setup` writes, on an emulator that asks for rights as AWS does.

Each right is taken away by itself: the call that needs it fails, in AWS's words, and no other does.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from cloudtune.infra.aws.account import names, policies
from cloudtune.infra.aws.account.found import Clients, look
from cloudtune.infra.aws.account.policies import Place
from cloudtune.infra.aws.account.steps import done, to_make, to_remove
from cloudtune.infra.aws.ec2 import Ec2, market_request
from cloudtune.infra.emulator.provider import endpoint_of
from cloudtune.infra.emulator.strict.evaluator import Asked, verdict
from cloudtune.infra.emulator.strict.images import NAME
from cloudtune.infra.provider import RUN_TAG, Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.infra.emulator.strict.conftest import Account

PLACE = Place("123456789012", "us-east-1", ("g4dn.*",))
DRAIN = "#!/bin/bash\nsleep 60\n"

Document = dict[str, Any]
Calls = dict[str, "Callable[[], object]"]


class Everything:
    """All the calls that a head makes, or a person, with somebody's keys."""

    def __init__(self, account: Account, client: Callable[[str], Any], role: str) -> None:
        self._root, self._client = account, client
        made = client("ec2")
        self._ec2 = Ec2(endpoint_of(account.access))
        self._ec2._client = self._ec2._launcher = made
        self._role = role
        self._launched: list[str] = []

    def calls(self, types: str) -> Calls:
        """Return them by what they are for, in an order in which they can be made."""
        s3, bucket = self._client("s3"), PLACE.bucket
        return {
            "launch": lambda: self._launch(types, "on-demand"),
            "launch on spot": lambda: self._launch(types, "spot"),
            "see instances": self._ec2.ours,
            "see zones": self._ec2.zones,
            "read a console": lambda: self._client("ec2").get_console_output(
                InstanceId=self._see()
            ),
            "see spot prices": lambda: self._client("ec2").describe_spot_price_history(
                InstanceTypes=["g4dn.xlarge"], MaxResults=1
            ),
            "write": lambda: s3.put_object(Bucket=bucket, Key="cloudtune/r/x", Body=b"x"),
            "write much": self._upload,
            "list": lambda: s3.list_objects_v2(Bucket=bucket, Prefix="cloudtune/"),
            "read": lambda: s3.get_object(Bucket=bucket, Key="cloudtune/r/x"),
            "delete": lambda: s3.delete_object(Bucket=bucket, Key="cloudtune/r/x"),
            "give back": self._give_back,
        }

    def _launch(self, types: str, market: str) -> None:
        image = next(
            each["ImageId"]
            for each in self._root.client("ec2").describe_images()["Images"]
            if each["Name"] == NAME
        )
        tags = {RUN_TAG: "r", "cloudtune:intent": "i", "Name": "x"}
        request = {
            **market_request(market, "us-east-1a", 1.0),
            "ImageId": image,
            "InstanceType": types,
            "UserData": DRAIN,
            "IamInstanceProfile": {"Name": self._role},
        }
        self._launched.append(self._ec2.run_instance("", tags, request))

    def _see(self) -> str:
        """Return an instance that EC2 knows of by now."""
        instance = self._launched[0]
        self._root.client("ec2").get_waiter("instance_exists").wait(
            InstanceIds=[instance], WaiterConfig={"Delay": 0.2, "MaxAttempts": 100}
        )
        return instance

    def _give_back(self) -> None:
        self._ec2.terminate([self._see()])

    def _upload(self) -> None:
        s3, where = self._client("s3"), {"Bucket": PLACE.bucket, "Key": "cloudtune/r/much"}
        begun = s3.create_multipart_upload(**where)["UploadId"]
        s3.upload_part(**where, UploadId=begun, PartNumber=1, Body=b"x")
        s3.abort_multipart_upload(**where, UploadId=begun)

    def give_back(self) -> None:
        """End what was launched, with every right."""
        self._root.gone(*self._launched)


@pytest.fixture(scope="module", autouse=True)
def made(account: Account) -> Iterator[None]:
    """What setup makes, made with the emulator's own key."""
    clients = Clients(endpoint_of(account.access))
    for step in to_make(clients, look(clients, "us-east-1", PLACE.types)):
        done(step)
    yield
    account.client("s3").delete_objects(
        Bucket=PLACE.bucket, Delete={"Objects": [{"Key": "cloudtune/r/x"}]}
    )


ON_INSTANCES = {"launch", "launch on spot", "read a console", "give back"}


def refusals(
    account: Account, document: Document, types: str, role: str, *, launching: bool = True
) -> dict[str, str]:
    """Return what fails with a policy, and in which words; `launching`, of instances too."""
    made = Everything(account, account.person("somebody", document), role)
    found = {}
    for name, call in made.calls(types).items():
        if name in ON_INSTANCES and not launching:
            continue
        try:
            call()
        except ClientError as error:
            found[name] = str(error)
        except IndexError:  # nothing was launched, as is told already
            continue
    made.give_back()
    return found


WHO = {
    "head": (policies.head(PLACE), "g4dn.xlarge", PLACE.node),
    "person": (policies.person(PLACE), "m7i.large", PLACE.head),
}

NEEDED_FOR: Mapping[str, set[str]] = {
    "ec2:RunInstances": {"launch", "launch on spot"},
    "ec2:CreateTags": {"launch", "launch on spot"},
    "iam:PassRole": {"launch", "launch on spot"},
    "ec2:DescribeInstances": {"see instances"},
    "ec2:DescribeAvailabilityZones": {"see zones"},
    "ec2:DescribeSpotPriceHistory": {"see spot prices"},
    "ec2:GetConsoleOutput": {"read a console"},
    "ec2:TerminateInstances": {"give back"},
    "s3:PutObject": {"write", "write much", "read"},  # what wasn't written can't be read
    "s3:AbortMultipartUpload": {"write much"},
    "s3:ListBucket": {"list"},
    "s3:GetObject": {"read"},
    "s3:DeleteObject": {"delete"},
}
NOT_EMULATED = {"ec2:GetSpotPlacementScores", "pricing:GetProducts"}


@pytest.mark.parametrize("who", WHO)
def test_what_setup_writes_is_enough_for_all_that_is_called(account: Account, who: str) -> None:
    document, types, role = WHO[who]
    assert refusals(account, dict(document), types, role) == {}


def rights() -> Iterator[tuple[str, str, str]]:
    """Yield every right of a head: its statement, action, and resource."""
    for statement in policies.head(PLACE)["Statement"]:
        given = statement["Action"]
        actions = [given] if isinstance(given, str) else given
        resources = statement["Resource"]
        for action in actions:
            for resource in [resources] if isinstance(resources, str) else resources:
                if action not in NOT_EMULATED:
                    yield statement["Sid"], action, resource


def without(document: Mapping[str, Any], sid: str, action: str, resource: str) -> Document:
    """Return a policy that lacks one right."""
    less = copy.deepcopy(dict(document))
    (statement,) = (each for each in less["Statement"] if each["Sid"] == sid)
    if isinstance(statement["Resource"], list):
        statement["Resource"].remove(resource)
    elif isinstance(statement["Action"], list):
        statement["Action"].remove(action)
    else:
        less["Statement"].remove(statement)
    return less


@pytest.mark.parametrize(("sid", "action", "resource"), list(rights()))
def test_each_right_is_needed_and_its_lack_is_told_in_awss_words(
    account: Account, sid: str, action: str, resource: str
) -> None:
    less = without(policies.head(PLACE), sid, action, resource)
    launching = bool(NEEDED_FOR[action] & ON_INSTANCES)
    found = refusals(account, less, "g4dn.xlarge", PLACE.node, launching=launching)
    spot_alone = resource.endswith(":spot-instances-request/*")
    wanted = {"launch on spot"} if spot_alone else set(NEEDED_FOR[action])
    if action == "s3:PutObject":
        found.setdefault("read", "NoSuchKey")
    if "launch" in wanted:  # nothing is there to be looked at or given back
        found = {name: text for name, text in found.items() if name != "give back"}
    assert set(found) == wanted
    for text in (text for name, text in found.items() if name != "read" or wanted == {"read"}):
        assert f"is not authorized to perform: {action}" in text
        assert "because no identity-based policy allows" in text
        assert ("AccessDenied" if action.startswith("s3:") else "UnauthorizedOperation") in text


def test_nobody_launches_other_types_ends_others_instances_or_leaves_the_region(
    account: Account,
) -> None:
    document = dict(policies.head(PLACE))
    found = refusals(account, document, "p3.8xlarge", PLACE.node)
    assert "ec2:RunInstances on resource: arn:aws:ec2:us-east-1" in found["launch"]
    root, client = account.client("ec2"), account.person("somebody", document)
    image = root.describe_images()["Images"][0]["ImageId"]
    theirs = root.run_instances(
        ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1, UserData=DRAIN
    )["Instances"][0]["InstanceId"]
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        client("ec2").terminate_instances(InstanceIds=[theirs])
    with pytest.raises(ClientError, match=r"iam:PassRole on resource: .*:role/admin"):
        client("ec2").run_instances(
            ImageId=image,
            InstanceType="g4dn.xlarge",
            MinCount=1,
            MaxCount=1,
            IamInstanceProfile={"Name": "admin"},
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": RUN_TAG, "Value": "r"}]}
            ],
        )
    with pytest.raises(ClientError, match="AccessDenied"):
        client("s3").get_object(Bucket="somebody-elses", Key="x")
    with pytest.raises(ClientError, match="AccessDenied"):
        client("iam").create_role(RoleName="x", AssumeRolePolicyDocument="{}")
    account.gone(theirs)


def test_who_sets_up_needs_the_two_documents_and_no_more(account: Account) -> None:
    elsewhere = Place(PLACE.account, "eu-west-1", ("g5.*",))
    client = account.person("maker", policies.person(elsewhere), policies.maker(elsewhere))
    keys = client("sts")._request_signer._credentials
    endpoint = Endpoint("eu-west-1", account.access.endpoint, keys.access_key, keys.secret_key)
    clients = Clients(endpoint)
    for step in to_make(clients, look(clients, "eu-west-1", elsewhere.types)):
        done(step)
    after = look(clients, "eu-west-1", elsewhere.types)
    assert list(to_make(clients, after)) == []
    assert after.unknown.keys() <= {f"quota {each}" for each in ("on-demand g",)} | set(
        after.unknown
    )
    for step in to_remove(clients, after, with_bucket=False):
        done(step)
    assert look(clients, "eu-west-1", elsewhere.types).group is None


def test_policies_are_read_as_iam_reads_them() -> None:
    def said(*statements: Document, **context: list[str]) -> str:
        asked = Asked("ec2:RunInstances", "arn:aws:ec2:r:1:instance/*", context)
        return verdict([{"Statement": list(statements)}], asked)

    allow: Document = {"Effect": "Allow", "Action": "ec2:Run*", "Resource": "*"}
    deny: Document = {"Effect": "Deny", "Action": "*", "Resource": "arn:aws:ec2:*:1:instance/*"}
    assert said() == "not allowed"
    assert said(allow) == "allowed"
    assert said(allow, deny) == said(deny, allow) == "denied"
    assert said({**allow, "Action": "EC2:runinstances"}) == "allowed"
    assert said({**allow, "Resource": "arn:aws:ec2:r:1:volume/*"}) == "not allowed"
    assert said({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}) == "allowed"

    def on(operator: str, wanted: object, given: list[str] | None) -> str:
        statement = {**allow, "Condition": {operator: {"ec2:instancetype": wanted}}}
        return said(statement, **({} if given is None else {"ec2:InstanceType": given}))

    assert on("StringLike", ["g4dn.*", "p3.*"], ["p3.8xlarge"]) == "allowed"
    assert on("StringLike", "g4dn.*", ["g5.xlarge"]) == "not allowed"
    assert on("StringEquals", "g5.xlarge", None) == "not allowed"
    assert on("StringEqualsIfExists", "g5.xlarge", None) == "allowed"
    assert on("StringNotEquals", "g5.xlarge", None) == "allowed"
    assert on("StringNotEquals", ["a", "b"], ["b"]) == "not allowed"
    assert on("Null", "false", ["x"]) == on("Null", "true", None) == "allowed"
    assert on("Null", "false", None) == on("Null", "true", ["x"]) == "not allowed"
    assert on("ForAllValues:StringEquals", ["a", "b"], ["a", "c"]) == "not allowed"
    assert on("ForAnyValue:StringEquals", ["a", "b"], ["a", "c"]) == "allowed"
    with pytest.raises(ValueError, match="IpAddress"):
        on("IpAddress", "10.0.0.0/8", ["10.0.0.1"])


def test_a_policy_can_be_printed_for_whoever_gives_rights() -> None:
    told = json.dumps(policies.person(PLACE))
    assert names.head("us-east-1") in told
    assert len(told) < 6144, "a managed policy's limit (IAM quotas, 2026-11)"
    inline = sum(len(json.dumps(each(PLACE)).replace(" ", "")) for each in (policies.head,))
    assert inline < 10240, "what a role's inline policies may come to"
