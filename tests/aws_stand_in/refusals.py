"""What EC2 refuses of a RunInstances and moto takes: names, what doesn't fit together.

Codes: "Error codes for the Amazon EC2 API" (EC2 API reference). Messages: as people quote them
from real calls in public issues, 2026-11; those marked "ours" aren't EC2's own words.
"""

import re
from functools import lru_cache

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from cloudtune.infra.emulator.launch_form import invalid
from cloudtune.infra.emulator.requests import Ec2Error
from tests.aws_stand_in.launches import Launch


def check_names(launch: Launch) -> None:
    """Refuse a launch that names something that isn't there.

    Raises:
        Ec2Error: with EC2's code.
    """
    if not launch.image:
        raise Ec2Error("MissingParameter", "The request must contain the parameter ImageId")
    _check_id("AMIID", "ami-", launch.image)
    if launch.ami is None:
        image = launch.image
        raise Ec2Error("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    if launch.subnet_id:
        _check_id("SubnetID", "subnet-", launch.subnet_id)
        if launch.subnet is None:
            subnet = launch.subnet_id
            raise Ec2Error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
    for group in launch.group_ids:
        _check_id("GroupId", "sg-", group)
        if group not in launch.groups:
            raise Ec2Error("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
    if launch.key and launch.key not in launch.backend.key_pairs:
        raise Ec2Error("InvalidKeyPair.NotFound", f"The key pair '{launch.key}' does not exist")
    if launch.profile_name and launch.profile is None:
        raise invalid(
            f"Value ({launch.profile_name}) for parameter iamInstanceProfile.name is invalid. "
            "Invalid IAM Instance Profile name"
        )


def check_fit(launch: Launch) -> None:
    """Refuse what doesn't go together: zone and subnet, group and VPC, type, image and zone.

    Raises:
        Ec2Error: with EC2's code.
    """
    subnet = launch.subnet
    if subnet is None:
        raise Ec2Error(
            "VPCIdNotSpecified",
            "No default VPC for this user. GroupName is only supported for EC2-Classic and "
            "default VPC.",
        )
    if launch.names_its_network_twice:
        raise Ec2Error(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level subnet ID may not be specified on the same "
            "request",
        )
    if launch.named_zone not in ("", subnet.availability_zone):
        raise invalid(  # ours
            f"The subnet '{subnet.id}' is in the Availability Zone {subnet.availability_zone}, "
            f"and not in {launch.named_zone}"
        )
    for group in launch.groups.values():
        if group.vpc_id != subnet.vpc_id:
            raise Ec2Error(
                "InvalidParameter",
                f"Security group {group.id} and subnet {subnet.id} belong to different networks.",
            )
    _check_architecture(launch)
    _check_zone(launch)


def _check_architecture(launch: Launch) -> None:
    processor = INSTANCE_TYPES.get(launch.instance_type, {}).get("ProcessorInfo", {})
    supported = processor.get("SupportedArchitectures", [])
    of_image = launch.ami.architecture
    if supported and of_image not in supported:
        raise invalid(
            f"The architecture '{','.join(supported)}' of the specified instance type does not "
            f"match the architecture '{of_image}' of the specified AMI. Specify an instance type "
            "and an AMI that have matching architectures, and try again. You can use "
            "'describe-instance-types' or 'describe-images' to discover the architecture of the "
            "instance type or AMI."
        )


def _check_zone(launch: Launch) -> None:
    zones = _zones_by_type(launch.backend.region_name).get(launch.instance_type)
    if launch.zone and zones and launch.zone not in zones:
        raise Ec2Error(
            "Unsupported",
            f"Your requested instance type ({launch.instance_type}) is not supported in your "
            f"requested Availability Zone ({launch.zone}). Please retry your request by not "
            f"specifying an Availability Zone or choosing {', '.join(sorted(zones))}.",
        )


@lru_cache(maxsize=32)
def _zones_by_type(region: str) -> dict[str, list[str]]:
    """Return the zones of each type that moto knows of: a copy of AWS's own list."""
    zones: dict[str, list[str]] = {}
    for offer in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ()):
        zones.setdefault(offer["InstanceType"], []).append(offer["Location"])
    return zones


def _check_id(what: str, prefix: str, given: str) -> None:
    if not re.fullmatch(rf"{prefix}([0-9a-f]{{8}}|[0-9a-f]{{17}})", given):
        message = f'Invalid id: "{given}" (expecting "{prefix}...")'
        raise Ec2Error(f"Invalid{what}.Malformed", message)
