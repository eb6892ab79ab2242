"""What an account has of that which cloudtune needs: asked for by name, and only read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.account import names, policies
from cloudtune.infra.aws.account.policies import Document, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudtune.infra.provider import Endpoint

_CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": 4}, connect_timeout=5, read_timeout=30
)
_ABSENT = {
    "404",
    "InvalidGroup.NotFound",
    "NoSuchBucket",
    "NoSuchEntity",
    "NoSuchLifecycleConfiguration",
    "NoSuchResourceException",
    "NoSuchTagSet",
    "ParameterNotFound",
}

QUOTAS: Mapping[str, tuple[str, str]] = {
    "on-demand g": ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    "spot g": ("L-3819A6DF", "All G and VT Spot Instance Requests"),
    "on-demand p": ("L-417A185B", "Running On-Demand P instances"),
    "spot p": ("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    "on-demand standard": (
        "L-1216C47A",
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    ),
}
"""Of vCPUs, by market and class: the code and the name that Service Quotas has for them (EC2 user
guide, EC2 instance type quotas); the codes are those of several public scripts of 2026."""


class Clients:
    """The services that are asked, made as they are needed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._made: dict[str, Any] = {}

    def __getitem__(self, service: str) -> Any:
        if service not in self._made:
            self._made[service] = boto3.client(
                service,  # type: ignore[call-overload]
                region_name=self._endpoint.region,
                endpoint_url=self._endpoint.url,
                aws_access_key_id=self._endpoint.key,
                aws_secret_access_key=self._endpoint.secret,
                config=_CONFIG,
            )
        return self._made[service]


@dataclass(frozen=True)
class Role:
    """A role of ours and its instance profile: whether they are there, and what it may do.

    `foreign`: one of that name is there that setup hasn't made.
    """

    exists: bool = False
    foreign: bool = False
    policy: Document | None = None
    profile: bool = False
    holds: bool = False


@dataclass(frozen=True)
class Found:
    """What there is. `vpc`, `group` and `image` are ids, None where there is none.

    `unknown` says of what couldn't be asked why. `quotas` are vCPUs.
    """

    place: Place
    who: str
    vpc: str | None = None
    subnets: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    open_within: bool = False
    open_to_others: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    bucket: bool = False
    cleans_up: bool = False
    image: str | None = None
    spot_role: bool = False
    quotas: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def may_as_written(self, role: str) -> bool:
        """Whether a role has the policy that setup would write today."""
        wanted = policies.head if role == self.place.head else policies.node
        return self.roles[role].policy == wanted(self.place)


def look(clients: Clients, region: str, types: tuple[str, ...], vpc: str | None = None) -> Found:
    """Return what an account has; `vpc` is the one to use, None the default one.

    Raises:
        CloudtuneError: nobody can be asked: no credentials, no network.
    """
    try:
        caller = clients["sts"].get_caller_identity()
    except (BotoCoreError, ClientError) as error:
        raise CloudtuneError(
            f"AWS can't be asked who this is: {error}. Give this machine credentials, as for the "
            "aws command (AWS_PROFILE, `aws configure`, `aws sso login`)"
        ) from None
    place = Place(caller["Account"], region, types)
    seen = _Looking(clients, place)
    network = vpc or seen("the VPC", seen.default_vpc)
    group = seen("the security group", lambda: seen.group(network)) if network else None
    rules = group or {}
    return Found(
        place=place,
        who=caller["Arn"],
        vpc=network,
        subnets=seen("subnets", lambda: seen.subnets(network)) or {} if network else {},
        group=rules.get("GroupId"),
        open_within=_lets_itself_in(rules),
        open_to_others=tuple(_others(rules)),
        roles={
            name: seen(f"role {name}", partial(seen.role, name)) or Role() for name in place.roles
        },
        bucket=bool(seen(f"bucket {place.bucket}", seen.has_bucket)),
        cleans_up=bool(seen("the bucket's rule", seen.cleans_up)),
        image=seen("the image", seen.image),
        spot_role=bool(seen("the spot role", seen.spot_role)),
        quotas={
            name: value
            for name, (code, _) in QUOTAS.items()
            if (value := seen(f"quota {name}", partial(seen.quota, code))) is not None
        },
        unknown=seen.unknown,
    )


@dataclass(frozen=True)
class Made:
    """What setup has made for experiments: fields of `cloud`, None for what isn't there; a storage.

    `storage` is "" where there is no bucket, `disk_gb` the size of the image's root disk, None
    where that isn't told.
    """

    cloud: Mapping[str, str | None]
    storage: str
    disk_gb: float | None = None


def made_for(endpoint: Endpoint) -> Made:
    """Return what setup has made in a region; nothing where nobody can be asked."""
    clients, region = Clients(endpoint), endpoint.region
    try:
        place = Place(clients["sts"].get_caller_identity()["Account"], region)
    except (BotoCoreError, ClientError):
        return Made({}, "")
    ask = _Looking(clients, place)
    vpc = ask("", ask.default_vpc)
    group = ask("", partial(ask.group, vpc)) or {} if vpc else {}
    profile = ask("", lambda: ask.role(place.node))
    cloud = {
        "image": ask("", ask.image),
        "security_group": group.get("GroupId"),
        "instance_profile": place.node if profile is not None and profile.holds else None,
    }
    storage = f"s3://{place.bucket}/{names.PREFIX}" if ask("", ask.has_bucket) else ""
    image = cloud["image"]
    disk = None if image is None else ask("", partial(ask.root_disk, image))
    return Made(cloud, storage, disk)


