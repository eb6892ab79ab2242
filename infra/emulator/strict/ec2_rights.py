"""What a call to EC2 wants to do, for IAM: the actions, the resources, and the condition keys.

Tables from "Actions, resources, and condition keys for Amazon EC2" (Service Authorization
Reference) and "Required permissions for API actions", "IAM roles: PassRole" and "Spot Instances:
RunInstances" (EC2 user guide), as known to us: not opened here. An action that isn't in
`_RESOURCES` knows no resources: only a statement on "*" fits it, as for most of Describe*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from moto.core import DEFAULT_ACCOUNT_ID

from cloudtune.infra.emulator.strict.launches import Launch, direct_tags, launch_tags, numbered
from cloudtune.infra.emulator.strict.policies import Asked
from cloudtune.infra.emulator.strict.refusals import profile_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Context = dict[str, list[str]]

ACCOUNT = DEFAULT_ACCOUNT_ID


class Kind(NamedTuple):
    """Which of its resources an action names, by which parameter; "" where it makes a new one."""

    kind: str
    parameter: str


_RESOURCES: dict[str, tuple[Kind, ...]] = {
    "TerminateInstances": (Kind("instance", "InstanceId"),),
    "StopInstances": (Kind("instance", "InstanceId"),),
    "StartInstances": (Kind("instance", "InstanceId"),),
    "RebootInstances": (Kind("instance", "InstanceId"),),
    "GetConsoleOutput": (Kind("instance", "InstanceId"),),
    "ModifyInstanceAttribute": (Kind("instance", "InstanceId"),),
    "ModifyInstanceMetadataOptions": (Kind("instance", "InstanceId"),),
    "CreateSecurityGroup": (Kind("security-group", ""), Kind("vpc", "VpcId")),
    "DeleteSecurityGroup": (Kind("security-group", "GroupId"),),
    "AuthorizeSecurityGroupIngress": (Kind("security-group", "GroupId"),),
    "AuthorizeSecurityGroupEgress": (Kind("security-group", "GroupId"),),
    "RevokeSecurityGroupIngress": (Kind("security-group", "GroupId"),),
    "RevokeSecurityGroupEgress": (Kind("security-group", "GroupId"),),
    "CreateKeyPair": (Kind("key-pair", ""),),
    "DeleteKeyPair": (Kind("key-pair", "KeyName"),),
    "CreatePlacementGroup": (Kind("placement-group", ""),),
    "DeletePlacementGroup": (Kind("placement-group", "GroupName"),),
    "CreateVpcEndpoint": (Kind("vpc-endpoint", ""), Kind("vpc", "VpcId")),
    "DeleteVpcEndpoints": (Kind("vpc-endpoint", "VpcEndpointId"),),
}
_PREFIXES = {
    "i": "instance",
    "ami": "image",
    "sg": "security-group",
    "subnet": "subnet",
    "vol": "volume",
    "eni": "network-interface",
    "vpc": "vpc",
    "sir": "spot-instances-request",
    "vpce": "vpc-endpoint",
    "key": "key-pair",
}


def asked(region: str, parameters: Mapping[str, str], backend: Any) -> list[Asked]:
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

    def asked(self) -> Iterator[Asked]:
        if self.action == "RunInstances":
            yield from self._launch(Launch(self.parameters, self.backend))
        elif self.action in ("CreateTags", "DeleteTags"):
            for each in numbered(self.parameters, "ResourceId"):
                kind = _PREFIXES.get(each.rpartition("-")[0], "*")
                context = {**self._known(kind, each), **_tags_asked(direct_tags(self.parameters))}
                yield self._one(kind, each, context, f"ec2:{self.action}")
        elif self.action in _RESOURCES:
            yield from self._named()
        else:
            yield Asked(f"ec2:{self.action}", "*", self._region())

    def _named(self) -> Iterator[Asked]:
        tags = launch_tags(self.parameters)
        for kind, parameter in _RESOURCES[self.action]:
            names = numbered(self.parameters, parameter) if parameter else ["*"]
            for name in names:
                new = {} if parameter else _tags_asked(tags.get(kind, {}))
                yield self._one(kind, name, {**self._known(kind, name), **new})
        yield from self._tagged(tags)

    def _launch(self, launch: Launch) -> Iterator[Asked]:
        tags = launch_tags(self.parameters)
        for kind, name, context in self._launched(launch):
            yield self._one(kind, name, context)
        yield from self._tagged(tags)
        profile = profile_of(launch) if launch.profile else None
        for role in () if profile is None else profile.roles:
            context = {"iam:PassedToService": ["ec2.amazonaws.com"]}
            yield Asked("iam:PassRole", role.arn, {**self._region(), **context})

    def _launched(self, launch: Launch) -> Iterator[tuple[str, str, Context]]:
        """Give the resources that a launch touches: what is there, and what it makes (`*`)."""
        tags = launch_tags(self.parameters)
        zone = "" if launch.subnet is None else launch.subnet.availability_zone
        placed: Context = {"ec2:AvailabilityZone": [zone]} if zone else {}
        if launch.ami is not None:
            yield "image", launch.image, {}
        if launch.subnet is not None:
            yield "subnet", launch.subnet.id, self._known("subnet", launch.subnet.id)
        for group in launch.groups:
            yield "security-group", group, self._known("security-group", group)
        if launch.key:
            yield "key-pair", launch.key, {"ec2:KeyPairName": [launch.key]}
        if launch.placement_group:
            name = launch.placement_group
            yield "placement-group", name, {"ec2:PlacementGroupName": [name]}
        net = {} if launch.subnet is None else self._net(launch.subnet)
        yield "network-interface", "*", placed | net | _tags_asked(tags.get("network-interface"))
        yield "volume", "*", placed | self._volume() | _tags_asked(tags.get("volume"))
        yield "instance", "*", placed | self._instance(launch) | _tags_asked(tags.get("instance"))
        if launch.is_spot:
            yield "spot-instances-request", "*", _tags_asked(tags.get("spot-instances-request"))

    def _instance(self, launch: Launch) -> Context:
        profile = profile_of(launch) if launch.profile else None
        given = self.parameters
        context: Context = {
            "ec2:InstanceType": [launch.instance_type],
            "ec2:InstanceMarketType": ["spot" if launch.is_spot else "on-demand"],
            "ec2:EbsOptimized": [given.get("EbsOptimized", "false")],
            "ec2:Tenancy": [given.get("Placement.Tenancy", "default")],
            "ec2:RootDeviceType": ["ebs"],
            "ec2:MetadataHttpTokens": [given.get("MetadataOptions.HttpTokens", "optional")],
            "ec2:MetadataHttpEndpoint": [given.get("MetadataOptions.HttpEndpoint", "enabled")],
        }
        if profile is not None:
            context["ec2:InstanceProfile"] = [profile.arn]
        if hops := given.get("MetadataOptions.HttpPutResponseHopLimit"):
            context["ec2:MetadataHttpPutResponseHopLimit"] = [hops]
        return context

    def _volume(self) -> Context:
        given, disk = self.parameters, "BlockDeviceMapping.1.Ebs."
        return {
            "ec2:Encrypted": [given.get(f"{disk}Encrypted", "false")],
            "ec2:VolumeSize": [given.get(f"{disk}VolumeSize", "8")],
            "ec2:VolumeType": [given.get(f"{disk}VolumeType", "gp2")],
        }

    def _net(self, subnet: Any) -> Context:
        return {
            "ec2:Subnet": [self._arn("subnet", subnet.id)],
            "ec2:Vpc": [self._arn("vpc", subnet.vpc_id)],
        }

    def _tagged(self, tags: Mapping[str, Mapping[str, str]]) -> Iterator[Asked]:
        """Give the rights to tag what a call makes."""
        for kind, given in tags.items():
            context = {**_tags_asked(given), "ec2:CreateAction": [self.action]}
            yield self._one(kind, "*", context, "ec2:CreateTags")

    def _known(self, kind: str, name: str) -> Context:
        """Return what is known of a resource that is there: its tags, and where it is."""
        if name == "*":
            return {}
        tags = {
            str(each["key"]): str(each["value"])
            for each in self.backend.describe_tags(filters={"resource-id": [name]})
        }
        context: Context = {f"aws:ResourceTag/{key}": [value] for key, value in tags.items()}
        context |= {f"ec2:ResourceTag/{key}": [value] for key, value in tags.items()}
        return context | self._place(kind, name)

    def _place(self, kind: str, name: str) -> Context:
        if kind == "instance":
            found = self.backend.get_instance_by_id(name)
            if found is None:
                return {}
            zone = [found.placement.zone]
            return {"ec2:InstanceType": [found.instance_type], "ec2:AvailabilityZone": zone}
        if kind == "subnet":
            subnets = (by_id.get(name) for by_id in self.backend.subnets.values())
            subnet = next((each for each in subnets if each is not None), None)
            if subnet is None:
                return {}
            vpc = [self._arn("vpc", subnet.vpc_id)]
            zone = [subnet.availability_zone]
            return {"ec2:SubnetID": [name], "ec2:Vpc": vpc, "ec2:AvailabilityZone": zone}
        if kind == "security-group":
            groups = (by_id.get(name) for by_id in self.backend.groups.values())
            group = next((each for each in groups if each is not None), None)
            vpc = [] if group is None else [self._arn("vpc", group.vpc_id)]
            return {"ec2:SecurityGroupID": [name], **({"ec2:Vpc": vpc} if vpc else {})}
        return {}

    def _one(self, kind: str, name: str, context: Context, action: str = "") -> Asked:
        if kind == "image":
            context = {**self._image(name), **context}
        asked = action or f"ec2:{self.action}"
        return Asked(asked, self._arn(kind, name), {**self._region(), **context})

    def _image(self, name: str) -> Context:
        ami = self.backend.amis.get(name)
        if ami is None:
            return {}
        return {
            **self._known("image", name),
            "ec2:ImageID": [name],
            "ec2:ImageType": ["machine"],
            "ec2:Owner": [ami.owner_alias or ami.owner_id],
            "ec2:Public": [str(ami.is_public).lower()],
            "ec2:RootDeviceType": [ami.root_device_type],
        }

    def _arn(self, kind: str, name: str) -> str:
        account = "" if kind == "image" else ACCOUNT  # and so for snapshots, of which none is named
        return f"arn:aws:ec2:{self.region}:{account}:{kind}/{name}"

    def _region(self) -> Context:
        return {"ec2:Region": [self.region], "aws:RequestedRegion": [self.region]}


def _tags_asked(tags: Mapping[str, str] | None) -> Context:
    if not tags:
        return {}
    asked: Context = {f"aws:RequestTag/{key}": [value] for key, value in tags.items()}
    return asked | {"aws:TagKeys": list(tags)}
