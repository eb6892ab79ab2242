"""Prices and specs of EC2's GPU instances: from our own dated table to a `Catalog`."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from cloudtune.catalog import Catalog, InstanceType, Market, Offer

TABLE = Path(__file__).with_name("ec2_prices.csv")
AS_OF = "2026-07-20"
PRICED_REGION = "us-east-1"
SOURCE = "EC2 on-demand, us-east-1 (own table; facts from aws/karpenter-provider-aws @1d927085)"


@cache
def _rows() -> tuple[dict[str, str], ...]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(line for line in file if not line.startswith("#")))


def instance_types() -> dict[str, InstanceType]:
    """Return every instance type that a price is known for, by name."""
    return {
        row["instance_type"]: InstanceType(
            name=row["instance_type"],
            gpus=int(row["gpus"]),
            gpu=row["gpu"],
            gpu_memory_mib=int(row["gpu_memory_mib"]),
            vcpus=int(row["vcpus"]),
            memory_mib=int(row["memory_mib"]),
        )
        for row in _rows()
    }


def catalog(region: str, market: Market) -> Catalog:
    """Return the offers of the table.

    The table's prices are those of us-east-1; in other regions they are a stand-in, and `source`
    says so.
    """
    types = instance_types()
    offers = tuple(
        Offer(types[row["instance_type"]], market, region, float(row["usd_per_hour"]))
        for row in _rows()
    )
    abroad = "" if region == PRICED_REGION else f"; used for {region}, where prices differ"
    return Catalog(offers, SOURCE + abroad, AS_OF)