def quota(endpoint: Endpoint, name: str) -> float | None:
    """Return the vCPUs of a quota ("on-demand g"); None where nobody tells, or it isn't known."""
    if name not in QUOTAS:
        return None
    ask = _Looking(Clients(endpoint), Place("", endpoint.region))
    found: float | None = ask("", partial(ask.quota, QUOTAS[name][0]))
    return found


class _Looking:
    """Asks for one thing after the other; what isn't there is None, what can't be asked noted."""

    def __init__(self, clients: Clients, place: Place) -> None:
        self._clients, self._place = clients, place
        self.unknown: dict[str, str] = {}

    def __call__(self, what: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _ABSENT:
                self.unknown[what] = str(error)
        except BotoCoreError as error:
            self.unknown[what] = str(error)
        return None

    def default_vpc(self) -> str | None:
        wanted = [{"Name": "is-default", "Values": ["true"]}]
        found = self._clients["ec2"].describe_vpcs(Filters=wanted)["Vpcs"]
        return found[0]["VpcId"] if found else None

    def subnets(self, vpc: str) -> dict[str, str]:
        wanted = [{"Name": "vpc-id", "Values": [vpc]}]
        found = self._clients["ec2"].describe_subnets(Filters=wanted)["Subnets"]
        return {each["AvailabilityZone"]: each["SubnetId"] for each in found}

    def group(self, vpc: str) -> dict[str, Any] | None:
        wanted = [
            {"Name": "vpc-id", "Values": [vpc]},
            {"Name": "group-name", "Values": [names.GROUP]},
        ]
        found = self._clients["ec2"].describe_security_groups(Filters=wanted)["SecurityGroups"]
        return found[0] if found else None

    def role(self, name: str) -> Role:
        iam = self._clients["iam"]
        policy = None
        there = self("", lambda: iam.get_role(RoleName=name))
        if there is not None:
            kept = self("", lambda: iam.get_role_policy(RoleName=name, PolicyName=names.POLICY))
            policy = None if kept is None else _document(kept["PolicyDocument"])
        profile = self("", lambda: iam.get_instance_profile(InstanceProfileName=name))
        held = [] if profile is None else profile["InstanceProfile"]["Roles"]
        return Role(
            exists=there is not None,
            foreign=there is not None
            and names.TAG not in {tag["Key"] for tag in there["Role"].get("Tags", ())},
            policy=policy,
            profile=profile is not None,
            holds=name in {r["RoleName"] for r in held},
        )

    def has_bucket(self) -> bool:
        """Whether it is there and whole: its tag is the last thing that setup gives it."""
        tags = self._clients["s3"].get_bucket_tagging(Bucket=self._place.bucket)["TagSet"]
        return names.TAG in {each["Key"] for each in tags}

    def cleans_up(self) -> bool:
        s3 = self._clients["s3"]
        rules = s3.get_bucket_lifecycle_configuration(Bucket=self._place.bucket)["Rules"]
        return names.PREFIX in {rule.get("ID") for rule in rules}

    def image(self) -> str:
        found = self._clients["ssm"].get_parameter(Name=names.IMAGE_PARAMETER)
        return str(found["Parameter"]["Value"])

    def root_disk(self, image: str) -> float | None:
        """Return the size of an image's root disk, in GB."""
        (found,) = self._clients["ec2"].describe_images(ImageIds=[image])["Images"] or [{}]
        root = found.get("RootDeviceName")
        sizes = [
            each["Ebs"]["VolumeSize"]
            for each in found.get("BlockDeviceMappings", ())
            if each.get("DeviceName") == root and "VolumeSize" in each.get("Ebs", {})
        ]
        return float(sizes[0]) if sizes else None

    def spot_role(self) -> bool:
        path = f"/aws-service-role/{names.SPOT_SERVICE}/"
        return bool(self._clients["iam"].list_roles(PathPrefix=path)["Roles"])

    def quota(self, code: str) -> float:
        quotas = self._clients["service-quotas"]
        found = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
        return float(found["Quota"]["Value"])


def _document(policy: object) -> Document:
    """Return a policy as it was written; IAM gives it back quoted, boto3 mostly read."""
    return json.loads(unquote(policy)) if isinstance(policy, str) else policy  # type: ignore[return-value]


def _lets_itself_in(group: Mapping[str, Any]) -> bool:
    own = group.get("GroupId")
    return any(
        rule.get("IpProtocol") == "-1"
        and own in {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", ())}
        for rule in group.get("IpPermissions", ())
    )


def _others(group: Mapping[str, Any]) -> list[str]:
    """Return who else is let in: ranges of addresses, other groups."""
    own, found = group.get("GroupId"), []
    for rule in group.get("IpPermissions", ()):
        found += [each["CidrIp"] for each in rule.get("IpRanges", ())]
        found += [each["CidrIpv6"] for each in rule.get("Ipv6Ranges", ())]
        pairs = (each.get("GroupId", "") for each in rule.get("UserIdGroupPairs", ()))
        found += [each for each in pairs if each != own]
    return found
