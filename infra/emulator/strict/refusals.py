"""What EC2 refuses of a RunInstances and moto takes: W17 of our audit.

Codes: "Error codes for the Amazon EC2 API" (EC2 API reference). Sentences: as people quote them
from real calls in public issues (runs-on#9 for user data, and the like), 2026-11; those marked
"ours" aren't known word by word. Limits: RunInstances (EC2 API reference) for the token and the
user data, "Tag your Amazon EC2 resources" (user guide) for tags.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.iam.models import iam_backends

from cloudtune.infra.aws import pricing
from cloudtune.infra.emulator.requests import Ec2Error
from cloudtune.infra.emulator.strict.launches import launch_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.infra.emulator.strict.launches import Launch

USER_DATA_BYTES = 16384
TOKEN_LETTERS = 64
TAG_KEY_LETTERS = 128
TAG_VALUE_LETTERS = 256
TAGS = 50
_AMI = re.compile(r"ami-([0-9a-f]{8}|[0-9a-f]{17})")
_SUBNET = re.compile(r"subnet-([0-9a-f]{8}|[0-9a-f]{17})")
_GROUP = re.compile(r"sg-([0-9a-f]{8}|[0-9a-f]{17})")
_PRICE = re.compile(r"\d*\.?\d+")


def check_form(launch: Launch) -> None:
    """Refuse what no EC2 takes, whatever there is: a token, tags or user data that are too long.

    Raises:
        Ec2Error: with EC2's code.
    """
    if len(launch.token) > TOKEN_LETTERS or not launch.token.isascii():
        raise _invalid(  # ours
            f"Value ({launch.token}) for parameter clientToken is invalid. It must be at most "
            f"{TOKEN_LETTERS} ASCII characters long."
        )
    check_tags(launch.parameters)
    try:
        size = len(launch.user_data)
    except ValueError:
        raise _invalid("Invalid BASE64 encoding of user data.") from None
    if size > USER_DATA_BYTES:
        raise _invalid(f"User data is limited to {USER_DATA_BYTES} bytes")


def check_tags(parameters: Mapping[str, str]) -> None:
    """Refuse tags at launch that are too long, too many or AWS's own.

    Raises:
        Ec2Error: with EC2's code.
    """
    for tags in launch_tags(parameters).values():
        if len(tags) > TAGS:
            raise Ec2Error("TagLimitExceeded", f"More than {TAGS} tags specified")  # ours
        for key, value in tags.items():
            if key.lower().startswith("aws:"):
                raise _invalid("Tag keys starting with 'aws:' are reserved for internal use")
            if len(key) > TAG_KEY_LETTERS:
                limit = TAG_KEY_LETTERS
                raise _invalid(f"Tag key exceeds the maximum length of {limit} characters")
            if len(value) > TAG_VALUE_LETTERS:
                limit = TAG_VALUE_LETTERS
                raise _invalid(f"Tag value exceeds the maximum length of {limit} characters")


def check_names(launch: Launch) -> None:
    """Refuse what names something that isn't there.

    Raises:
        Ec2Error: with EC2's code.
    """
    if not launch.image:
        raise Ec2Error("MissingParameter", "The request must contain the parameter ImageId")
    _well_formed("AMIID", _AMI, launch.image, "ami-")
    if launch.ami is None:
        image = launch.image
        raise Ec2Error("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    if launch.subnet_id:
        _well_formed("SubnetID", _SUBNET, launch.subnet_id, "subnet-")
        if launch.subnet is None:
            subnet = launch.subnet_id
            raise Ec2Error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
    for group in launch.group_ids:
        _well_formed("GroupId", _GROUP, group, "sg-")
        if group not in launch.groups:
            raise Ec2Error("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
    if launch.key and launch.key not in launch.backend.key_pairs:
        raise Ec2Error("InvalidKeyPair.NotFound", f"The key pair '{launch.key}' does not exist")
    if launch.profile and profile_of(launch) is None:
        raise _invalid(
            f"Value ({launch.profile}) for parameter iamInstanceProfile.name is invalid. Invalid "
            "IAM Instance Profile name"
        )


def check_fit(launch: Launch) -> None:
    """Refuse what doesn't go together: zone and subnet, group and VPC, type, image and zone.

    Raises:
        Ec2Error: with EC2's code.
    """
    if launch.subnet is None:
        raise Ec2Error(
            "VPCIdNotSpecified",
            "No default VPC for this user. GroupName is only supported for EC2-Classic and "
            "default VPC.",
        )
    named, subnet = launch.parameters.get("Placement.AvailabilityZone"), launch.subnet
    if launch.subnet_id and named and named != subnet.availability_zone:
        raise _invalid(  # ours
            f"The subnet '{subnet.id}' is in the Availability Zone {subnet.availability_zone}, "
            f"and not in {named}"
        )
    for group in launch.groups.values():
        if group.vpc_id != subnet.vpc_id:
            raise Ec2Error(
                "InvalidParameter",
                f"Security group {group.id} and subnet {subnet.id} belong to different networks.",
            )
    _check_architecture(launch)
    _check_zone(launch)


def check_price(launch: Launch) -> None:
    """Refuse a highest price below the spot price, and what is no price.

    Raises:
        Ec2Error: with EC2's code.
    """
    if not launch.is_spot or not launch.max_price:
        return
    if not _PRICE.fullmatch(launch.max_price):
        raise _invalid(f"Invalid value '{launch.max_price}' for price.")  # ours
    least = spot_price(launch.instance_type)
    if least is not None and float(launch.max_price) < least:
        raise Ec2Error(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {launch.max_price} is lower than the minimum required "
            f"Spot request fulfillment price of {least:g}.",
        )


def spot_price(instance_type: str) -> float | None:
    """Return what an hour on the spot market costs: our table's price, the same in each zone."""
    found = (each for each in pricing.listings() if each.instance_type.name == instance_type)
    return next((each.price("spot") for each in found), None)


