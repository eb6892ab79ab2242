"""The CloudFormation template of `cloudtune aws setup`, and the settings that `run` reads from it.

The template is the one description of what setup creates: an admin can read it
(`cloudtune aws template`) and deploy it as a stack named cloudtune.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.account import policies
from cloudtune.infra.aws.account.policies import PREFIX, STACK, Document, Place

# The tag of everything that setup creates.
TAG: Final = "cloudtune:setup"
# No upload of a run takes longer; an incomplete one bills until it is deleted.
UPLOAD_DAYS = 7
# Environments older than this are built again.
ENVIRONMENT_DAYS = 60

# What each resource of the template is for, by its logical id.
PURPOSES: Mapping[str, str] = {
    "Group": "security group: instances of a run reach each other, nothing else reaches them",
    "GroupRule": "its one rule: all traffic among its own members",
    "NodeRole": "role of instances that train: the bucket, named secrets and data, nothing else",
    "NodeProfile": "instance profile with that role",
    "HeadRole": "role of the instance that controls a run: it rents the others, and ends them",
    "HeadProfile": "instance profile with that role",
    "Bucket": (
        "checkpoints, logs and results; no public access; deletes incomplete uploads after "
        f"{UPLOAD_DAYS} days and environments after {ENVIRONMENT_DAYS}, and nothing else"
    ),
}

# Optional outputs, and their fields of the place.
_FIELDS = {"Boundary": "boundary", "RolePath": "path", "HeadType": "head_type", "Kms": "kms"}
# Those that are lists, separated by commas.
_LISTS = {
    "Secrets": "secrets",
    "Data": "data",
    "Storages": "storages",
    "OtherRoles": "other_roles",
}


@dataclass(frozen=True)
class Settings:
    """The settings of a stack, and the resources that runs use.

    `subnets` are ids by zone, empty in the default VPC. `storage` is the prefix in the bucket. Ids
    are "" if there is no stack yet.
    """

    place: Place
    vpc: str = ""
    subnets: Mapping[str, str] = field(default_factory=dict)
    security_group: str = ""
    instance_profile: str = ""
    storage: str = ""

    @classmethod
    def of_outputs(cls, place: Place, outputs: Mapping[str, str]) -> "Settings":
        """Return the settings that the outputs of a stack in a place hold; {} without a stack.

        Raises:
            CloudtuneError: the stack was changed by hand.
        """
        if not outputs:
            return cls(place)
        try:
            own: dict[str, Any] = {
                name: outputs[output] for output, name in _FIELDS.items() if output in outputs
            }
            tags = dict(json.loads(outputs["Tags"]))
            types = tuple(outputs["Types"].split(","))
            for output, name in _LISTS.items():
                own[name] = tuple(filter(None, outputs.get(output, "").split(",")))
            return cls(
                place=replace(place, types=types, tags=tags, **own),
                vpc=outputs["Vpc"],
                subnets=dict(json.loads(outputs["Subnets"])),
                security_group=outputs["SecurityGroup"],
                instance_profile=outputs["InstanceProfile"],
                storage=outputs["Storage"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CloudtuneError(
                f"an output of stack {STACK} is missing or malformed ({error}): deploy what "
                "`cloudtune aws template` prints; Subnets is JSON, ids by zone"
            ) from None


def template(place: Place, *, with_bucket: bool = True) -> dict[str, Any]:
    """Return the template of a region's stack.

    Its parameters are `Vpc`, an id, and `Subnets`, ids by zone as JSON. `with_bucket=False` is for
    a bucket that an earlier stack left behind.
    """
    tags = [{"Key": key, "Value": value} for key, value in {TAG: "1", **place.tags}.items()]
    resources: dict[str, Any] = {
        "Group": {
            "Type": "AWS::EC2::SecurityGroup",
            "Properties": {
                "GroupName": policies.GROUP,
                "GroupDescription": "Instances of cloudtune, among themselves",
                "VpcId": {"Ref": "Vpc"},
                "Tags": tags,
            },
        },
        "GroupRule": {
            "Type": "AWS::EC2::SecurityGroupIngress",
            "Properties": {
                "GroupId": {"Fn::GetAtt": ["Group", "GroupId"]},
                "IpProtocol": "-1",
                "SourceSecurityGroupId": {"Fn::GetAtt": ["Group", "GroupId"]},
                "Description": "its own members",
            },
        },
        **_role("Node", place, policies.node(place), tags),
        **_role("Head", place, policies.head(place), tags),
    }
    if with_bucket:
        resources["Bucket"] = _bucket(place, tags)
    outputs = {
        "Vpc": {"Ref": "Vpc"},
        "Subnets": {"Ref": "Subnets"},
        "Tags": json.dumps(place.tags),
        "Types": ",".join(place.types),
        **{
            output: ",".join(getattr(place, name))
            for output, name in _LISTS.items()
            if getattr(place, name)
        },
        "SecurityGroup": {"Fn::GetAtt": ["Group", "GroupId"]},
        "InstanceProfile": {"Ref": "NodeProfile"},
        "Storage": f"s3://{place.bucket}/{PREFIX}",
        **{
            output: getattr(place, name)
            for output, name in _FIELDS.items()
            if getattr(place, name) != getattr(Place, name)
        },
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"What cloudtune needs in {place.region}",
        "Parameters": {
            "Vpc": {"Type": "AWS::EC2::VPC::Id"},
            "Subnets": {"Type": "String", "Default": "{}"},
        },
        "Resources": resources,
        "Outputs": {name: {"Value": value} for name, value in outputs.items()},
    }


def managed_policy(name: str, document: Document) -> Document:
    """Return a template of one managed policy: larger than a user's inline policies may be."""
    properties = {"ManagedPolicyName": name, "PolicyDocument": document}
    policy = {"Type": "AWS::IAM::ManagedPolicy", "Properties": properties}
    return {"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"Policy": policy}}


def _role(kind: str, place: Place, document: Document, tags: object) -> dict[str, Any]:
    name = place.node if kind == "Node" else place.head
    path = {"Path": place.path} if place.path != "/" else {}
    role = {
        "RoleName": name,
        "Description": PURPOSES[f"{kind}Role"],
        "AssumeRolePolicyDocument": policies.TRUST,
        "Policies": [{"PolicyName": policies.POLICY, "PolicyDocument": document}],
        "Tags": tags,
        **path,
        **({"PermissionsBoundary": place.boundary} if place.boundary else {}),
    }
    profile = {"InstanceProfileName": name, "Roles": [{"Ref": f"{kind}Role"}], **path}
    return {
        f"{kind}Role": {"Type": "AWS::IAM::Role", "Properties": role},
        f"{kind}Profile": {"Type": "AWS::IAM::InstanceProfile", "Properties": profile},
    }


def _bucket(place: Place, tags: object) -> Document:
    incomplete_uploads = {
        "Id": PREFIX,
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UPLOAD_DAYS},
    }
    old_environments = {
        "Id": f"{PREFIX}-environments",
        "Status": "Enabled",
        "Prefix": f"{PREFIX}/environments/",
        "ExpirationInDays": ENVIRONMENT_DAYS,
    }
    properties: dict[str, Any] = {
        "BucketName": place.bucket,
        **({"BucketNamespace": "account-regional"} if place.in_own_namespace else {}),
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "IgnorePublicAcls": True,
            "BlockPublicPolicy": True,
            "RestrictPublicBuckets": True,
        },
        "LifecycleConfiguration": {"Rules": [incomplete_uploads, old_environments]},
        "Tags": tags,
    }
    if place.kms:
        by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": place.kms}
        # One data key for many objects, so that not every checkpoint costs a request to KMS.
        rule = {"ServerSideEncryptionByDefault": by_key, "BucketKeyEnabled": True}
        properties["BucketEncryption"] = {"ServerSideEncryptionConfiguration": [rule]}
    # Results outlive the stack, and a change of the bucket's name; a failed creation leaves no
    # bucket.
    return {
        "Type": "AWS::S3::Bucket",
        "DeletionPolicy": "RetainExceptOnCreate",
        "UpdateReplacePolicy": "Retain",
        "Properties": properties,
    }
