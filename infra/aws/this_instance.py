"""The EC2 instance that this process runs on, if any, and whether it can control a run."""

from collections.abc import Iterator
from dataclasses import dataclass

from cloudtune.experiment.cloud import CloudSettings as Settings
from cloudtune.infra.node.boot import metadata

_LOOK_SECONDS = 1.0  # a laptop has no metadata service, and could wait forever
_INTERFACES = "network/interfaces/macs/"


@dataclass(frozen=True)
class ThisInstance:
    """An instance's region and security groups; None where its metadata doesn't say."""

    region: str | None
    groups: frozenset[str] | None

    def obstacles(self, settings: Settings) -> Iterator[str]:
        """Yield reasons why the instances of a run can't join a controller on this one."""
        if self.region not in (None, settings.region):
            yield (
                f"this machine is in {self.region} and the run in {settings.region}: instances "
                "can't reach it; let a head control the run (--head)"
            )
        group = settings.security_group
        if group and self.groups is not None and group not in self.groups:
            yield (
                f"this machine isn't in security group {group}, so instances can't reach it: add "
                "the group to this machine, or let a head control the run (--head)"
            )


def this_instance() -> ThisInstance | None:
    """Return the instance that this process runs on; None on any other machine."""
    try:
        metadata("instance-id", seconds=_LOOK_SECONDS)
    except OSError:
        return None
    interfaces = _read(_INTERFACES)
    groups = None
    if interfaces:
        first = interfaces.split()[0].rstrip("/")
        groups = _read(f"{_INTERFACES}{first}/security-group-ids")
    return ThisInstance(
        region=_read("placement/region"),
        groups=None if groups is None else frozenset(groups.split()),
    )


def _read(path: str) -> str | None:
    try:
        return metadata(path, seconds=_LOOK_SECONDS)
    except OSError:
        return None
