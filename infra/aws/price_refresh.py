"""Live prices from AWS: on demand from the Price List API, spot from EC2's price history.

The calls only read. GetProducts returns a few pages, where the bulk price file of a region has some
450 MB (2026). Quotes are cached on disk and checked each time they are used (`price_checks`); the
table replaces what AWS doesn't answer, with a warning.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from botocore.exceptions import ClientError

from cloudtune import aws_session
from cloudtune.errors import UsageError
from cloudtune.infra.aws.client import client
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.aws.price_checks import Quotes, live_catalog
from cloudtune.infra.aws.pricing import HEAD_TYPE, rentable
from cloudtune.infra.processes import write_atomically
from cloudtune.infra.provider import Endpoint
from cloudtune.model.catalog import Catalog, Market
from cloudtune.model.serialization import decode, encode

T = TypeVar("T")

# Seconds for which cached quotes are used; spot prices change within a day.
FRESH_SECONDS = 7 * 3600.0
_HISTORY = timedelta(days=7)
_PRICE_LIST_REGION = "us-east-1"  # one of three that have the API; it knows all regions' prices
_FILTERS = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
# Metal instances are listed as dedicated, at the same kind of price.
_FAMILIES = (
    {"productFamily": "Compute Instance", "tenancy": "Shared"},
    {"productFamily": "Compute Instance (bare metal)", "tenancy": "Dedicated"},
)
_PERMISSION: Mapping[Market, str] = {
    "on-demand": "pricing:GetProducts",
    "spot": "ec2:DescribeSpotPriceHistory",
}
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


def check_credentials() -> None:
    """Check that there are credentials, but not whether AWS accepts them.

    Raises:
        UsageError: boto3 finds none.
    """
    try:
        credentials = aws_session.session().get_credentials()
    except CALL_ERRORS as error:
        raise UsageError(
            f"live prices are asked of AWS, and its set-up here fails: {error}"
        ) from None
    if credentials is None:
        raise UsageError(
            "live prices are asked of AWS, and there are no credentials for it here; "
            f"{aws_session.LOG_IN}, or use the table's prices"
        )


def live_prices(
    endpoint: Endpoint,
    folder: Path,
    now: float,
    markets: Sequence[Market] = ("on-demand",),
    zones: Sequence[str] = (),
) -> Catalog:
    """Return the offers of a region at live prices, for `pricing.catalog`'s markets and zones.

    Never fails for lack of an answer: `Catalog.warnings` says which prices come from the table.
    """
    return live_catalog(latest_quotes(endpoint, folder, now), markets, zones)


def latest_quotes(endpoint: Endpoint, folder: Path, now: float) -> Quotes:
    """Return AWS's quotes, or cached ones less than seven hours old at `now` (Unix seconds).

    Quotes are cached in `folder`, but never incomplete ones.
    """
    path = folder / f"ec2-{re.sub(r'[^a-z0-9-]', '_', endpoint.region)}.json"
    place = (endpoint.region, endpoint.url or "")
    quotes = read_cache(path, Quotes)
    if (
        quotes is not None
        and (quotes.region, quotes.endpoint) == place
        and 0 <= now - quotes.taken_at < FRESH_SECONDS
    ):
        return quotes
    trouble: dict[Market, str] = {}
    on_demand = _attempt("on-demand", trouble, lambda: _on_demand(endpoint))
    spot = _attempt("spot", trouble, lambda: _spot(endpoint, now))
    quotes = Quotes(*place, now, on_demand, spot, trouble)
    if not trouble:
        cache(path, quotes)
    return quotes


def read_cache(path: Path, kind: type[T]) -> T | None:
    """Return an answer of AWS from a file; None if there is no readable one."""
    try:
        return decode(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, *_UNREADABLE):
        return None


def cache(path: Path, answer: object) -> None:
    """Write an answer of AWS to a file; if the disk is full, AWS is just asked again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(encode(answer), indent=1))


