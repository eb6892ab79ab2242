"""IAM policies for people, heads and other instances, with least privilege.

Actions, resource types and condition keys are those of the Service Authorization Reference (Amazon
EC2, S3, IAM, CloudFormation, Systems Manager, Price List, Service Quotas), written from memory:
the pages could not be opened here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from cloudtune.experiment.variables import PARAMETER_STORE, SECRETS_MANAGER
from cloudtune.infra.aws.pricing import HEAD_TYPE, SECOND_HEAD_TYPE
from cloudtune.infra.environments.index import CERTIFICATES
from cloudtune.infra.provider import RUN_TAG

Document = Mapping[str, Any]

STACK: Final = "cloudtune"
POLICY: Final = "cloudtune"
GROUP: Final = "cloudtune"
PREFIX: Final = "cloudtune"
SPOT_SERVICE: Final = "spot.amazonaws.com"
# AWS's documents of Systems Manager by which a person's command and a terminal run.
EXEC_DOCUMENT: Final = "AWS-RunShellScript"
SHELL_DOCUMENT: Final = "AWS-StartInteractiveCommand"
# The files of heads and people in a run's folder `head` (`infra.heads.store`, a layer above).
HEAD_FILES: Final = (
    *("boot.log", "order.json", "parcel.tar.gz", "remote.json", "state.json", "stop"),
    "variables",
    "record/*",
)

# Regions without account namespaces for buckets ("Namespaces for general purpose buckets", S3 user
# guide, 2026-11).
_SHARED_NAMESPACE_ONLY = ("me-central-1", "me-south-1")
_VERSION = "2012-10-17"
_LAUNCHED_FROM = (
    "capacity-reservation",
    "key-pair",
    "network-interface",
    "placement-group",
    "security-group",
    "spot-instances-request",
    "subnet",
    "volume",
)


@dataclass(frozen=True)
class Place:
    """An account and a region, and the names of setup's resources there.

    `types` are patterns of the instance types that runs may rent, `path` is that of the roles,
    `boundary` the ARN of their permissions boundary ("" without). `tags` go onto everything that
    has any, instances and volumes included. `head_type` is the only type of heads, "" for the usual
    two; `kms` is the ARN of the key that encrypts the bucket and the root disks, "" for AWS's own.
    Roles belong to an account and their rights to a region, so each region has its own roles.
    `secrets` are those that instances may read, such as "ssm:/team/token"; `data` the addresses in
    S3 below which instances and heads may read, `storages` those below which runs may keep what
    they keep. `other_roles` are ARNs of roles that heads may give to instances besides its own.
    The bucket's name is one that S3 keeps for the account, unless `shared_namespace`: set-ups up to
    0.2.0, whose buckets stay, have names that another account could have taken.
    """

    account: str
    region: str
    types: tuple[str, ...] = ("*",)
    path: str = "/"
    head_type: str = ""
    kms: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    boundary: str = ""
    shared_namespace: bool = False
    secrets: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    storages: tuple[str, ...] = ()
    other_roles: tuple[str, ...] = ()

    @property
    def partition(self) -> str:
        """The part of AWS that the region belongs to, as its ARNs name it."""
        return find_partition(self.region)

    @property
    def head_types(self) -> tuple[str, ...]:
        return (self.head_type,) if self.head_type else (HEAD_TYPE, SECOND_HEAD_TYPE)

    @property
    def in_own_namespace(self) -> bool:
        """Whether the bucket has a name that S3 reserves for the account."""
        return not self.shared_namespace and self.region not in _SHARED_NAMESPACE_ONLY

    @property
    def bucket(self) -> str:
        name = f"cloudtune-{self.account}-{self.region}"
        return f"{name}-an" if self.in_own_namespace else name

    @property
    def buckets(self) -> list[str]:
        """The names of its bucket, and of the one of a set-up before 0.3."""
        return sorted({self.bucket, replace(self, shared_namespace=True).bucket})

    @property
    def head(self) -> str:
        """The role of heads, and of their instance profile."""
        return head_role(self.region)

    @property
    def node(self) -> str:
        """The role of other instances, and of their instance profile."""
        return node_role(self.region)

    @property
    def roles(self) -> tuple[str, str]:
        return self.node, self.head

    def ec2(self, resource: str) -> str:
        """Return the ARN of all resources of a kind in the region."""
        return f"arn:{self.partition}:ec2:{self.region}:{self.account}:{resource}/*"

    def iam(self, kind: str, name: str) -> str:
        """Return the ARN of one of the roles, or of an instance profile."""
        return f"arn:{self.partition}:iam::{self.account}:{kind}{self.path}{name}"

    def secret_arns(self, store: str) -> list[str]:
        """Return the ARNs of the secrets in a store that instances may read."""
        names = [secret.partition(":")[2] for secret in self.secrets if secret.startswith(store)]
        if store == PARAMETER_STORE:
            return [
                f"arn:{self.partition}:ssm:{self.region}:{self.account}:parameter/{name.lstrip('/')}"
                for name in names
            ]
        # AWS adds six characters of its own to each name.
        where = f"arn:{self.partition}:secretsmanager:{self.region}:{self.account}:secret"
        return [f"{where}:{name}-??????" for name in names]


@cache
@cache
def find_partition(region: str) -> str:
    """Return a region's partition: "aws-us-gov", "aws-cn", "aws-eusc" …, or the usual "aws"."""
    import botocore.session  # noqa: PLC0415  plans don't wait for it
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    try:
        return str(botocore.session.Session().get_partition_for_region(region))
    except BotoCoreError:  # a region that is newer than this botocore
        return "aws"


