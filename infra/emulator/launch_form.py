"""Limits of RunInstances that apply to every account: what is too long, or too much.

Codes: "Error codes for the Amazon EC2 API" (EC2 API reference). Messages: as people quote them
from real calls in public issues (runs-on#9 for user data), 2026-11; those marked "ours" aren't
EC2's own words. Limits: RunInstances (EC2 API reference) for the token and the user data, "Tag your
Amazon EC2 resources" (user guide) for tags.
"""

import base64
import binascii
import re
from collections.abc import Mapping

from cloudtune.infra.emulator.requests import Ec2Error

# EC2's limits, by its API reference.
USER_DATA_BYTES = 16384
TOKEN_LETTERS = 64
TAG_KEY_LETTERS = 128
TAG_VALUE_LETTERS = 256
TAGS = 50
_TAG = re.compile(r"TagSpecification\.(\d+)\.Tag\.(\d+)\.Key")


def check_form(parameters: Mapping[str, str]) -> None:
    """Refuse a client token, tags or user data that are too long.

    Raises:
        Ec2Error: with EC2's code.
    """
    token = parameters.get("ClientToken", "")
    if len(token) > TOKEN_LETTERS or not token.isascii():
        raise invalid(  # ours
            f"Value ({token}) for parameter clientToken is invalid. It must be at most "
            f"{TOKEN_LETTERS} ASCII characters long."
        )
    for tags in launch_tags(parameters).values():
        _check_tags(tags)
    try:
        user_data = base64.b64decode(parameters.get("UserData", ""), validate=True)
    except binascii.Error:
        raise invalid("Invalid BASE64 encoding of user data.") from None
    if len(user_data) > USER_DATA_BYTES:
        raise invalid(f"User data is limited to {USER_DATA_BYTES} bytes")


def launch_tags(parameters: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the tags of a call's TagSpecifications, by kind of resource."""
    tags: dict[str, dict[str, str]] = {}
    for name, key in parameters.items():
        match = _TAG.fullmatch(name)
        if match is not None:
            kind = parameters.get(f"TagSpecification.{match[1]}.ResourceType", "")
            value = parameters.get(f"TagSpecification.{match[1]}.Tag.{match[2]}.Value", "")
            tags.setdefault(kind, {})[key] = value
    return tags


def invalid(message: str) -> Ec2Error:
    """Return the error for a parameter that EC2 doesn't accept."""
    return Ec2Error("InvalidParameterValue", message)


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > TAGS:
        raise Ec2Error("TagLimitExceeded", f"More than {TAGS} tags specified")  # ours
    for key, value in tags.items():
        if key.lower().startswith("aws:"):
            raise invalid("Tag keys starting with 'aws:' are reserved for internal use")
        if len(key) > TAG_KEY_LETTERS:
            raise invalid(f"Tag key exceeds the maximum length of {TAG_KEY_LETTERS} characters")
        if len(value) > TAG_VALUE_LETTERS:
            raise invalid(f"Tag value exceeds the maximum length of {TAG_VALUE_LETTERS} characters")
