"""What can be rented, at what price, as of which date."""

import calendar
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, TypeAlias, TypeVar

from cloudtune.errors import UsageError, nearest, quote

T = TypeVar("T")
Market: TypeAlias = Literal["on-demand", "spot"]
BillingUnit: TypeAlias = Literal["second", "minute", "hour", "function"]
PoolName: TypeAlias = tuple[str, str, str]  # instance type, market, zone

# The seconds to which a bill by each unit is rounded up; a bill by the function isn't rounded.
GRAINS: Mapping[BillingUnit, float] = {"second": 1.0, "minute": 60.0, "hour": 3600.0}

# The prefix of the names of users' own machines, which have no market.
LOCAL = "local-"

# The "GPU model" of a machine without GPUs, whose cores trials share.
CPU = "cpu"

# The maximum number of names listed in a message; beyond, only the nearest is given.
_LISTED = 12

# The quota of machines that are emulated on this one: what it can train at their pace, in
# thousandths.
THIS_MACHINE = "this machine"

# No instance has more GPUs; a record that says so is damaged.
_MAX_GPUS = 4096


@dataclass(frozen=True)
class InstanceType:
    """A kind of machine: GPUs per instance, memory in MiB, network in Mbit/s (0: not known).

    `quota_class` names the vCPU quota it counts against, if not that of its name's letters.
    `host_permille` is set for types that are emulated on this machine and share it: the thousandths
    of it that training on one instance takes.
    """

    name: str
    gpus: int
    gpu: str
    gpu_memory_mib: int
    vcpus: int
    memory_mib: int
    gpu_maker: str = "nvidia"
    network_mbps: int = 0
    quota_class: str = ""
    host_permille: int = 0

    @property
    def gpu_model(self) -> str:
        """The name of its GPU model in lower case, as tables of figures have it."""
        return self.gpu.lower()

    @property
    def quota_units(self) -> int:
        """What an instance takes of its quota: vCPUs, or thousandths of this machine."""
        return self.host_permille or self.vcpus

    def __post_init__(self) -> None:
        """Refuse a damaged record: loops over its GPUs would never end.

        Raises:
            ValueError: no machine has that many GPUs.
        """
        if self.gpus > _MAX_GPUS:
            raise ValueError(f"{self.name}: no machine has {self.gpus} GPUs")


@dataclass(frozen=True)
class SpotBehaviour:
    """How a spot pool may behave.

    `losses_per_hour` is how often it is interrupted per hour that an instance is held;
    `availability` is the share of the time in which it can be rented.
    """

    losses_per_hour: float
    availability: float = 1.0

    @property
    def outage(self) -> float:
        """Mean seconds that it stays away after an interruption; inf if it is never there."""
        if self.availability <= 0.0:
            return math.inf
        if self.losses_per_hour <= 0.0:
            return 0.0
        return 3600.0 / self.losses_per_hour * (1.0 - self.availability) / self.availability


# Generations that share a quota on spot: "All P4, P3 and P2 Spot Instance Requests".
_P_GENERATION = re.compile(r"p\d+")
_OLD_P = frozenset({"p2", "p3", "p4"})


def quota_name(instance_type: InstanceType, market: Market) -> str:
    """Return the vCPU quota of a type: market and class, as in "spot p".

    On spot P5 and later generations have their own, as in "spot p5".

    Emulated types that share this machine have one for all.
    """
    if instance_type.host_permille:
        return THIS_MACHINE
    name = instance_type.name
    generation = _P_GENERATION.match(name)
    if market == "spot" and generation is not None and generation[0] not in _OLD_P:
        return f"spot {generation[0]}"
    letters = "".join(itertools.takewhile(str.isalpha, name))
    return f"{market} {instance_type.quota_class or letters}"


