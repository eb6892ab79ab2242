"""Prices and specs of EC2's accelerated instances: from our own dated table to a `Catalog`.

The table is a snapshot that needs no account; `price_refresh` puts live prices over it. Nothing
here imports boto3: a plan must not wait for it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from cloudtune.errors import UsageError, quote
from cloudtune.model.catalog import Catalog, InstanceType, Market, Offer
from cloudtune.profiles.csv_table import rows

TABLE = Path(__file__).with_name("ec2_prices.csv")
AS_OF = "2026-07-20"
# The head's type: two vCPUs and 8 GiB, without the surcharge of burstable types under load.
HEAD_TYPE = "m7i.large"
# Its replacement: 5 % cheaper, and available to accounts on AWS's free plan.
SECOND_HEAD_TYPE = "m7i-flex.large"
# On-demand prices of head types in PRICED_REGION, from public tables of 2026-11; live prices take
# precedence.
HEAD_USD_PER_HOUR: Mapping[str, float] = {
    HEAD_TYPE: 0.1008,
    SECOND_HEAD_TYPE: 0.09576,
    "m5.large": 0.096,
    "m6i.large": 0.096,
    "t3.large": 0.0832,
}
PRICED_REGION = "us-east-1"
# The price of a gp3 disk in PRICED_REGION ("Amazon EBS pricing", read 2026-11): by the second, for
# at least 60 s, of a month of 30 days.
DISK_USD_PER_GB_MONTH = 0.08
# The price of a public IPv4 address in every region ("Amazon VPC pricing", since 2024-02-01).
ADDRESS_USD_PER_HOUR = 0.005
# EBS bills a gigabyte-month as 30 days.
_MONTH_HOURS = 720.0
MARKETS: tuple[Market, ...] = ("on-demand", "spot")
SOURCES: Mapping[Market, str] = {
    "on-demand": (
        "EC2 on-demand, us-east-1 (own table; facts from aws/karpenter-provider-aws @1d927085)"
    ),
    "spot": (
        "EC2 spot, us-east-1 (own table: on-demand less the saving that AWS's Spot Instance "
        "Advisor gave in mid-2025; facts from alexei-led/spotinfo @05e93313)"
    ),
}

# The share of spot capacity interrupted in a month: the middle of each of the advisor's bands, and
# a quarter for the open one.
_RECLAIMED = {"<5%": 0.025, "5-10%": 0.075, "10-15%": 0.125, "15-20%": 0.175, ">20%": 0.25}
_WORST_BAND = ">20%"
# EC2's quota of G instances is "G and VT"; every other family has its own quota.
_OF_CLASS_G = ("gr", "vt")
# The advisor's shares are of a month: a twelfth of a year.
_HOURS_PER_MONTH = 730.5
# Families with Graviton cores (docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, 2026-11): one
# image boots one architecture, and the controller's Python must be the nodes'.
_ARM = ("g5g.",)
# Types with NVIDIA's Kepler, Maxwell and Volta GPUs.
_BEFORE_TURING = ("g2.", "g3.", "g3s.", "p2.", "p3.", "p3dn.")


@dataclass(frozen=True)
class Listing:
    """A row of the table: prices in us-east-1, None where there is none.

    `band` is the advisor's interruption band, empty where it has none.
    """

    instance_type: InstanceType
    on_demand: float | None
    spot: float | None
    band: str

    def price(self, market: Market) -> float | None:
        """Return the dollars per hour in a market, if they are known."""
        return self.on_demand if market == "on-demand" else self.spot

    def offer(self, market: Market, region: str, usd_per_hour: float, zone: str = "") -> Offer:
        """Return the offer of this type at a price, billed as EC2 bills Linux: by the second."""
        rate = interruptions_per_hour(self.band) if market == "spot" else 0.0
        return Offer(
            self.instance_type,
            market,
            region,
            usd_per_hour,
            minimum_seconds=60.0,
            granularity_seconds=1.0,
            zone=zone,
            interruptions_per_hour=rate,
        )


def interruptions_per_hour(band: str) -> float:
    """Return how often per hour a spot instance is interrupted, by the advisor's band.

    If each instance of a pool is interrupted at a constant rate r, a share 1 - exp(-r * month) is
    gone after a month: the rate is the one for the middle of the band. It is an average over a
    month and all zones, not a forecast. Without a band the worst is assumed.
    """
    share = _RECLAIMED[band or _WORST_BAND]
    return -math.log1p(-share) / _HOURS_PER_MONTH


@cache
def listings() -> tuple[Listing, ...]:
    """Return every row of the table, in order; some have no price, some no whole GPU."""
    return tuple(map(_listing, rows(TABLE)))


def _listing(row: Mapping[str, str]) -> Listing:
    price = float(row["usd_per_hour"]) if row["usd_per_hour"] else None
    saving = float(row["spot_saving_pct"]) / 100 if row["spot_saving_pct"] else None
    kind = InstanceType(
        name=row["instance_type"],
        gpus=int(row["gpus"]),
        gpu=row["gpu"],
        gpu_memory_mib=int(row["gpu_memory_mib"]),
        vcpus=int(row["vcpus"]),
        memory_mib=int(row["memory_mib"]),
        gpu_maker=row["gpu_maker"],
        network_mbps=int(row["network_mbps"]),
        quota_class="g" if row["instance_type"].startswith(_OF_CLASS_G) else "",
    )
    spot = None if price is None or saving is None else round(price * (1 - saving), 6)
    return Listing(kind, price, spot, row["interruption_band"])


def instance_types() -> dict[str, InstanceType]:
    """Return every accelerated instance type by name, including those without a price."""
    return {listing.instance_type.name: listing.instance_type for listing in listings()}


def without_old_gpus(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns without types whose GPUs AWS's base image has no driver for.

    Its driver is NVIDIA's open kernel modules, which need Turing or newer (by their README).

    Raises:
        UsageError: a pattern names only such types.
    """
    newer = narrow(patterns, lambda name: not name.startswith(_BEFORE_TURING))
    for pattern, names in newer.items():
        if not names:
            raise UsageError(
                f"cloud.instances: {quote(pattern)}: AWS's base image has no driver for GPUs "
                "before Turing; name an image that has one (cloud.image)"
            )
    return tuple(name for names in newer.values() for name in names)


