"""Checks for what would refuse a launch, before anything is billed: dry runs and look-ups.

With `DryRun` EC2 checks rights and parameters of a launch, but not capacity or quotas. The rest is
looked up if the caller has the rights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudtune.infra.aws.account.inventory import QUOTAS, lets_itself_in, quota
from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.aws.errors import CALL_ERRORS, error_code, refusal_kind
from cloudtune.infra.aws.price_refresh import price_of
from cloudtune.infra.provider import Endpoint
from cloudtune.model.catalog import InstanceType, Market, quota_of

_WOULD_HAVE = "DryRunOperation"
_HINTS: Mapping[str, str] = {
    "InvalidAMIID.Malformed": "cloud.image names no image",
    "InvalidAMIID.NotFound": "cloud.image isn't in this region",
    "InvalidGroup.NotFound": "cloud.security_group isn't in the VPC of the subnet",
    "InvalidSubnetID.NotFound": "cloud.subnet isn't in this region",
    "UnauthorizedOperation": "`cloudtune aws setup` updates the policies; `cloudtune aws policy "
    "person` prints what a person needs; a service control policy is your organization's",
    "VcpuLimitExceeded": "ask for more in the console: Service Quotas, EC2",
}


def mistakes(
    ec2: Ec2, attempts: Mapping[str, Mapping[str, Any]], tags: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for each cause that would refuse a launch, and what to do about it.

    `attempts` are the requests of the launches, keyed by a description.
    """
    reported: set[str] = set()
    for what, request in attempts.items():
        error = ec2.try_launch(tags, request)
        if error is None or error_code(error) == _WOULD_HAVE:
            continue
        if refusal_kind(error_code(error)) in {"busy", "capacity"}:
            continue  # only a temporary refusal
        hint = _HINTS.get(error_code(error), "")
        if error_code(error) not in reported:  # the same for each type
            yield f"{what} would be refused: {error}{f' ({hint})' if hint else ''}"
        reported.add(error_code(error))
    groups = next(iter(attempts.values())).get("SecurityGroupIds")
    if groups and not reported:
        yield from _closed(ec2, groups)


def quotas_lacking(
    endpoint: Endpoint,
    types: Sequence[InstanceType],
    markets: Sequence[Market],
    regions: Callable[[], Sequence[str]],
) -> Iterator[str]:
    """Yield a line for each quota that not even one instance of its types fits into.

    It names one of the account's `regions` with enough quota. Nothing if the caller has no rights;
    EC2 itself says so at the launch, which costs nothing.
    """
    least: dict[str, InstanceType] = {}
    for kind in sorted(types, key=lambda kind: kind.vcpus, reverse=True):
        least |= {quota_of(kind, market): kind for market in markets}
    for name, smallest in sorted(least.items()):
        vcpus = quota(endpoint, name)
        if vcpus is not None and vcpus < smallest.vcpus:
            yield (
                f"quota {name}: {vcpus:.0f} vCPUs, and a {smallest.name} has {smallest.vcpus}: ask "
                f"for more in the console (Service Quotas, EC2, {QUOTAS[name][1]})"
                f"{_elsewhere(endpoint, name, smallest, regions)}"
            )


def _elsewhere(
    endpoint: Endpoint, name: str, kind: InstanceType, regions: Callable[[], Sequence[str]]
) -> str:
    """Return a region with the quota for a type and with offers; "" if none is known."""
    try:
        places = [replace(endpoint, region=region) for region in regions()]
    except CALL_ERRORS:
        return ""
    vcpus = {place: quota(place, name) or 0.0 for place in places}
    for place in sorted(places, key=lambda place: -vcpus[place]):
        if vcpus[place] < kind.vcpus:
            break
        if price := price_of(place, kind.name):
            return (
                f"; {place.region} has {vcpus[place]:.0f}, and a {kind.name} for ${price:g} an "
                f"hour on demand: `cloudtune aws setup --region {place.region}`"
            )
    return ""


def _closed(ec2: Ec2, groups: Sequence[str]) -> Iterator[str]:
    """Yield a line for each security group that blocks its own members."""
    try:
        described = ec2.look("describe_security_groups", GroupIds=groups)["SecurityGroups"]
    except CALL_ERRORS:
        return  # the caller has no rights
    for group in described:
        if not lets_itself_in(group):
            yield (
                f"cloud.security_group {group['GroupId']} doesn't let its own members in, so no "
                "instance would join: add an inbound rule for all traffic from this same group"
            )