def _attempt(
    market: Market, trouble: dict[Market, str], ask: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the prices of a market; {} if there is no answer, with the reason in `trouble`."""
    try:
        if prices := ask():
            return prices
        trouble[market] = "AWS knows none"
    except ClientError as error:
        trouble[market] = f"{error} (it needs {_PERMISSION[market]})"
    except CALL_ERRORS as error:
        trouble[market] = aws_session.unreachable(error) or str(error)
    except _UNREADABLE as error:
        trouble[market] = f"an answer that can't be read ({error!r})"
    return {}


def read_price(endpoint: Endpoint, instance_type: str) -> float | None:
    """Return the price of a type on demand; None if it isn't sold there, or AWS doesn't say."""
    with contextlib.suppress(*CALL_ERRORS, *_UNREADABLE):
        return _on_demand(endpoint, instanceType=instance_type).get(instance_type)
    return None


def disk_price(endpoint: Endpoint) -> float | None:
    """Return the dollars of a gigabyte-month of gp3; None if AWS doesn't say."""
    disk = {"productFamily": "Storage", "volumeApiName": "gp3", "regionCode": endpoint.region}
    with contextlib.suppress(*CALL_ERRORS, *_UNREADABLE):
        terms = (
            json.loads(text)["terms"].get("OnDemand", {}) for text in _products(endpoint, disk)
        )
        return max(price for product in terms for price in _quotes(product, "GB-Mo"))
    return None


def _on_demand(endpoint: Endpoint, **only: str) -> dict[str, float]:
    """Return the price of each of our types; if one is listed twice, the higher price.

    `only` are further filters of the price list; a type that they name counts as ours.
    """
    ours = (listing.instance_type.name for listing in rentable())
    names = {HEAD_TYPE, only.get("instanceType", HEAD_TYPE), *ours}
    prices: dict[str, float] = {}
    place = {**_FILTERS, "regionCode": endpoint.region, **only}
    texts = (text for family in _FAMILIES for text in _products(endpoint, {**place, **family}))
    for product in map(json.loads, texts):
        name = product["product"]["attributes"]["instanceType"]
        quoted = list(_quotes(product["terms"].get("OnDemand", {}), "Hrs"))
        if name in names and quoted:
            prices[name] = max(*quoted, prices.get(name, 0.0))
    return prices


def _products(endpoint: Endpoint, fields: Mapping[str, str]) -> Iterator[str]:
    filters = [{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in fields.items()]
    with contextlib.closing(client("pricing", endpoint, region=_PRICE_LIST_REGION)) as prices:
        pages = prices.get_paginator("get_products").paginate(
            ServiceCode="AmazonEC2", Filters=filters
        )
        for page in pages:
            yield from page.get("PriceList", ())


def _quotes(terms: Mapping[str, Any], unit: str) -> Iterator[float]:
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == unit and "USD" in dimension["pricePerUnit"]:
                yield float(dimension["pricePerUnit"]["USD"])


def _spot(endpoint: Endpoint, now: float) -> dict[str, dict[str, float]]:
    """Return a price by type and zone: the newest, or the p90 of the last week if higher.

    The newest price may be unusually low.
    """
    changes: dict[str, dict[str, list[tuple[float, float]]]] = {}
    end = datetime.fromtimestamp(now, UTC)
    with contextlib.closing(client("ec2", endpoint)) as ec2:
        pages = ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=[listing.instance_type.name for listing in rentable()],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=end - _HISTORY,
            EndTime=end,
        )
        for page in pages:
            for entry in page.get("SpotPriceHistory", ()):
                by_zone = changes.setdefault(entry["InstanceType"], {})
                change = (entry["Timestamp"].timestamp(), float(entry["SpotPrice"]))
                by_zone.setdefault(entry["AvailabilityZone"], []).append(change)
    begin = now - _HISTORY.total_seconds()
    high: dict[str, dict[str, float]] = {}
    for name, by_zone in changes.items():
        for zone, prices in by_zone.items():
            price = max(max(prices)[1], time_weighted_p90(prices, begin, now))
            high.setdefault(name, {})[zone] = price
    return high


def time_weighted_p90(changes: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the time-weighted 90th percentile of prices from `begin` to `end`.

    `changes` are (time, price), at least one, in any order; a price lasts until the next change,
    the last one until `end`. Earlier changes count from `begin` on.
    """
    ordered = sorted(changes)
    until = [time for time, _ in ordered[1:]] + [end]
    prices = [price for _, price in ordered]
    held = np.maximum(0.0, np.array(until) - np.maximum(begin, [time for time, _ in ordered]))
    if not held.any():
        return prices[-1]
    return float(np.quantile(prices, 0.9 - 1e-9, weights=held, method="inverted_cdf"))
