"""`cloudtune catalog`: GPU instance types and their prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from cloudtune.cli.options import OUTPUT_YAML, GroupedCommand, print_data
from cloudtune.display.terminal import console
from cloudtune.errors import UsageError, allowed_names, quote
from cloudtune.infra.aws import pricing
from cloudtune.infra.aws.pricing import Listing
from cloudtune.model.catalog import Catalog, Market
from cloudtune.runs import home

_WARNINGS_SHOWN = 5


@click.command(cls=GroupedCommand)
@click.option("--gpu", metavar="NAME", help="Only types with this GPU, such as a100.")
@click.option(
    "--market",
    type=click.Choice([*pricing.MARKETS, "any"]),
    default="any",
    show_default=True,
    help="Only types offered in this market.",
)
@click.option("--region", default=pricing.PRICED_REGION, show_default=True, help="AWS region.")
@click.option("--refresh", is_flag=True, help="Fetch live prices from AWS (needs credentials).")
@OUTPUT_YAML
def catalog(gpu: str | None, market: str, region: str, refresh: bool, output: str) -> None:
    """List GPU instance types and their prices. Rents nothing."""
    now = datetime.now(UTC)
    listed = _select_listings(gpu)
    prices = _prices(region, now.timestamp(), refresh=refresh)
    markets = tuple(name for name in pricing.MARKETS if market in {name, "any"})
    rows = _rows(listed, prices, markets)
    if output == "table":
        _show(rows, prices, markets, f"{now:%Y-%m-%d}")
    else:
        print_data(_data(rows, prices, region, f"{now:%Y-%m-%d}"), output)


def _select_listings(gpu: str | None) -> tuple[Listing, ...]:
    """Return the listings with the given GPU.

    Raises:
        UsageError: no instance type has it.
    """
    if gpu is None:
        return pricing.listings()
    wanted = gpu.strip().lower()
    matching = tuple(
        listing for listing in pricing.listings() if listing.instance_type.gpu == wanted
    )
    if not matching:
        names = sorted({listing.instance_type.gpu for listing in pricing.listings()})
        raise UsageError(f"no instance type has the GPU {quote(gpu)}; {allowed_names(gpu, names)}")
    return matching


def _prices(region: str, now: float, *, refresh: bool) -> Catalog:
    if not refresh:
        return pricing.catalog(region, pricing.MARKETS)
    # boto3 takes a third of a second, and only this needs it.
    from cloudtune.infra.aws import price_refresh
    from cloudtune.infra.provider import Endpoint

    price_refresh.check_credentials()
    return price_refresh.live_prices(Endpoint(region), home.home() / "prices", now, pricing.MARKETS)


@dataclass(frozen=True)
class _Row:
    """An instance type with its prices; `markets` are the requested ones."""

    listing: Listing
    offered: Mapping[Market, float]
    markets: tuple[Market, ...]

    @property
    def price(self) -> float | None:
        """The price in the first requested market that offers it: on demand before spot."""
        return next((self.offered[m] for m in self.markets if m in self.offered), None)

    @property
    def per_gpu(self) -> float | None:
        return None if self.price is None else self.price / self.listing.instance_type.gpus


def _rows(listed: Sequence[Listing], prices: Catalog, markets: tuple[Market, ...]) -> list[_Row]:
    """Return the rows by GPU, GPU count and price; with both markets, also types neither offers."""
    offered: dict[str, dict[Market, float]] = {}
    for offer in prices.offers:
        offered.setdefault(offer.instance_type.name, {})[offer.market] = offer.usd_per_hour
    rows = [
        _Row(listing, offered.get(listing.instance_type.name, {}), markets) for listing in listed
    ]
    everything = len(markets) == len(pricing.MARKETS)
    return sorted((row for row in rows if everything or row.price is not None), key=_order)


def _order(row: _Row) -> tuple[str, int, float, str]:
    kind = row.listing.instance_type
    price = float("inf") if row.price is None else row.price
    return kind.gpu, kind.gpus, price, kind.name


def _show(rows: Sequence[_Row], prices: Catalog, markets: Sequence[Market], today: str) -> None:
    out = console()
    age = prices.age_days(today)
    days = f"{age} day{'' if age == 1 else 's'} old"
    out.print(f"Prices: {escape(prices.source)}; {prices.as_of}, {days}")
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("\ntype", no_wrap=True)
    table.add_column("\nGPUs", justify="right", no_wrap=True)
    table.add_column("\nGPU", overflow="fold")  # gives way in a narrow terminal
    prices_of = (f"{market}\n$/h" for market in markets)
    risk = ("lost per\nmonth",) if "spot" in markets else ()
    for heading in ("GPU\nGiB", "\nvCPUs", *prices_of, "$ per\nGPU-h", *risk):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, markets))
    out.print(table)
    out.print("-: unknown, or not offered. <1: a fraction of a GPU, not offered.")
    for warning in prices.warnings[:_WARNINGS_SHOWN]:
        click.echo(f"warning: {warning}", err=True)
    more = len(prices.warnings) - _WARNINGS_SHOWN
    if more > 0:
        click.echo(f"warning: {more} more like these; -o json shows all", err=True)


def _cells(row: _Row, markets: Sequence[Market]) -> list[str]:
    kind = row.listing.instance_type
    return [
        kind.name,
        str(kind.gpus or "<1"),
        kind.gpu,
        f"{kind.gpu_memory_mib / 1024:.0f}" if kind.gpu_memory_mib else "-",
        str(kind.vcpus),
        *(_dollars(row.offered.get(market)) for market in markets),
        _dollars(row.per_gpu),
        *([row.listing.band or "-"] if "spot" in markets else []),
    ]


def _dollars(price: float | None) -> str:
    return "-" if price is None else f"{price:.4f}"


def _data(rows: Sequence[_Row], prices: Catalog, region: str, today: str) -> dict[str, Any]:
    return {
        "region": region,
        "source": prices.source,
        "as_of": prices.as_of,
        "age_days": prices.age_days(today),
        "warnings": list(prices.warnings),
        "types": [_row_data(row) for row in rows],
    }


def _row_data(row: _Row) -> dict[str, Any]:
    """Return a row with null for values that are unknown, or not offered."""
    kind = row.listing.instance_type
    band = row.listing.band
    return {
        "instance_type": kind.name,
        "gpus": kind.gpus,
        "gpu": kind.gpu,
        "gpu_maker": kind.gpu_maker,
        "gpu_memory_mib": kind.gpu_memory_mib or None,
        "vcpus": kind.vcpus,
        "memory_mib": kind.memory_mib,
        "network_mbps": kind.network_mbps or None,
        "usd_per_hour": row.offered.get("on-demand"),
        "spot_usd_per_hour": row.offered.get("spot"),
        "usd_per_gpu_hour": row.per_gpu,
        "interruption_band": band or None,
        "interruptions_per_hour": pricing.interruptions_per_hour(band) if band else None,
    }
