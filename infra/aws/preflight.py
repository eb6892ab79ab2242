"""Checks for what would refuse a launch, before anything is billed: dry runs and look-ups.

With `DryRun` EC2 checks rights and parameters of a launch, but not capacity or quotas. The rest is
looked up if the caller has the rights.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cloudtune.infra.aws.account.inventory import QUOTAS, lets_itself_in, quota, read_quotas
from cloudtune.infra.aws.ec2 import Ec2, market_request
from cloudtune.infra.aws.errors import CALL_ERRORS, error_code, refusal_kind
from cloudtune.infra.aws.price_refresh import read_price
from cloudtune.infra.provider import Cloud, Endpoint, HeadOffer, Preflight, at_place, merge_requests
from cloudtune.model.catalog import InstanceType, Market, quota_name

# What would be launched: a type, on a market.
Launch: TypeAlias = tuple[InstanceType, Market]

_WOULD_HAVE = "DryRunOperation"
_UNSUPPORTED = "Unsupported"
# Of an open choice, as many launches are tried, the best first: EC2 takes five calls at once, and
# two a second after that.
_TRIES = 6
# Refusals that don't depend on type and market: trying others would show the same.
_OF_ALL_LAUNCHES = (
    *("InvalidAMIID.", "InvalidGroup.", "InvalidKeyPair.", "InvalidSubnetID.", "ParamValidation"),
    *("AuthFailure", "ExpiredToken", "InvalidClientTokenId", "NoCredentials", "SignatureDoes"),
)
# Launches that a note names before it counts the others.
_NAMED = 3
_HINTS: Mapping[str, str] = {
    "InvalidAMIID.Malformed": "cloud.image names no image",
    "InvalidAMIID.NotFound": "cloud.image isn't in this region",
    "InvalidGroup.NotFound": "cloud.security_group isn't in the VPC of the subnet",
    "InvalidSubnetID.NotFound": "cloud.subnet isn't in this region",
    "UnauthorizedOperation": "`cloudtune aws setup` updates the policies; `cloudtune aws policy "
    "person` prints what a person needs; a service control policy is your organization's",
    "VcpuLimitExceeded": "ask for more in the console: Service Quotas, EC2",
}


@dataclass(frozen=True)
class Preflights:
    """Checks the launches of one run on a cloud; `regions` returns those of the account."""

    ec2: Ec2
    cloud: Cloud
    tags: Mapping[str, str]
    regions: Callable[[], Sequence[str]]

    def of_head(self, head: HeadOffer, launches: Sequence[Launch], *, is_open: bool) -> Preflight:
        """Return what would refuse a head, or all the launches that are its to make."""
        request = {**head.request, "InstanceType": head.instance_type}
        problems = []
        error = self._try_head(head, request)
        if error is not None and error_code(error) != _UNSUPPORTED:
            problems.append(_text(f"the head, a {head.instance_type},", error))
        rooms = _Rooms(self.cloud.endpoint, launches)
        without_room: list[Launch] = []
        for group in _groups(launches, is_open=is_open):
            if not rooms.fitting(group):
                without_room += group
        problems += rooms.lacking(without_room, self.regions)
        return Preflight(tuple(problems or self._find_blocks(request)))

    def _try_head(self, head: HeadOffer, request: Mapping[str, Any]) -> Exception | None:
        """Return what would refuse a head wherever it may be placed; None if one place will do."""
        refusal = None
        for zone in head.places or ("",):
            error = self.ec2.try_launch(self.tags, at_place(request, head.places, zone))
            if error is None or not _is_refusal(error):
                return None
            refusal = error
        return refusal

    def of_launches(
        self, launches: Sequence[Launch], zones: Sequence[str] = (), *, is_open: bool
    ) -> Preflight:
        """Return what would refuse a run's launches, of which the best are first.

        Of a choice that `is_open` one launch is enough; otherwise every type must have one. What
        would be refused beside it is left out, with a note. `zones` are the only ones to ask.
        """
        rooms = _Rooms(self.cloud.endpoint, launches)
        trial = _Trial(self, zones)
        problems: list[str] = []
        without_room: list[Launch] = []
        for group in _groups(launches, is_open=is_open):
            fitting = rooms.fitting(group)
            if not fitting:
                without_room += group
            elif not trial.any_passes(fitting, is_open=is_open):
                problems += trial.mistakes(fitting)
        problems += rooms.lacking(without_room, self.regions)
        if not problems:
            problems += self._find_blocks(self.cloud.request)
        crowded = () if is_open else rooms.find_unfit(launches)
        refused = frozenset((kind.name, market) for kind, market in (*trial.errors, *crowded))
        return Preflight(tuple(problems), tuple(trial.notes()), refused)

    def _find_blocks(self, request: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for each security group that blocks its own members."""
        groups = request.get("SecurityGroupIds")
        if not groups:
            return
        try:
            described = self.ec2.look("describe_security_groups", GroupIds=groups)
        except CALL_ERRORS:
            return  # the caller has no rights
        for group in described["SecurityGroups"]:
            if not lets_itself_in(group):
                yield (
                    f"cloud.security_group {group['GroupId']} doesn't let its own members in, so "
                    "no instance would join: add an inbound rule for all traffic from this same "
                    "group"
                )


def _groups(launches: Sequence[Launch], *, is_open: bool) -> Iterable[Sequence[Launch]]:
    """Return the groups of launches of which one is enough each: all, or those of each type."""
    if is_open:
        return [launches]
    by_type: dict[str, list[Launch]] = {}
    for kind, market in launches:
        by_type.setdefault(kind.name, []).append((kind, market))
    return by_type.values()