@dataclass(frozen=True)
class Offer:
    """An instance type at a price, in one market of one region.

    It is billed from launch to termination, rounded up to `granularity_seconds` (0: exact), and for
    at least `minimum_seconds`. `zone` is the availability zone, "" if any will do.
    `interruptions_per_hour` is how often the cloud takes such an instance. `added_usd_per_hour` is
    what an instance costs on top of its price, billed the same way: its disk, its public address.

    An offer `per_function` costs nothing while it is held. Instead, the GPU-seconds of its trials
    are billed at a GPU's share of the price: from the start of a trial until it has come as far as
    it may, and again when it continues. Booting, waiting at a rung, idle GPUs and the return are
    free; there is no rounding and no minimum.

    With `in_gpu_hours` its dollars stand for GPU-hours, as nothing has a price.
    """

    instance_type: InstanceType
    market: Market
    region: str
    usd_per_hour: float
    minimum_seconds: float = 60.0
    granularity_seconds: float = 0.0
    zone: str = ""
    interruptions_per_hour: float = 0.0
    added_usd_per_hour: float = 0.0
    per_function: bool = False
    in_gpu_hours: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Offers are the keys of all counters updated at every event, so cache the hash.
        return hash((self.instance_type, self.market, self.region, self.zone, self.usd_per_hour))

    def __getstate__(self) -> dict[str, object]:
        # Another process hashes strings differently.
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @cached_property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.instance_type.gpus

    @property
    def spot(self) -> bool:
        return self.market == "spot"

    @cached_property
    def gpu_model(self) -> str:
        """The name of its GPU model in lower case."""
        return self.instance_type.gpu_model

    @cached_property
    def usd_per_second(self) -> float:
        """The highest price of a second of one instance: with all of its GPUs in use."""
        return (self.usd_per_hour + self.added_usd_per_hour) / 3600.0

    @property
    def held_usd_per_second(self) -> float:
        """What a second of one instance costs whether it is used or not."""
        return 0.0 if self.per_function else self.usd_per_second

    @property
    def used_usd_per_second(self) -> float:
        """What a second of one GPU costs on top of that while a trial uses it."""
        return self.usd_per_second / self.gpus if self.per_function else 0.0

    def with_billing(self, unit: BillingUnit, minimum_seconds: float | None = None) -> "Offer":
        """Return the same offer, billed by a unit of time, or by the function.

        Without its own minimum, a bill by time covers at least one unit.
        """
        per_function = unit == "function"
        grain = 0.0 if per_function else GRAINS[unit]
        least = 0.0 if per_function else minimum_seconds or 0.0
        return replace(
            self, granularity_seconds=grain, minimum_seconds=least, per_function=per_function
        )

    @property
    def quota(self) -> str:
        """The vCPU quota that the offer counts against (`quota_name`)."""
        return quota_name(self.instance_type, self.market)

    @property
    def billing(self) -> str:
        """How it is billed, in words."""
        if self.per_function:
            return "by the GPU-second that trials use, not by the instance"
        names = {
            0.0: "to the instant",
            **{seconds: f"by the {unit}" for unit, seconds in GRAINS.items()},
        }
        grain = self.granularity_seconds
        by = names.get(grain, f"by {grain:g} s")
        least = self.minimum_seconds
        return f"{by}, for {least:g} s at least" if least > grain else by

    def charge(self, seconds: float) -> float:
        """Return the dollars that one instance costs if it lives for these seconds.

        Without what its trials use, if that is billed (`used_usd_per_second`).
        """
        billed = max(seconds, self.minimum_seconds)
        if self.granularity_seconds > 0:
            # The last bit of a sum of floats must not cost a whole grain more.
            grains = math.ceil(billed / self.granularity_seconds - 1e-9)
            billed = grains * self.granularity_seconds
        return billed * self.held_usd_per_second

    def added_dollars(self, dollars: float) -> float:
        """Return the part of an instance's bill that comes from `added_usd_per_hour`."""
        whole = self.usd_per_hour + self.added_usd_per_hour
        return dollars * self.added_usd_per_hour / whole if whole > 0 else 0.0

    def __str__(self) -> str:
        where = f" {self.zone}" if self.zone else ""
        return f"{self.instance_type.name} {self.market}{where} ${self.usd_per_hour:g}/h"


