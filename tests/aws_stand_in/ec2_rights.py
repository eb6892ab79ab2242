"""What a call to EC2 wants to do, for IAM: the actions, the resources, and the condition keys.

From "Actions, resources, and condition keys for Amazon EC2" (Service Authorization Reference) and
"Required permissions for API actions", "IAM roles: PassRole" and "Spot Instances: RunInstances"
(EC2 user guide), as known to us. Here are the actions that cloudtune calls and the condition keys
of its policies; an action that isn't in `_RESOURCES` has no resources, so that only a statement on
"*" fits it, as for most of Describe*.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID

from cloudtune.infra.emulator.launch_form import launch_tags
from tests.aws_stand_in.launches import Launch, list_parameters
from tests.aws_stand_in.policies import Asked

Context = dict[str, list[str]]

_RESOURCES = {
    "TerminateInstances": [("instance", "InstanceId")],
    "GetConsoleOutput": [("instance", "InstanceId")],
    "CreateSecurityGroup": [("security-group", ""), ("vpc", "VpcId")],
    "DeleteSecurityGroup": [("security-group", "GroupId")],
    "AuthorizeSecurityGroupIngress": [("security-group", "GroupId")],
    "RevokeSecurityGroupIngress": [("security-group", "GroupId")],
}
"""The kinds of resources that an action names, and by which parameter; "" makes a new one."""
_KINDS = {"i": "instance", "sg": "security-group", "vol": "volume", "eni": "network-interface"}
"""By the beginning of the id."""


def list_wishes(region: str, parameters: Mapping[str, str], backend: Any) -> list[Asked]:
    """Return everything that a call wants to do; all of it must be allowed.

    The context lacks who asks: that is the same for all.
    """
    return list(_Call(region, parameters, backend).asked())


class _Call:
    def __init__(self, region: str, parameters: Mapping[str, str], backend: Any) -> None:
        self.region = region
        self.parameters = parameters
        self.backend = backend
        self.action = parameters.get("Action", "")
        self.tags = launch_tags(parameters)

    def asked(self) -> Iterator[Asked]:
        if self.action == "RunInstances":
            yield from self._launch(Launch(self.parameters, self.backend))
        elif self.action == "CreateTags":
            for name in list_parameters(self.parameters, "ResourceId"):
                kind = _KINDS.get(name.rpartition("-")[0], "*")
                yield self._one(kind, name, _requested_tags(self._direct_tags()))
        elif self.action in _RESOURCES:
            for kind, parameter in _RESOURCES[self.action]:
                if not parameter:
                    yield self._one(kind, "*", _requested_tags(self.tags.get(kind)))
                for name in list_parameters(self.parameters, parameter) if parameter else ():
                    yield self._one(kind, name, self._known(kind, name))
        else:
            yield Asked(f"ec2:{self.action}", "*", self._region())
        for kind, tags in self.tags.items():  # the rights to tag what the call makes
            context = {**_requested_tags(tags), "ec2:CreateAction": [self.action]}
            yield self._one(kind, "*", context, "ec2:CreateTags")

    def _launch(self, launch: Launch) -> Iterator[Asked]:
        """Give the resources that a launch touches: existing ones, and those it makes (`*`)."""
        yield self._one("image", launch.image, {})
        if launch.subnet is not None:
            yield self._one("subnet", launch.subnet.id, self._known("subnet", launch.subnet.id))
        for group in launch.groups:
            yield self._one("security-group", group, self._known("security-group", group))
        named = ("key-pair", launch.key), ("placement-group", launch.placement_group)
        for kind, name in (*named, ("capacity-reservation", launch.capacity_reservation)):
            if name:
                yield self._one(kind, name, {})
        of_instance = {
            "ec2:InstanceType": [launch.instance_type],
            "ec2:InstanceMarketType": ["spot" if launch.is_spot else "on-demand"],
            "ec2:MetadataHttpTokens": [launch.http_tokens],
        }
        spot = ["spot-instances-request"] if launch.is_spot else []
        for kind in ("network-interface", "volume", "instance", *spot):
            context = of_instance if kind == "instance" else {}
            if kind == "volume":
                context = {"ec2:Encrypted": ["false" if launch.disk_key is None else "true"]}
            yield self._one(kind, "*", context | _requested_tags(self.tags.get(kind)))
        if launch.disk_key:
            for action in ("DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncryptFrom"):
                yield Asked(f"kms:{action}", launch.disk_key, self._region())
            for_ec2 = {**self._region(), "kms:GrantIsForAWSResource": ["true"]}
            yield Asked("kms:CreateGrant", launch.disk_key, for_ec2)
        for role in () if launch.profile is None else launch.profile.roles:
            context = {**self._region(), "iam:PassedToService": ["ec2.amazonaws.com"]}
            yield Asked("iam:PassRole", role.arn, context)

    def _direct_tags(self) -> dict[str, str]:
        return {
            key: self.parameters.get(f"{name.removesuffix('Key')}Value", "")
            for name, key in self.parameters.items()
            if re.fullmatch(r"Tag\.\d+\.Key", name)
        }

    def _known(self, kind: str, name: str) -> Context:
        """Return the condition keys of an existing resource: its tags, and an instance's type."""
        tags = self.backend.describe_tags(filters={"resource-id": [name]})
        context: Context = {}
        for tag in tags:
            context[f"aws:ResourceTag/{tag['key']}"] = [str(tag["value"])]
            context[f"ec2:ResourceTag/{tag['key']}"] = [str(tag["value"])]
        instance = self.backend.get_instance_by_id(name) if kind == "instance" else None
        if instance is not None:
            context["ec2:InstanceType"] = [instance.instance_type]
        return context

    def _one(self, kind: str, name: str, context: Context, action: str = "") -> Asked:
        account = "" if kind == "image" else DEFAULT_ACCOUNT_ID
        arn = f"arn:aws:ec2:{self.region}:{account}:{kind}/{name}"
        return Asked(action or f"ec2:{self.action}", arn, {**self._region(), **context})

    def _region(self) -> Context:
        return {"ec2:Region": [self.region], "aws:RequestedRegion": [self.region]}


def _requested_tags(tags: Mapping[str, str] | None) -> Context:
    if not tags:
        return {}
    context: Context = {f"aws:RequestTag/{key}": [value] for key, value in tags.items()}
    return context | {"aws:TagKeys": list(tags)}