def narrow(patterns: Sequence[str], fits: Callable[[str], bool]) -> Mapping[str, tuple[str, ...]]:
    """Return what remains of each pattern: patterns and names of those of its types that fit.

    A pattern whose types all fit, or that names none, remains as it is. Of another, a family that
    fits whole remains as a pattern: whoever left the choice open still leaves it open.
    """
    return {pattern: _narrow(pattern, fits) for pattern in patterns}


def _narrow(pattern: str, fits: Callable[[str], bool]) -> tuple[str, ...]:
    names = [row.instance_type.name for row in rentable() if row.on_demand is not None]
    named = [name for name in names if fnmatchcase(name, pattern)]
    fitting = [name for name in named if fits(name)]
    if fitting == named:
        return (pattern,)
    kept: dict[str, None] = {}
    for name in fitting:
        family = f"{name.partition('.')[0]}.*"
        whole = all(other in fitting for other in names if fnmatchcase(other, family))
        kept[family if whole else name] = None
    return tuple(kept)


def rentable() -> tuple[Listing, ...]:
    """Return the rows of types that trials can train on; only these are offered."""
    return tuple(listing for listing in listings() if not _why_not(listing.instance_type))


def unfit() -> dict[str, str]:
    """Return the types that are never offered, by name, and why."""
    reasons = {row.instance_type.name: _why_not(row.instance_type) for row in listings()}
    for row in rentable():
        if row.on_demand is None:
            reasons[row.instance_type.name] = "its price isn't known"
    return {name: reason for name, reason in reasons.items() if reason}


def _why_not(kind: InstanceType) -> str:
    """Return why no trial can train on a type; "" if it can."""
    if kind.gpu_maker != "nvidia":
        return f"its accelerators are {kind.gpu_maker}'s, and trials train on NVIDIA's GPUs"
    if kind.name.startswith(_ARM):
        return "its cores are ARM's, and one image boots all instances of a run: x86-64"
    if kind.gpus < 1:
        return "it has only a part of a GPU"
    return ""


def catalog(
    region: str, markets: Sequence[Market] = ("on-demand",), zones: Sequence[str] = ()
) -> Catalog:
    """Return the offers of the table: one for each type, market and zone with a known price.

    Without zones there is one offer of zone "": any will do. The table's prices are those of
    us-east-1; for other regions they are a substitute, and `source` says so.
    """
    offers = tuple(
        listing.offer(market, region, price, zone)
        for listing in rentable()
        for market in markets
        if (price := listing.price(market)) is not None
        for zone in zones or ("",)
    )
    return Catalog(offers, source(region, markets), AS_OF, unfit=unfit())


def added_usd_per_hour(disk_gb: float, gb_month: float = DISK_USD_PER_GB_MONTH) -> float:
    """Return what an hour of an instance costs on top of its price.

    For `charges.per_instance_hour`: its gp3 disk, at `gb_month` dollars, and a public address.
    """
    return disk_gb * gb_month / _MONTH_HOURS + ADDRESS_USD_PER_HOUR


def source(region: str, markets: Sequence[Market]) -> str:
    """Return the source of the table's prices."""
    abroad = "" if region == PRICED_REGION else f"; used for {region}, where prices differ"
    return "; ".join(SOURCES[market] for market in markets) + abroad