def pool(offer: Offer) -> PoolName:
    """Return the key of an offer: type, market, zone."""
    return offer.instance_type.name, offer.market, offer.zone


def of_pool(by_pool: Mapping[PoolName, T], kind: str, market: str, zone: str) -> T:
    """Return the entry of an offer in a zone, or else of the offer without a zone.

    Raises:
        KeyError: there is neither.
    """
    return (
        by_pool[kind, market, zone]
        if (kind, market, zone) in by_pool
        else by_pool[kind, market, ""]
    )


@dataclass(frozen=True)
class Catalog:
    """An immutable snapshot of offers, with the source and the date (YYYY-MM-DD) of the prices.

    `warnings` says which prices were missing or implausible, and what replaces them. `unfit` has
    the types that are never offered, and why.
    """

    offers: tuple[Offer, ...]
    source: str
    as_of: str
    warnings: tuple[str, ...] = ()
    unfit: Mapping[str, str] = field(default_factory=dict)

    def offer(
        self, instance_type: str, market: Market = "on-demand", zone: str | None = None
    ) -> Offer:
        """Return the offer of an instance type; without a zone, the cheapest of all zones.

        Raises:
            UsageError: the snapshot has no such offer.
        """
        zones = () if zone is None else (zone,)
        return min(self._match_name(instance_type, (market,), zones), key=lambda o: o.usd_per_hour)

    def matching(
        self, patterns: Sequence[str], markets: Sequence[Market], zones: Sequence[str] = ()
    ) -> tuple[Offer, ...]:
        """Return the offers of the types that match any of the patterns, each once.

        A pattern is a name or a shell glob, as in "g5.*". Without zones, offers of every zone. The
        order is that of the patterns, then of the snapshot.

        Raises:
            UsageError: a pattern matches no offer.
        """
        offers = (offer for name in patterns for offer in self._match_name(name, markets, zones))
        return tuple(dict.fromkeys(offers))

    def age_days(self, today: str) -> int:
        """Return the age of the prices in days on a date, YYYY-MM-DD; never below 0."""
        return max(0, _day_number(today) - _day_number(self.as_of))

    def _match_name(
        self, pattern: str, markets: Sequence[Market], zones: Sequence[str]
    ) -> tuple[Offer, ...]:
        named = [o for o in self.offers if fnmatchcase(o.instance_type.name, pattern)]
        if not named:
            raise UsageError(self._unknown(pattern))
        offers = tuple(o for o in named if o.market in markets and (not zones or o.zone in zones))
        if not offers:
            where = f" in {' or '.join(zones)}" if any(zones) else ""
            kinds = " or ".join(markets)
            raise UsageError(
                f"no {kinds} price is known for instance type {quote(pattern)}{where}; "
                "`cloudtune catalog` shows what there is"
            )
        return offers

    def _unknown(self, pattern: str) -> str:
        unfit = [name for name in self.unfit if fnmatchcase(name, pattern)]
        if unfit:
            return f"instance type {quote(pattern)} can't be used: {self.unfit[unfit[0]]}"
        names = tuple(dict.fromkeys(o.instance_type.name for o in self.offers))
        message = f"no price is known for instance type {quote(pattern)}"
        if len(names) <= _LISTED:
            return f"{message}; known: {', '.join(names)}.{nearest(pattern, names)}"
        return f"{message}; `cloudtune catalog` lists those known.{nearest(pattern, names)}"


def _day_number(date: str) -> int:
    """Return the number of a day; timegm only computes, it reads no clock."""
    year, month, day = map(int, date[:10].split("-"))
    return calendar.timegm((year, month, day, 0, 0, 0)) // 86400
