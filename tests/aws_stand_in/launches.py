"""What a RunInstances asks for, read from its parameters and looked up in moto's records."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends


@dataclass(frozen=True)
class Launch:
    """A RunInstances in a region whose records are moto's `backend`; "" is what it leaves out."""

    parameters: Mapping[str, str]
    backend: Any

    def _get(self, *names: str) -> str:
        return next((self.parameters[name] for name in names if self.parameters.get(name)), "")

    @property
    def image(self) -> str:
        return self._get("ImageId")

    @property
    def instance_type(self) -> str:
        """The type, or what EC2 takes if none is named."""
        return self._get("InstanceType") or "m1.small"

    @property
    def key(self) -> str:
        return self._get("KeyName")

    @property
    def placement_group(self) -> str:
        return self._get("Placement.GroupName")

    @property
    def capacity_reservation(self) -> str:
        specification = "CapacityReservationSpecification.CapacityReservationTarget"
        return self._get(f"{specification}.CapacityReservationId")

    @property
    def http_tokens(self) -> str:
        """Whether the metadata service wants IMDSv2's tokens: "optional" if nothing is said."""
        return self._get("MetadataOptions.HttpTokens") or "optional"

    @property
    def disk_key(self) -> str | None:
        """The key that encrypts the first disk; "" for AWS's own, None if it isn't encrypted."""
        disk = "BlockDeviceMapping.1.Ebs"
        is_encrypted = self._get(f"{disk}.Encrypted") == "true"
        return self._get(f"{disk}.KmsKeyId") if is_encrypted else None

    @property
    def is_spot(self) -> bool:
        return self._get("InstanceMarketOptions.MarketType") == "spot"

    @property
    def subnet_id(self) -> str:
        return self._get("SubnetId", "NetworkInterface.1.SubnetId")

    @property
    def names_its_network_twice(self) -> bool:
        """Whether it names network interfaces, and subnet or security groups besides them."""
        interfaces = any(name.startswith("NetworkInterface.") for name in self.parameters)
        own = list_parameters(self.parameters, "SecurityGroupId") or self._get("SubnetId")
        return interfaces and bool(own)

    @property
    def named_zone(self) -> str:
        return self._get("Placement.AvailabilityZone")

    @cached_property
    def subnet(self) -> Any:
        """Moto's subnet: the named one, else the default one of the zone, else None."""
        subnets = [subnet for by_id in self.backend.subnets.values() for subnet in by_id.values()]
        if self.subnet_id:
            return next((subnet for subnet in subnets if subnet.id == self.subnet_id), None)
        usual = [subnet for subnet in subnets if subnet.default_for_az in (True, "true")]
        zone = self.named_zone
        return next(
            (subnet for subnet in usual if not zone or subnet.availability_zone == zone), None
        )

    @property
    def zone(self) -> str:
        """The zone that it names itself or by its subnet; "" if it leaves that to EC2."""
        by_subnet = str(self.subnet.availability_zone) if self.subnet_id and self.subnet else ""
        return self.named_zone or by_subnet

    @property
    def group_ids(self) -> list[str]:
        names = ("SecurityGroupId", "NetworkInterface.1.SecurityGroupId")
        return next((ids for name in names if (ids := list_parameters(self.parameters, name))), [])

    @cached_property
    def groups(self) -> dict[str, Any]:
        """Moto's security groups of those ids that exist; the default group if none is named."""
        groups = [group for by_id in self.backend.groups.values() for group in by_id.values()]
        if self.group_ids:
            return {group.id: group for group in groups if group.id in self.group_ids}
        vpc = None if self.subnet is None else self.subnet.vpc_id
        return {
            group.id: group for group in groups if (group.name, group.vpc_id) == ("default", vpc)
        }

    @cached_property
    def ami(self) -> Any:
        """Moto's image; None if there is none."""
        return self.backend.amis.get(self.image)

    @property
    def profile_name(self) -> str:
        named = self._get("IamInstanceProfile.Name")
        return named or self._get("IamInstanceProfile.Arn").rpartition("/")[2]

    @cached_property
    def profile(self) -> Any:
        """Moto's instance profile of that name; None if there is none."""
        profiles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].instance_profiles.values()
        return next((profile for profile in profiles if profile.name == self.profile_name), None)


def list_parameters(parameters: Mapping[str, str], name: str) -> list[str]:
    """Return the values of a list among the parameters of a call, numbered or alone."""
    wanted = re.compile(rf"{re.escape(name)}(\.\d+)?")
    return [value for key, value in parameters.items() if wanted.fullmatch(key)]
