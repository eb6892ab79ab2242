"""What a RunInstances asks for, read from its parameters and looked up in moto's records."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_TAG = re.compile(r"TagSpecification\.(\d+)\.Tag\.(\d+)\.Key")


@dataclass(frozen=True)
class Launch:
    """A RunInstances in a region whose records are moto's `backend`; "" is what it leaves out."""

    parameters: Mapping[str, str]
    backend: Any

    def _get(self, *names: str) -> str:
        return next((self.parameters[name] for name in names if self.parameters.get(name)), "")

    @property
    def image(self) -> str:
        """The AMI's id."""
        return self._get("ImageId")

    @property
    def instance_type(self) -> str:
        """The type, as EC2 takes it where none is named."""
        return self._get("InstanceType") or "m1.small"

    @property
    def token(self) -> str:
        """The client token."""
        return self._get("ClientToken")

    @property
    def key(self) -> str:
        """The name of a key pair."""
        return self._get("KeyName")

    @property
    def placement_group(self) -> str:
        """The name of a placement group."""
        return self._get("Placement.GroupName")

    @property
    def is_spot(self) -> bool:
        """Whether it is for the spot market."""
        return self._get("InstanceMarketOptions.MarketType") == "spot"

    @property
    def max_price(self) -> str:
        """The highest price an hour, as it is written."""
        return self._get("InstanceMarketOptions.SpotOptions.MaxPrice")

    @property
    def subnet_id(self) -> str:
        """The id of the subnet that it names."""
        return self._get("SubnetId", "NetworkInterface.1.SubnetId")

    @cached_property
    def subnet(self) -> Any:
        """Moto's subnet: the one named, else the default one of the zone, else None."""
        subnets = [each for by_zone in self.backend.subnets.values() for each in by_zone.values()]
        if self.subnet_id:
            return next((each for each in subnets if each.id == self.subnet_id), None)
        zone = self._get("Placement.AvailabilityZone")
        usual = [each for each in subnets if each.default_for_az in (True, "true")]
        return next((each for each in usual if not zone or each.availability_zone == zone), None)

    @property
    def zone(self) -> str:
        """The zone that it names, by itself or by its subnet; "" where it leaves that to EC2."""
        named = self._get("Placement.AvailabilityZone")
        return named or (str(self.subnet.availability_zone) if self._names_subnet() else "")

    def _names_subnet(self) -> bool:
        return bool(self.subnet_id) and self.subnet is not None

    @property
    def group_ids(self) -> list[str]:
        """The ids of the security groups that it names."""
        return _numbered(self.parameters, "SecurityGroupId") or _numbered(
            self.parameters, "NetworkInterface.1.SecurityGroupId"
        )

    @cached_property
    def groups(self) -> dict[str, Any]:
        """Moto's security groups of those ids, without what isn't there; the default one else."""
        known = {
            group.id: group for by_id in self.backend.groups.values() for group in by_id.values()
        }
        if self.group_ids:
            return {each: known[each] for each in self.group_ids if each in known}
        vpc = None if self.subnet is None else self.subnet.vpc_id
        usual = [each for each in known.values() if (each.name, each.vpc_id) == ("default", vpc)]
        return {each.id: each for each in usual}

    @cached_property
    def ami(self) -> Any:
        """Moto's image; None where there is none."""
        return self.backend.amis.get(self.image)

    @property
    def profile(self) -> str:
        """The name of the instance profile that it names."""
        named = self._get("IamInstanceProfile.Name")
        return named or self._get("IamInstanceProfile.Arn").rpartition("/")[2]

    @property
    def user_data(self) -> bytes:
        """The user data, decoded.

        Raises:
            ValueError: it isn't in base64.
        """
        try:
            return base64.b64decode(self._get("UserData"), validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None

    def tags(self, kind: str) -> dict[str, str]:
        """Return the tags that a kind of resource gets as it is launched."""
        return launch_tags(self.parameters).get(kind, {})


def launch_tags(parameters: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the tags of the TagSpecifications of a call, by kind of resource."""
    found: dict[str, dict[str, str]] = {}
    for name, key in parameters.items():
        match = _TAG.fullmatch(name)
        if match is not None:
            kind = parameters.get(f"TagSpecification.{match[1]}.ResourceType", "")
            value = parameters.get(f"TagSpecification.{match[1]}.Tag.{match[2]}.Value", "")
            found.setdefault(kind, {})[key] = value
    return found


def direct_tags(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a CreateTags or a DeleteTags."""
    return {
        key: parameters.get(f"{name.removesuffix('Key')}Value", "")
        for name, key in parameters.items()
        if re.fullmatch(r"Tag\.\d+\.Key", name)
    }


def _numbered(parameters: Mapping[str, str], name: str) -> list[str]:
    return [value for key, value in parameters.items() if re.fullmatch(rf"{name}\.\d+", key)]


def numbered(parameters: Mapping[str, str], name: str) -> list[str]:
    """Return the values of a list among the parameters of a call, numbered or alone."""
    alone = [parameters[name]] if name in parameters else []
    return alone + _numbered(parameters, name)
