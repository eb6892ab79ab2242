"""What `cloudtune aws setup` would make, and makes; what `teardown` takes away.

Everything is found again by its name, so each step can be cut off at any point and done again: no
record of our own is needed to know what is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.account import names, policies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cloudtune.infra.aws.account.found import Clients, Found
    from cloudtune.infra.aws.account.policies import Document

_TAGS = [{"Key": names.TAG, "Value": "1"}]
_FOR_HEADS = "for the instance that carries a run: it rents the others, and ends them"
_FOR_NODES = "for instances that train: the bucket, and nothing else"
UPLOAD_DAYS, ENVIRONMENT_DAYS = 7, 60
_PER_DELETE = 1000


@dataclass(frozen=True)
class Step:
    """One thing to be made or taken away: what, why, and how."""

    what: str
    why: str
    do: Callable[[], object]


def to_make(clients: Clients, found: Found) -> Iterator[Step]:
    """Yield what is missing, in the order in which it can be made.

    Raises:
        CloudtuneError: there is no VPC to put anything into, or a role of that name is another's.
    """
    if found.vpc is None:
        raise CloudtuneError(
            f"{found.place.region} has no default VPC: name one (--vpc vpc-…), or make the default "
            "one (`aws ec2 create-default-vpc`)"
        )
    make = _Making(clients, found)
    if found.group is None:
        why = f"in {found.vpc}: instances of a run reach each other, nobody else reaches them"
        yield Step(f"security group {names.GROUP}", why, make.group)
    elif not found.open_within:
        why = "all traffic among its own members"
        yield Step(f"a rule of {names.GROUP} ({found.group})", why, lambda: make.rule(found.group))
    for name in found.place.roles:
        yield from _of_role(make, found, name)
    bucket = found.place.bucket
    if not found.bucket:
        why = "checkpoints, logs and results; no public access"
        yield Step(f"bucket {bucket}", why, make.bucket)
    if not found.cleans_up:
        why = (
            f"uploads that broke off go after {UPLOAD_DAYS} days, environments after "
            f"{ENVIRONMENT_DAYS}; nothing else is ever deleted by it"
        )
        yield Step(f"a rule of {bucket}", why, make.cleaning)
    if not found.spot_role:
        why = "AWS's own; an account can't rent spot instances without it"
        yield Step(f"the role of {names.SPOT_SERVICE}", why, make.spot_role)


def _of_role(make: _Making, found: Found, name: str) -> Iterator[Step]:
    there, is_head = found.roles[name], name == found.place.head
    if there.foreign:
        raise CloudtuneError(
            f"a role {name} is there that cloudtune hasn't made (it lacks the tag {names.TAG}): "
            "rename it, or tag it to have setup write its policy"
        )
    wanted = policies.head if is_head else policies.node
    what_for = _FOR_HEADS if is_head else _FOR_NODES
    if not there.exists:
        yield Step(f"role {name}", what_for, partial(make.role, name, what_for))
    if not found.may_as_written(name):
        word = "what it may do" if there.policy is None else "what it may do, as of this version"
        policy = wanted(found.place)
        yield Step(f"the policy of {name}", word, partial(make.policy, name, policy))
    if not there.profile:
        why = "what instances are launched with, to have the role"
        yield Step(f"instance profile {name}", why, partial(make.profile, name))
    if not there.holds:
        yield Step(f"{name} in its instance profile", "", partial(make.holding, name))


def to_remove(clients: Clients, found: Found, *, with_bucket: bool) -> Iterator[Step]:
    """Yield what is there of ours, in the order in which it can be taken away.

    The bucket stays where it holds anything, but for `with_bucket`. AWS's own role for spot stays.
    """
    take = _Taking(clients, found)
    if found.bucket and (with_bucket or take.is_bucket_empty()):
        why = "with everything in it" if with_bucket else "it is empty"
        yield Step(f"bucket {found.place.bucket}", why, take.bucket)
    for name in reversed(found.place.roles):
        there = found.roles[name]
        if there.foreign:
            continue
        if there.holds:
            yield Step(f"{name} in its instance profile", "", partial(take.holding, name))
        if there.profile:
            yield Step(f"instance profile {name}", "", partial(take.profile, name))
        if there.policy is not None:
            yield Step(f"the policy of {name}", "", partial(take.policy, name))
        if there.exists:
            yield Step(f"role {name}", "", partial(take.role, name))
    if found.group is not None:
        yield Step(f"security group {names.GROUP} ({found.group})", "", take.group)


def done(step: Step) -> None:
    """Carry a step out.

    Raises:
        CloudtuneError: AWS refused; what is missing, and that nothing is lost by it.
    """
    try:
        step.do()
    except (BotoCoreError, ClientError) as error:
        raise CloudtuneError(
            f"{step.what}: {error}. What was done so far stays; the same command goes on from here"
        ) from None


class _Making:
    def __init__(self, clients: Clients, found: Found) -> None:
        self._clients, self._found = clients, found

    def group(self) -> None:
        made = self._clients["ec2"].create_security_group(
            GroupName=names.GROUP,
            Description="Instances of cloudtune, among themselves",
            VpcId=self._found.vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": _TAGS}],
        )
        self.rule(made["GroupId"])

    def rule(self, group: str | None) -> None:
        pair = {"GroupId": group, "Description": "its own members"}
        self._clients["ec2"].authorize_security_group_ingress(
            GroupId=group, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [pair]}]
        )

    def role(self, name: str, what_for: str) -> None:
        self._clients["iam"].create_role(
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(policies.trust()),
            Description=what_for,
            Tags=_TAGS,
        )

    def policy(self, name: str, document: Document) -> None:
        self._clients["iam"].put_role_policy(
            RoleName=name, PolicyName=names.POLICY, PolicyDocument=json.dumps(document)
        )

    def profile(self, name: str) -> None:
        self._clients["iam"].create_instance_profile(InstanceProfileName=name, Tags=_TAGS)

    def holding(self, name: str) -> None:
        self._clients["iam"].add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)

    def bucket(self) -> None:
        s3, place = self._clients["s3"], self._found.place
        where = {} if place.region == "us-east-1" else {"LocationConstraint": place.region}
        more = {"CreateBucketConfiguration": where} if where else {}
        try:
            s3.create_bucket(Bucket=place.bucket, **more)
        except ClientError as error:
            if error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou":
                raise
        s3.put_public_access_block(
            Bucket=place.bucket,
            PublicAccessBlockConfiguration={
                "BlockPublicAcls": True,
                "IgnorePublicAcls": True,
                "BlockPublicPolicy": True,
                "RestrictPublicBuckets": True,
            },
        )
        s3.put_bucket_tagging(Bucket=place.bucket, Tagging={"TagSet": _TAGS})

    def cleaning(self) -> None:
        broken = {"DaysAfterInitiation": UPLOAD_DAYS}
        rules: list[dict[str, Any]] = [
            {
                "ID": names.PREFIX,
                "Status": "Enabled",
                "Filter": {"Prefix": ""},
                "AbortIncompleteMultipartUpload": broken,
            },
            {
                "ID": f"{names.PREFIX}-environments",
                "Status": "Enabled",
                "Filter": {"Prefix": f"{names.PREFIX}/environments/"},
                "Expiration": {"Days": ENVIRONMENT_DAYS},
            },
        ]
        self._clients["s3"].put_bucket_lifecycle_configuration(
            Bucket=self._found.place.bucket, LifecycleConfiguration={"Rules": rules}
        )

    def spot_role(self) -> None:
        self._clients["iam"].create_service_linked_role(AWSServiceName=names.SPOT_SERVICE)


class _Taking:
    def __init__(self, clients: Clients, found: Found) -> None:
        self._clients, self._found = clients, found

    def is_bucket_empty(self) -> bool:
        listed = self._clients["s3"].list_objects_v2(Bucket=self._found.place.bucket, MaxKeys=1)
        return not listed.get("KeyCount")

    def bucket(self) -> None:
        s3, bucket = self._clients["s3"], self._found.place.bucket
        while listed := s3.list_objects_v2(Bucket=bucket, MaxKeys=_PER_DELETE).get("Contents"):
            s3.delete_objects(
                Bucket=bucket, Delete={"Objects": [{"Key": each["Key"]} for each in listed]}
            )
        s3.delete_bucket(Bucket=bucket)

    def holding(self, name: str) -> None:
        self._clients["iam"].remove_role_from_instance_profile(
            InstanceProfileName=name, RoleName=name
        )

    def profile(self, name: str) -> None:
        self._clients["iam"].delete_instance_profile(InstanceProfileName=name)

    def policy(self, name: str) -> None:
        self._clients["iam"].delete_role_policy(RoleName=name, PolicyName=names.POLICY)

    def role(self, name: str) -> None:
        self._clients["iam"].delete_role(RoleName=name)

    def group(self) -> None:
        self._clients["ec2"].delete_security_group(GroupId=self._found.group)
