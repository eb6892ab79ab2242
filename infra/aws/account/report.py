"""What `cloudtune aws check` says of an account: a line for each thing, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cloudtune.infra.aws import pricing
from cloudtune.infra.aws.account import names, policies
from cloudtune.infra.aws.account.found import QUOTAS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.infra.aws.account.found import Clients, Found

_SETUP = "`cloudtune aws setup` makes it"


@dataclass(frozen=True)
class Line:
    """One thing: whether it is there, not there, or not known; and what there is to say of it."""

    state: Literal["ok", "missing", "unknown"]
    what: str
    note: str = ""


def lines(found: Found) -> list[Line]:
    """Return all that can be said of an account, in the order in which setup makes it."""
    return [*_network(found), *_roles(found), *_storage(found), *_quotas(found), *_unknown(found)]


def types_in_use(clients: Clients, region: str, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the patterns of types that runs may rent: as wanted, as they are, or all of ours."""
    if wanted is not None:
        return wanted
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        kept = clients["iam"].get_role_policy(RoleName=names.head(region), PolicyName=names.POLICY)[
            "PolicyDocument"
        ]
    except (BotoCoreError, ClientError):
        return _all_types()
    return policies.types_of(kept) or _all_types()


def _all_types() -> tuple[str, ...]:
    return tuple(sorted({f"{name.partition('.')[0]}.*" for name in pricing.instance_types()}))


def _line(there: object, what: str, note: str = "", lacking: str = _SETUP) -> Line:
    return Line("ok", what, note) if there else Line("missing", what, lacking)


def _network(found: Found) -> Iterator[Line]:
    no_vpc = "name one (--vpc), or `aws ec2 create-default-vpc`"
    yield _line(found.vpc, f"VPC {found.vpc or ''}".strip(), lacking=no_vpc)
    if found.vpc is not None:
        zones = ", ".join(sorted(found.subnets))
        yield _line(found.subnets, f"{len(found.subnets)} subnets", zones, "the VPC has none")
    yield _line(found.group, f"security group {names.GROUP}", found.group or "")
    if found.group is not None:
        yield _line(found.open_within, "its members reach each other")
        others = ", ".join(found.open_to_others)
        lets_in = f"{others} may reach instances, and no run needs it: take that rule away"
        yield _line(not others, "nobody else reaches them", lacking=lets_in)


def _roles(found: Found) -> Iterator[Line]:
    for name, role in found.roles.items():
        yield _line(role.exists, f"role {name}")
        if role.exists:
            other = "another one; `cloudtune aws setup` writes it anew"
            yield _line(found.may_as_written(name), f"the policy of {name}", lacking=other)
        yield _line(role.profile and role.holds, f"instance profile {name}")
    spot = "for spot alone; `cloudtune aws setup` makes it"
    yield _line(found.spot_role, f"the role of {names.SPOT_SERVICE}", lacking=spot)


def _storage(found: Found) -> Iterator[Line]:
    yield _line(found.bucket, f"bucket {found.place.bucket}")
    if found.bucket:
        yield _line(found.cleans_up, "its rule for what broke off")
    gone = f"no {names.IMAGE_PARAMETER} in {found.place.region}; name one (cloud.image)"
    yield _line(found.image, "image", found.image or "", gone)


def _quotas(found: Found) -> Iterator[Line]:
    for name, vcpus in found.quotas.items():
        code, title = QUOTAS[name]
        ask = f"0 vCPUs; ask for more in the console: Service Quotas, EC2, {title} ({code})"
        yield _line(vcpus, f"quota {name}", f"{vcpus:.0f} vCPUs", ask)


def _unknown(found: Found) -> Iterator[Line]:
    for what, why in found.unknown.items():
        yield Line("unknown", what or "something", why)
    for name in (
        QUOTAS.keys()
        - found.quotas.keys()
        - {each.removeprefix("quota ") for each in found.unknown}
    ):
        yield Line("unknown", f"quota {name}", "Service Quotas doesn't tell")
