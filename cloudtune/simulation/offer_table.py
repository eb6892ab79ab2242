"""What can be rented, from a table or the catalogue: `--offers FILE|NAME`.

The formats are documented in docs/simulate.md.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from cloudtune.catalog import InstanceType, Market, Offer
from cloudtune.errors import UsageError, allowed_names, shown
from cloudtune.infra.aws import pricing
from cloudtune.simulation.speed_table import is_file
from cloudtune.simulation.table_file import read_table
from cloudtune.units import LEAST_DOLLARS

if TYPE_CHECKING:
    from cloudtune.simulation.table_file import TableFile

MINIMUM_SECONDS, GRANULARITY_SECONDS = 60.0, 1.0
"""How offers of a file are billed: as EC2 bills Linux."""


def offers_of(given: str, market: str = "on-demand") -> tuple[Offer, ...]:
    """Return what can be rented: the offers of a file, or those of the catalogue by name or glob.

    Raises:
        UsageError: neither, or a mistake in the file (with its line), as an offer without a price.
    """
    if is_file(given):
        return _read_offers(read_table(Path(given), texts=("instance_type", "market", "gpu")))
    markets = tuple(each for each in pricing.MARKETS if market in {each, "any"})
    catalog = pricing.catalog(pricing.PRICED_REGION, markets)
    patterns = [name.strip() for name in given.split(",") if name.strip()]
    return catalog.matching(patterns, markets)


def _read_offers(file: TableFile) -> tuple[Offer, ...]:
    names = file.names(file.need("instance_type", "a column instance_type"))
    gpus = file.numbers(file.need("gpus", "a column gpus"))
    prices = file.numbers(file.need("usd_per_hour", "a column usd_per_hour"))
    rates = _optional(file, "interruptions_per_hour")
    markets = file.values("market") if file.has("market") else [""] * file.rows
    makers = file.values("gpu") if file.has("gpu") else [""] * file.rows
    found: dict[tuple[str, str], Offer] = {}
    for row, name in enumerate(names):
        offer = Offer(
            _machine(name, _gpus(file, row, gpus[row]), str(makers[row] or "")),
            _market(file, row, str(markets[row] or "on-demand")),
            pricing.PRICED_REGION,
            _price(file, row, prices[row]),
            minimum_seconds=MINIMUM_SECONDS,
            granularity_seconds=GRANULARITY_SECONDS,
            interruptions_per_hour=_rate(file, row, rates[row]),
        )
        if found.setdefault((name, offer.market), offer) is not offer:
            raise UsageError(
                f"{file.where(row)}: {name} ({offer.market}) is there twice; keep one of them"
            )
    return tuple(found.values())


def _optional(file: TableFile, name: str) -> list[float | None]:
    return file.numbers(name) if file.has(name) else [None] * file.rows


def _machine(name: str, gpus: int, gpu: str) -> InstanceType:
    """Return an instance type; what its row doesn't say is as the catalogue has it."""
    known = pricing.instance_types().get(name)
    if known is not None and known.gpus == gpus and gpu in {"", known.gpu}:
        return known
    return InstanceType(name, gpus, gpu.lower(), 0, 0, 0)


def _gpus(file: TableFile, row: int, value: float | None) -> int:
    if value is None or not (value >= 1 and value.is_integer()):
        given = "empty" if value is None else f"{value:g}"
        raise UsageError(f"{file.where(row)}: gpus is {given}; write a whole number above 0")
    return int(value)


def _market(file: TableFile, row: int, value: str) -> Market:
    for market in get_args(Market):
        if value.strip() == market:
            return market  # type: ignore[no-any-return]
    raise UsageError(
        f"{file.where(row)}: market is {shown(value)}; {allowed_names(value, get_args(Market))}"
    )


def _price(file: TableFile, row: int, value: float | None) -> float:
    if value is None or math.isnan(value):
        raise UsageError(f"{file.where(row)}: the offer has no price; write its usd_per_hour")
    if not LEAST_DOLLARS <= value < math.inf:
        raise UsageError(f"{file.where(row)}: usd_per_hour is {value:g}; write a price above 0")
    return value


def _rate(file: TableFile, row: int, value: float | None) -> float:
    if value is None:
        return 0.0
    if not 0 <= value < math.inf:
        raise UsageError(f"{file.where(row)}: interruptions_per_hour is {value:g}; write 0 or more")
    return value
