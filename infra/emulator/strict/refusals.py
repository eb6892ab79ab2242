"""Launches that EC2 refuses and moto doesn't, in EC2's codes and words.

EC2 developer guide, "Error codes for the Amazon EC2 API"; limits of user data (16 KiB before it is
encoded), client tokens (64 ASCII letters) and tags (128 and 256 letters, 50 of a resource) as in
RunInstances in the API reference and in "Tag your Amazon EC2 resources" (read 2026-11).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from cloudtune.infra.emulator.requests import Ec2Error

_MOST_USER_DATA = 16 * 1024
_MOST_TOKEN, _MOST_KEY, _MOST_VALUE, _MOST_TAGS = 64, 128, 256, 50
_AMI = re.compile(r"ami-[0-9a-f]{8}([0-9a-f]{9})?")
_ARM = re.compile(r"(a1|t4g|[a-z]+\d+g[a-z]*|g5g)\.")
_LEAST_PRICE = 0.0001

Parameters = Mapping[str, str]


def check_launch(region: str, parameters: Parameters) -> None:
    """Pass if EC2 would take a launch.

    Raises:
        Ec2Error: it wouldn't.
    """
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    _check_size(parameters)
    _check_tags(parameters)
    _check_image(backend, parameters)
    _check_network(backend, parameters)
    _check_profile(parameters)
    _check_price(parameters)


def _check_size(given: Parameters) -> None:
    try:
        data = base64.b64decode(given.get("UserData", ""), validate=True)
    except binascii.Error:
        raise Ec2Error(
            "InvalidUserData.Malformed", "Invalid BASE64 encoding of user data."
        ) from None
    if len(data) > _MOST_USER_DATA:
        raise Ec2Error("InvalidParameterValue", "User data is limited to 16384 bytes")
    token = given.get("ClientToken", "")
    if len(token) > _MOST_TOKEN or not token.isascii():
        raise Ec2Error(
            "InvalidParameterValue", f"Invalid value '{token}' for parameter clientToken"
        )


def _check_tags(given: Parameters) -> None:
    keys = {name: value for name, value in given.items() if re.search(r"\.Tag\.\d+\.Key$", name)}
    for name, key in keys.items():
        value = given.get(f"{name.removesuffix('Key')}Value", "")
        if len(key) > _MOST_KEY or not key:
            raise Ec2Error(
                "InvalidParameterValue", f"Tag key exceeds the maximum length: {key[:40]}"
            )
        if len(value) > _MOST_VALUE:
            raise Ec2Error(
                "InvalidParameterValue", f"Tag value exceeds the maximum length of 256: {key}"
            )
        if key.lower().startswith("aws:"):
            raise Ec2Error(
                "InvalidParameterValue",
                "Tag keys starting with 'aws:' are reserved for internal use",
            )
    if len(set(keys.values())) > _MOST_TAGS:
        raise Ec2Error("TagLimitExceeded", "The maximum number of tags for a resource is 50")


def _check_image(backend: Any, given: Parameters) -> None:
    image, kind = given.get("ImageId", ""), given.get("InstanceType", "")
    if not image:
        raise Ec2Error("MissingParameter", "The request must contain the parameter ImageId")
    if not _AMI.fullmatch(image):
        raise Ec2Error("InvalidAMIID.Malformed", f'Invalid id: "{image}" (expecting "ami-...")')
    known = backend.amis.get(image)
    if known is None:
        raise Ec2Error("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    its = known.architecture or "x86_64"
    wanted = "arm64" if _ARM.match(kind) else "x86_64"
    if (its == "arm64") != (wanted == "arm64"):
        raise Ec2Error(
            "InvalidParameterValue",
            f"The architecture '{wanted}' of the specified instance type does not match the "
            f"architecture '{its}' of the specified AMI.",
        )


def _check_network(backend: Any, given: Parameters) -> None:
    subnet_id, zone = given.get("SubnetId"), given.get("Placement.AvailabilityZone")
    vpc = next(
        (each.id for each in backend.vpcs.values() if str(each.is_default).lower() == "true"), None
    )
    if subnet_id is not None:
        subnet = next(
            (zones[subnet_id] for zones in backend.subnets.values() if subnet_id in zones), None
        )
        if subnet is None:
            raise Ec2Error(
                "InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist"
            )
        if zone is not None and subnet.availability_zone != zone:
            raise Ec2Error(
                "InvalidParameterCombination",
                f"The availability zone '{zone}' is not that of subnet '{subnet_id}', "
                f"'{subnet.availability_zone}'",
            )
        vpc = subnet.vpc_id
    names = (value for name, value in given.items() if re.fullmatch(r"SecurityGroupId\.\d+", name))
    for name in names:
        group = backend.get_security_group_from_id(name)
        if group is None:
            raise Ec2Error("InvalidGroup.NotFound", f"The security group '{name}' does not exist")
        if vpc is not None and group.vpc_id != vpc:
            raise Ec2Error(
                "InvalidGroup.NotFound",
                f"The security group '{name}' does not exist in VPC '{vpc}'",
            )


def _check_profile(given: Parameters) -> None:
    name = given.get("IamInstanceProfile.Name")
    profiles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].instance_profiles.values()
    if name is not None and name not in {each.name for each in profiles}:
        raise Ec2Error(
            "InvalidParameterValue",
            f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM "
            "Instance Profile name",
        )


def _check_price(given: Parameters) -> None:
    told = given.get("InstanceMarketOptions.SpotOptions.MaxPrice")
    if told is None:
        return
    try:
        price = float(told)
    except ValueError:
        price = 0.0
    if price < _LEAST_PRICE:
        raise Ec2Error(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {told} is lower than the minimum required Spot request "
            "fulfillment price.",
        )


CHECKS: Mapping[str, Callable[[str, Parameters], None]] = {"RunInstances": check_launch}
"""By action, what a strict emulator asks before it passes a call on."""