def head_role(region: str) -> str:
    """Return the name of the role of a region's heads."""
    return f"cloudtune-head-{region}"


def node_role(region: str) -> str:
    """Return the name of the role of a region's other instances."""
    return f"cloudtune-node-{region}"


# The trust policy of both roles: EC2 may assume them for its instances.
TRUST: Document = {
    "Version": _VERSION,
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def node(place: Place) -> Document:
    """Return the rights of instances that train: the bucket, its secrets, and nothing else.

    They run other people's code. It may neither read nor write the code, orders and records of
    runs, nor write environments: later heads run those as root. A role knows no run, so that
    checkpoints of all runs can be read and written.
    """
    folders = [
        f"arn:{place.partition}:s3:::{place.bucket}/{PREFIX}",
        *(_to_arn(place, it) for it in place.storages),
    ]
    writing = ["s3:DeleteObject", "s3:PutObject"]
    heads = [f"{folder}/*/head/{name}" for folder in folders for name in HEAD_FILES]
    names = ("environments/*", "data/*", f"*/head/{CERTIFICATES}")
    shared = [f"{folder}/{name}" for folder in folders for name in names]
    denied = [
        _deny("LeaveHeadsAlone", ["s3:GetObject", *writing], heads),
        _deny("LeaveEnvironmentsAndDataAsTheyAre", writing, shared),
    ]
    own = _bucket(place, [place.bucket])
    return _document(own, _read_secrets(place), _read_data(place), _allow_entry(place), denied)


def head(place: Place) -> Document:
    """Return the rights of a head: rent the types, tagged; end what is tagged; and the bucket."""
    return _document(
        _see(place),
        _launch(place, place.types, place.node, place.other_roles),
        _terminate(place),
        _bucket(place, [place.bucket]),
        _read_data(place),
        _allow_entry(place),
    )


def person(place: Place) -> Document:
    """Return the rights to plan, run by a head, watch and clean up."""
    see_setup = _allow(
        "SeeWhatSetupMade",
        [
            "cloudformation:DescribeStacks",
            "cloudformation:GetTemplate",
            "ec2:DescribeImages",
            "ec2:DescribeRegions",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeVpcs",
            "iam:GetInstanceProfile",
            "iam:GetRolePolicy",
            "iam:ListRoles",
            "s3:GetBucketTagging",
            "s3:GetEncryptionConfiguration",
            "servicequotas:GetServiceQuota",
            "servicequotas:ListServiceQuotas",
            "ssm:GetParameter",
        ],
    )
    return _document(
        _see(place),
        [see_setup],
        _see_secrets(place),
        _launch(place, place.head_types, place.head),
        _terminate(place),
        _enter(place),
        _bucket(place, place.buckets),
    )


def maker(place: Place) -> Document:
    """Return the rights that `cloudtune aws setup` and `teardown` need besides `person`.

    CloudFormation creates the resources with the rights of its caller.
    """
    kinds = ("role", "instance-profile")
    roles = [place.iam(kind, name) for kind in kinds for name in place.roles]
    buckets = [f"arn:{place.partition}:s3:::{name}" for name in place.buckets]
    stack = f"arn:{place.partition}:cloudformation:{place.region}:{place.account}:stack/{STACK}/*"
    group = [place.ec2("security-group"), place.ec2("vpc")]
    spot_role = f"arn:{place.partition}:iam::{place.account}:role/aws-service-role/{SPOT_SERVICE}/*"
    return _document(
        [
            _allow("ChangeStack", _actions("cloudformation", _STACK_ACTIONS), stack),
            _allow("MakeGroup", _actions("ec2", _GROUP_ACTIONS), group),
            _allow("MakeRoles", _actions("iam", _ROLE_ACTIONS), roles),
            _allow("AllowSpot", ["iam:CreateServiceLinkedRole"], spot_role),
            _allow("MakeBucket", _actions("s3", _BUCKET_ACTIONS), buckets),
        ]
    )


_STACK_ACTIONS = (
    "CreateChangeSet DeleteChangeSet DeleteStack DescribeChangeSet DescribeStackEvents "
    "ExecuteChangeSet"
)
_GROUP_ACTIONS = (
    "AuthorizeSecurityGroupIngress CreateSecurityGroup CreateTags DeleteSecurityGroup DeleteTags "
    "RevokeSecurityGroupIngress"
)
_ROLE_ACTIONS = (
    "AddRoleToInstanceProfile CreateInstanceProfile CreateRole DeleteInstanceProfile DeleteRole "
    "DeleteRolePolicy GetRole ListAttachedRolePolicies ListInstanceProfilesForRole "
    "ListRolePolicies PassRole PutRolePermissionsBoundary PutRolePolicy "
    "RemoveRoleFromInstanceProfile TagRole UntagRole UpdateAssumeRolePolicy UpdateRole"
)
_BUCKET_ACTIONS = (
    "CreateBucket DeleteBucket GetBucketPublicAccessBlock GetLifecycleConfiguration "
    "PutBucketPublicAccessBlock PutBucketTagging PutEncryptionConfiguration "
    "PutLifecycleConfiguration"
)


# The rights to read and write objects encrypted by a key ("Protecting data with SSE-KMS", S3 user
# guide); the parts of an upload are read again.
_OF_KEY = ("kms:Decrypt", "kms:GenerateDataKey")


def _actions(service: str, actions: str) -> list[str]:
    return [f"{service}:{action}" for action in actions.split()]


def _document(*statements: Sequence[Document]) -> Document:
    return {"Version": _VERSION, "Statement": [one for several in statements for one in several]}


def _allow(
    sid: str,
    actions: Sequence[str],
    resource: str | Sequence[str] = "*",
    condition: Mapping[str, Mapping[str, Any]] | None = None,
) -> Document:
    listed: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": resource,
    }
    return listed if condition is None else {**listed, "Condition": condition}