class _Trial:
    """Tries launches, and remembers which were refused.

    Where an instance may start in several zones, a type that one of them lacks is tried in the
    next: EC2 says `Unsupported` of a zone.
    """

    def __init__(self, preflights: Preflights, zones: Sequence[str]) -> None:
        self._checks = preflights
        self._places = list(_places(preflights.cloud, zones))
        self._reported: set[str] = set()
        self.errors: dict[Launch, Exception] = {}

    def any_passes(self, launches: Sequence[Launch], *, is_open: bool) -> bool:
        """Try launches; return whether any would be accepted.

        Of an open choice the first are tried, and where none of them would be accepted, the first
        of each other family: rights are often by family.
        """
        first = launches[:_TRIES] if is_open else launches
        passes = False
        for launch in first:
            passes = self._passes(launch) or passes
            if not passes and self._fail_all(launch):
                return False
        families = {_family(launch) for launch in first}
        for launch in launches[len(first) :]:
            if passes:
                break
            if _family(launch) not in families:
                families.add(_family(launch))
                passes = self._passes(launch)
        return passes

    def _passes(self, launch: Launch) -> bool:
        kind, market = launch
        request = {**self._checks.cloud.request, "InstanceType": kind.name}
        for place in self._places:
            at = merge_requests(merge_requests(request, market_request(market, "")), place)
            error = self._checks.ec2.try_launch(self._checks.tags, at)
            if error is None or not _is_refusal(error):
                self.errors.pop(launch, None)  # another zone's
                return True
            self.errors[launch] = error
            if error_code(error) != _UNSUPPORTED:
                return False
        return False

    def _fail_all(self, launch: Launch) -> bool:
        """Return whether the refusal of a launch is that of all the others."""
        error = self.errors.get(launch)
        return error is not None and error_code(error).startswith(_OF_ALL_LAUNCHES)

    def mistakes(self, launches: Sequence[Launch]) -> Iterator[str]:
        """Yield a line for each cause that would refuse launches, and what to do about it."""
        for kind, market in launches:
            error = self.errors.get((kind, market))
            if error is None or error_code(error) in self._reported:
                continue  # not tried, or the same for each type
            self._reported.add(error_code(error))
            yield _text(f"{kind.name} {market}", error)

    def notes(self) -> Iterator[str]:
        """Yield which launches are left out, by cause."""
        by_code: dict[str, list[str]] = {}
        texts = {}
        for (kind, market), error in self.errors.items():
            by_code.setdefault(error_code(error), []).append(f"{kind.name} {market}")
            texts[error_code(error)] = str(error)
        for code, names in by_code.items():
            more = len(names) - _NAMED
            others = f" and {more} more" if more > 0 else ""
            yield f"left out: {', '.join(names[:_NAMED])}{others}: {texts[code]}"


class _Rooms:
    """The account's quotas, and the launches that not even one instance of fits into.

    A quota that may not be read has room: EC2 itself says so at the launch, which costs nothing.
    """

    def __init__(self, endpoint: Endpoint, launches: Sequence[Launch]) -> None:
        self._endpoint = endpoint
        names = sorted({quota_name(kind, market) for kind, market in launches})
        self._vcpus = read_quotas(endpoint, names)

    def fitting(self, launches: Sequence[Launch]) -> list[Launch]:
        return [launch for launch in launches if self._fits(*launch)]

    def find_unfit(self, launches: Sequence[Launch]) -> list[Launch]:
        return [launch for launch in launches if not self._fits(*launch)]

    def _fits(self, kind: InstanceType, market: Market) -> bool:
        return self._vcpus.get(quota_name(kind, market), kind.vcpus) >= kind.vcpus

    def lacking(
        self, launches: Sequence[Launch], regions: Callable[[], Sequence[str]]
    ) -> Iterator[str]:
        """Yield a line for each quota that none of the launches fits into.

        It names one of the account's `regions` with enough quota.
        """
        least: dict[str, InstanceType] = {}
        for kind, market in sorted(launches, key=lambda launch: launch[0].vcpus, reverse=True):
            least[quota_name(kind, market)] = kind
        for name, smallest in sorted(least.items()):
            yield (
                f"quota {name}: {self._vcpus[name]:.0f} vCPUs, and a {smallest.name} has "
                f"{smallest.vcpus}: ask for more in the console (Service Quotas, EC2, "
                f"{QUOTAS[name][1]}){_elsewhere(self._endpoint, name, smallest, regions)}"
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
        if price := read_price(place, kind.name):
            return (
                f"; {place.region} has {vcpus[place]:.0f}, and a {kind.name} for ${price:g} an "
                f"hour on demand: `cloudtune aws setup --region {place.region}`"
            )
    return ""


def _places(cloud: Cloud, zones: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of requests that place an instance in each zone; {} leaves it to EC2."""
    if cloud.places:
        named = [cloud.places[zone] for zone in zones if zone in cloud.places]
        yield from named or cloud.places.values()
    elif zones:
        for zone in zones:
            yield {"Placement": {"AvailabilityZone": zone}}
    else:
        yield {}


def _family(launch: Launch) -> str:
    return launch[0].name.partition(".")[0]


def _is_refusal(error: Exception) -> bool:
    """Return whether EC2 would refuse a launch, not just now but at any time."""
    code = error_code(error)
    if code == _WOULD_HAVE:
        return False
    return code == _UNSUPPORTED or refusal_kind(code) not in {"busy", "capacity"}


def _text(what: str, error: Exception) -> str:
    hint = _HINTS.get(error_code(error), "")
    return f"{what} would be refused: {error}{f' ({hint})' if hint else ''}"
