"""What can be rented, from a table or the catalogue: `--offers FILE|NAME`.

The formats are documented in benchmarks/compare/README.md.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pandas as pd

from benchmarks.compare.speeds import is_file
from benchmarks.compare.tables import read_table
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import InstanceType, Market, Offer
from cloudtune.model.units import LEAST_DOLLARS

if TYPE_CHECKING:
    from benchmarks.compare.tables import Table

# Offers of a file are billed as EC2 bills Linux.
MINIMUM_SECONDS, GRANULARITY_SECONDS = 60.0, 1.0


def offers_of(given: str, market: str = "on-demand") -> tuple[Offer, ...]:
    """Return what can be rented: the offers of a file, or those of the catalogue by name or glob.

    Raises:
        UsageError: neither, or a mistake in the file (with its row), as an offer without a price.
    """
    if is_file(given):
        return _of_table(read_table(Path(given), texts=("instance_type", "market", "gpu")))
    markets = tuple(name for name in pricing.MARKETS if market in {name, "any"})
    catalog = pricing.catalog(pricing.PRICED_REGION, markets)
    patterns = [name.strip() for name in given.split(",") if name.strip()]
    return catalog.matching(patterns, markets)


def _of_table(table: Table) -> tuple[Offer, ...]:
    names = table.names(table.need("instance_type", "a column instance_type"))
    empty = [""] * len(names)
    rate = "interruptions_per_hour"
    rows = pd.DataFrame(
        {
            "name": names,
            "gpus": table.numbers(table.need("gpus", "a column gpus")),
            "price": table.numbers(table.need("usd_per_hour", "a column usd_per_hour")),
            "rate": table.numbers(rate).fillna(0.0) if table.has(rate) else 0.0,
            "market": table.texts("market") if table.has("market") else empty,
            "gpu": table.texts("gpu") if table.has("gpu") else empty,
        }
    )
    rows["market"] = rows["market"].replace("", "on-demand")
    priced = (rows["price"] >= LEAST_DOLLARS) & (rows["price"] < math.inf)
    for wrong, message in (
        (~rows["gpus"].isin(range(1, 1025)), "gpus must be a whole number above 0"),
        (~priced, "the offer has no usd_per_hour above 0"),
        (~((rows["rate"] >= 0) & (rows["rate"] < math.inf)), f"{rate} must be 0 or more"),
        (~rows["market"].isin(get_args(Market)), "market must be on-demand or spot"),
        (rows.duplicated(["name", "market"]), "the offer is there twice; keep one of them"),
    ):
        table.refuse(wrong, message)
    return tuple(
        Offer(
            _machine(row["name"], int(row["gpus"]), row["gpu"]),
            row["market"],
            pricing.PRICED_REGION,
            row["price"],
            minimum_seconds=MINIMUM_SECONDS,
            granularity_seconds=GRANULARITY_SECONDS,
            interruptions_per_hour=row["rate"],
        )
        for row in rows.to_dict("records")
    )


def _machine(name: str, gpus: int, gpu: str) -> InstanceType:
    """Return an instance type; what its row doesn't say is as the catalogue has it."""
    listed = pricing.instance_types().get(name)
    if listed is not None and listed.gpus == gpus and gpu in {"", listed.gpu}:
        return listed
    return InstanceType(name, gpus, gpu.lower(), 0, 0, 0)
