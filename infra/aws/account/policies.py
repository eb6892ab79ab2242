"""Who may do what, as `cloudtune aws setup` writes it: as little as the work can be done with.

Actions, resource types and condition keys are those of the Service Authorization Reference (Amazon
EC2, S3, IAM, Systems Manager, Price List, Service Quotas), as known to us: not opened here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudtune.infra.aws.account import names
from cloudtune.infra.aws.pricing import HEAD_TYPE
from cloudtune.infra.provider import RUN_TAG

Document = Mapping[str, Any]

_VERSION = "2012-10-17"
_LAUNCHED_FROM = (
    "network-interface",
    "security-group",
    "spot-instances-request",
    "subnet",
    "volume",
)


@dataclass(frozen=True)
class Place:
    """Whose account, and where: the ids that policies name. `types` are patterns of types."""

    account: str
    region: str
    types: tuple[str, ...] = ("*",)

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return names.bucket(self.account, self.region)

    @property
    def head(self) -> str:
        """The role of heads."""
        return names.head(self.region)

    @property
    def node(self) -> str:
        """The role of other instances."""
        return names.node(self.region)

    @property
    def roles(self) -> tuple[str, str]:
        """Both."""
        return self.node, self.head

    def ec2(self, resource: str) -> str:
        """Return the ARN of everything of a kind in the region."""
        return f"arn:aws:ec2:{self.region}:{self.account}:{resource}/*"

    def role(self, name: str) -> str:
        """Return the ARN of a role."""
        return f"arn:aws:iam::{self.account}:role/{name}"


def trust() -> Document:
    """Return who may take a role of ours: EC2, for its instances."""
    who = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}}
    return {"Version": _VERSION, "Statement": [{**who, "Action": "sts:AssumeRole"}]}


def node(place: Place) -> Document:
    """Return what instances that train may do: read and write the bucket, and nothing else."""
    return _document(_bucket(place))


def head(place: Place) -> Document:
    """Return what a head may do: rent the types, tagged; end what is tagged; and the bucket."""
    return _document(
        [
            *_sees(place),
            *_launches(place, place.types, place.node),
            *_gives_back(place),
            *_bucket(place),
        ]
    )


def types_of(document: Document) -> tuple[str, ...]:
    """Return the patterns of types that a policy lets be launched; none where it names none."""
    for statement in document.get("Statement", ()):
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("ec2:InstanceType", ())
        if wanted:
            return (wanted,) if isinstance(wanted, str) else tuple(wanted)
    return ()


def person(place: Place) -> Document:
    """Return what a person needs to plan, to run by a head, to look on and to clean up."""
    setup = {
        "Sid": "SeeWhatSetupMade",
        "Effect": "Allow",
        "Action": [
            "ec2:DescribeImages",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "ec2:DescribeVpcs",
            "iam:GetInstanceProfile",
            "iam:GetRole",
            "iam:GetRolePolicy",
            "iam:ListRoles",
            "s3:GetBucketTagging",
            "s3:GetLifecycleConfiguration",
            "servicequotas:GetServiceQuota",
            "ssm:GetParameter",
        ],
        "Resource": "*",
    }
    return _document(
        [
            *_sees(place),
            setup,
            *_launches(place, (HEAD_TYPE,), place.head),
            *_gives_back(place),
            *_bucket(place),
        ]
    )


def maker(place: Place) -> Document:
    """Return what a person needs besides, once, for `cloudtune aws setup` and `teardown`."""
    profiles = [f"arn:aws:iam::{place.account}:instance-profile/{n}" for n in place.roles]
    roles = [place.role(name) for name in place.roles]
    spot = f"arn:aws:iam::{place.account}:role/aws-service-role/{names.SPOT_SERVICE}/*"
    return _document(
        [
            {
                "Sid": "MakeGroup",
                "Effect": "Allow",
                "Action": [
                    "ec2:AuthorizeSecurityGroupIngress",
                    "ec2:CreateSecurityGroup",
                    "ec2:DeleteSecurityGroup",
                ],
                "Resource": [place.ec2("security-group"), place.ec2("vpc")],
            },
            {
                "Sid": "TagGroup",
                "Effect": "Allow",
                "Action": "ec2:CreateTags",
                "Resource": place.ec2("security-group"),
                "Condition": {"StringEquals": {"ec2:CreateAction": "CreateSecurityGroup"}},
            },
            {
                "Sid": "MakeRoles",
                "Effect": "Allow",
                "Action": [
                    "iam:AddRoleToInstanceProfile",
                    "iam:CreateInstanceProfile",
                    "iam:CreateRole",
                    "iam:DeleteInstanceProfile",
                    "iam:DeleteRole",
                    "iam:DeleteRolePolicy",
                    "iam:PassRole",
                    "iam:PutRolePolicy",
                    "iam:RemoveRoleFromInstanceProfile",
                    "iam:TagInstanceProfile",
                    "iam:TagRole",
                ],
                "Resource": [*roles, *profiles],
            },
            {
                "Sid": "AllowSpot",
                "Effect": "Allow",
                "Action": "iam:CreateServiceLinkedRole",
                "Resource": spot,
            },
            {
                "Sid": "MakeBucket",
                "Effect": "Allow",
                "Action": [
                    "s3:CreateBucket",
                    "s3:DeleteBucket",
                    "s3:PutBucketPublicAccessBlock",
                    "s3:PutBucketTagging",
                    "s3:PutLifecycleConfiguration",
                ],
                "Resource": f"arn:aws:s3:::{place.bucket}",
            },
        ]
    )


def _document(statements: Sequence[Document]) -> Document:
    return {"Version": _VERSION, "Statement": list(statements)}


def _sees(place: Place) -> list[Document]:
    return [
        {
            "Sid": "See",
            "Effect": "Allow",
            "Action": [
                "ec2:DescribeAvailabilityZones",
                "ec2:DescribeInstances",
                "ec2:DescribeSpotPriceHistory",
                "ec2:GetSpotPlacementScores",
            ],
            "Resource": "*",
            "Condition": {"StringEquals": {"aws:RequestedRegion": place.region}},
        },
        {
            "Sid": "SeePrices",
            "Effect": "Allow",
            "Action": "pricing:GetProducts",
            "Resource": "*",
        },
        {
            "Sid": "SeeConsoles",
            "Effect": "Allow",
            "Action": "ec2:GetConsoleOutput",
            "Resource": place.ec2("instance"),
            "Condition": {"Null": {f"aws:ResourceTag/{RUN_TAG}": "false"}},
        },
    ]


def _launches(place: Place, types: Sequence[str], role: str) -> list[Document]:
    image = f"arn:aws:ec2:{place.region}::image/*"
    return [
        {
            "Sid": "LaunchTagged",
            "Effect": "Allow",
            "Action": "ec2:RunInstances",
            "Resource": place.ec2("instance"),
            "Condition": {
                "Null": {f"aws:RequestTag/{RUN_TAG}": "false"},
                "StringLike": {"ec2:InstanceType": list(types)},
            },
        },
        {
            "Sid": "LaunchFromThese",
            "Effect": "Allow",
            "Action": "ec2:RunInstances",
            "Resource": [image, *(place.ec2(each) for each in _LAUNCHED_FROM)],
        },
        {
            "Sid": "TagAtLaunch",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": place.ec2("instance"),
            "Condition": {"StringEquals": {"ec2:CreateAction": "RunInstances"}},
        },
        {
            "Sid": "GiveInstancesTheirRole",
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": place.role(role),
            "Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        },
    ]


def _gives_back(place: Place) -> list[Document]:
    return [
        {
            "Sid": "GiveBackOurs",
            "Effect": "Allow",
            "Action": "ec2:TerminateInstances",
            "Resource": place.ec2("instance"),
            "Condition": {"Null": {f"aws:ResourceTag/{RUN_TAG}": "false"}},
        }
    ]


def _bucket(place: Place) -> list[Document]:
    bucket = f"arn:aws:s3:::{place.bucket}"
    return [
        {
            "Sid": "Keep",
            "Effect": "Allow",
            "Action": [
                "s3:AbortMultipartUpload",
                "s3:DeleteObject",
                "s3:GetObject",
                "s3:PutObject",
            ],
            "Resource": f"{bucket}/*",
        },
        {
            "Sid": "List",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket,
        },
    ]