def profile_of(launch: Launch) -> Any:
    """Return moto's instance profile that a launch names; None where there is none."""
    profiles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].instance_profiles.values()
    return next((each for each in profiles if each.name == launch.profile), None)


def architectures(instance_type: str) -> list[str]:
    """Return what a type's cores can be: `x86_64`, `arm64`; [] where moto doesn't know it."""
    known = INSTANCE_TYPES.get(instance_type, {})
    return list(known.get("ProcessorInfo", {}).get("SupportedArchitectures", ()))


def _check_architecture(launch: Launch) -> None:
    ours, theirs = architectures(launch.instance_type), launch.ami.architecture
    if ours and theirs not in ours:
        raise _invalid(
            f"The architecture '{','.join(ours)}' of the specified instance type does not match "
            f"the architecture '{theirs}' of the specified AMI. Specify an instance type and an "
            "AMI that have matching architectures, and try again. You can use "
            "'describe-instance-types' or 'describe-images' to discover the architecture of the "
            "instance type or AMI."
        )


def _check_zone(launch: Launch) -> None:
    zones = _offered(launch.backend.region_name).get(launch.instance_type)
    if launch.zone and zones and launch.zone not in zones:
        raise Ec2Error(
            "Unsupported",
            f"Your requested instance type ({launch.instance_type}) is not supported in your "
            f"requested Availability Zone ({launch.zone}). Please retry your request by not "
            f"specifying an Availability Zone or choosing {', '.join(zones)}.",
        )


@lru_cache(maxsize=32)
def _offered(region: str) -> dict[str, list[str]]:
    """Return the zones of each type that moto knows of: a copy of AWS's own list."""
    found: dict[str, list[str]] = {}
    for offer in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ()):
        found.setdefault(offer["InstanceType"], []).append(offer["Location"])
    return {each: sorted(zones) for each, zones in found.items()}


def _well_formed(what: str, pattern: re.Pattern[str], given: str, begins: str) -> None:
    if not pattern.fullmatch(given):
        message = f'Invalid id: "{given}" (expecting "{begins}...")'
        raise Ec2Error(f"Invalid{what}.Malformed", message)


def _invalid(message: str) -> Ec2Error:
    return Ec2Error("InvalidParameterValue", message)