def _deny(sid: str, actions: Sequence[str], resources: Sequence[str]) -> Document:
    return {"Sid": sid, "Effect": "Deny", "Action": actions, "Resource": resources}


# The condition that an instance has the tag of a run.
_OURS = {"Null": {f"aws:ResourceTag/{RUN_TAG}": "false"}}


def _see(place: Place) -> list[Document]:
    see = _actions(
        "ec2",
        "DescribeAvailabilityZones DescribeInstances DescribeRouteTables DescribeSpotPriceHistory "
        "DescribeSubnets DescribeVpcEndpoints",
    )
    in_region = {"StringEquals": {"aws:RequestedRegion": place.region}}
    return [
        _allow("See", see, condition=in_region),
        _allow("SeePrices", ["pricing:GetProducts"]),
        _allow("SeeConsoles", ["ec2:GetConsoleOutput"], place.ec2("instance"), _OURS),
    ]


def _launch(
    place: Place, types: Sequence[str], role: str, other_roles: Sequence[str] = ()
) -> list[Document]:
    tagged: dict[str, dict[str, Any]] = {
        "Null": {f"aws:RequestTag/{RUN_TAG}": "false"},
        "StringLike": {"ec2:InstanceType": list(types)},
    }
    used = [
        f"arn:{place.partition}:ec2:{place.region}::image/*",
        *(place.ec2(resource) for resource in _LAUNCHED_FROM),
    ]
    at_launch = {"StringEquals": {"ec2:CreateAction": "RunInstances"}}
    for_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    created = [place.ec2("instance"), place.ec2("volume")]
    own_role = place.iam("role", role)
    roles = [own_role, *other_roles] if other_roles else own_role
    allowed = [
        _allow("LaunchTagged", ["ec2:RunInstances"], place.ec2("instance"), tagged),
        _allow("LaunchFromThese", ["ec2:RunInstances"], used),
        _allow("TagAtLaunch", ["ec2:CreateTags"], created, at_launch),
        _allow("GiveInstancesTheirRole", ["iam:PassRole"], roles, for_ec2),
    ]
    if place.kms:
        # From "Amazon EBS encryption: permissions for IAM users" (EBS user guide): EC2 gets a
        # grant.
        encrypt = _actions("kms", "DescribeKey GenerateDataKeyWithoutPlaintext ReEncrypt*")
        for_aws = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
        allowed += [
            _allow("EncryptDisks", encrypt, place.kms),
            _allow("LetEc2EncryptDisks", ["kms:CreateGrant"], place.kms, for_aws),
        ]
    return allowed


def _terminate(place: Place) -> list[Document]:
    return [_allow("GiveBackOurs", ["ec2:TerminateInstances"], place.ec2("instance"), _OURS)]


def _read_secrets(place: Place) -> list[Document]:
    rights = {
        "ReadParameters": ("ssm:GetParameter", place.secret_arns(PARAMETER_STORE)),
        "ReadSecrets": ("secretsmanager:GetSecretValue", place.secret_arns(SECRETS_MANAGER)),
    }
    return [_allow(sid, [action], arns) for sid, (action, arns) in rights.items() if arns]


def _allow_entry(place: Place) -> list[Document]:
    """Return the rights of an instance's agent to take commands of Systems Manager.

    From "Verify or add instance permissions for Session Manager" (Systems Manager user guide), as
    known to us; none of them can be limited to a resource.
    """
    channels = "CreateControlChannel CreateDataChannel OpenControlChannel OpenDataChannel"
    messages = "AcknowledgeMessage DeleteMessage FailMessage GetEndpoint GetMessages SendReply"
    actions = [
        "ssm:UpdateInstanceInformation",
        *_actions("ssmmessages", channels),
        *_actions("ec2messages", messages),
    ]
    return [_allow("BeEntered", actions, condition=_in_region(place))]


def _in_region(place: Place) -> Document:
    return {"StringEquals": {"aws:RequestedRegion": place.region}}


def _enter(place: Place) -> list[Document]:
    """Return the rights of a person to enter instances of runs, by two documents of AWS's own."""
    tagged = {"StringLike": {f"ssm:resourceTag/{RUN_TAG}": "*"}}
    documents = f"arn:{place.partition}:ssm:{place.region}::document"
    return [
        _allow("EnterOurs", _actions("ssm", _ENTERING), place.ec2("instance"), tagged),
        _allow("SendCommands", ["ssm:SendCommand"], f"{documents}/{EXEC_DOCUMENT}"),
        _allow("OpenTerminals", ["ssm:StartSession"], f"{documents}/{SHELL_DOCUMENT}"),
        _allow("ReadAnswers", ["ssm:GetCommandInvocation"]),
        # An interrupted one; AWS can't limit this to a resource.
        _allow("CancelCommands", ["ssm:CancelCommand"], condition=_in_region(place)),
    ]


_ENTERING = "SendCommand StartSession"


def _see_secrets(place: Place) -> list[Document]:
    arns = place.secret_arns(SECRETS_MANAGER)
    return [_allow("SeeSecrets", ["secretsmanager:DescribeSecret"], arns)] if arns else []


def _read_data(place: Place) -> list[Document]:
    """Return the rights to read below the addresses of data, and nothing beside them."""
    named = [address.removeprefix("s3://").split("/", 1) for address in place.data]
    if not named:
        return []
    paths = [(bucket, "/".join(keys)) for bucket, *keys in named]
    objects = [f"arn:{place.partition}:s3:::{'/'.join(path)}/*" for path in named]
    whole = sorted({f"arn:{place.partition}:s3:::{bucket}" for bucket, key in paths if not key})
    parts = sorted({f"arn:{place.partition}:s3:::{bucket}" for bucket, key in paths if key})
    below = {"StringLike": {"s3:prefix": [f"{key}/*" for _, key in paths if key]}}
    return [
        _allow("ReadData", ["s3:GetObject"], objects),
        *([_allow("ListData", ["s3:ListBucket"], whole)] if whole else ()),
        *([_allow("ListDataBelow", ["s3:ListBucket"], parts, below)] if parts else ()),
    ]


def _to_arn(place: Place, address: str) -> str:
    return f"arn:{place.partition}:s3:::{address.removeprefix('s3://')}"


def _bucket(place: Place, names: Sequence[str]) -> list[Document]:
    """Return the rights to keep things in the bucket of a place, and in its other storages."""
    buckets = [f"arn:{place.partition}:s3:::{name}" for name in names]
    objects = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    others = [_to_arn(place, address) for address in place.storages]
    # Who may not list a whole bucket isn't told that an object is missing.
    listed = sorted({other.partition("/")[0] for other in others})
    # A name in the shared namespace could be another account's.
    own = {"StringEquals": {"s3:ResourceAccount": place.account}}
    return [
        _allow("Keep", objects, [f"{bucket}/*" for bucket in buckets], own),
        _allow("List", ["s3:ListBucket"], buckets, own),
        *([_allow("KeepElsewhere", objects, [f"{it}/*" for it in others])] if others else ()),
        *([_allow("ListElsewhere", ["s3:ListBucket"], listed)] if others else ()),
        *([_allow("ReadEncrypted", _OF_KEY, place.kms)] if place.kms else ()),
    ]
