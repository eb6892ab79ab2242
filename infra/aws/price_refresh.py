"""Live prices from AWS: on demand from the Price List API, spot from EC2's price history.

The calls only read. GetProducts is asked, not the bulk price file: that is some 450 MB for a
region (2026), and the pages asked for here are a few. What is quoted is kept on disk and checked
each time it is used (`price_checks`); what can't be asked is the table's, with a warning.
"""

from __future__ import annotations

import contextlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import ClientError

from cloudtune import aws_session
from cloudtune.errors import UsageError
from cloudtune.infra.aws.client import client
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.aws.price_checks import live_catalog
from cloudtune.infra.aws.price_quotes import Quotes, SpotQuote, keep, kept, time_weighted_p90
from cloudtune.infra.aws.pricing import HEAD_TYPE, rentable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cloudtune.infra.provider import Endpoint
    from cloudtune.model.catalog import Catalog, Market

FRESH_SECONDS = 7 * 3600.0
_HISTORY = timedelta(days=7)
# The Price List API lives in three regions, and knows the prices of all.
_PRICE_LIST_REGION = "us-east-1"
_CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=30
)
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


class _StrangeAnswerError(Exception):
    """AWS answered, but not with prices."""


def check_credentials() -> None:
    """Pass if there are credentials to ask AWS with; whether AWS takes them is not asked.

    Raises:
        UsageError: boto3 finds none.
    """
    try:
        found = aws_session.session().get_credentials()
    except CALL_ERRORS as error:
        raise UsageError(
            f"live prices are asked of AWS, and its set-up here fails: {error}"
        ) from None
    if found is None:
        raise UsageError(
            "live prices are asked of AWS, and there are no credentials for it here; "
            f"{aws_session.LOG_IN}, or use the table's prices"
        )


def refreshed(
    endpoint: Endpoint,
    folder: Path,
    now: float,
    markets: Sequence[Market] = ("on-demand",),
    zones: Sequence[str] = (),
) -> Catalog:
    """Return the offers of a region at live prices, for `pricing.catalog`'s markets and zones.

    Never fails for want of an answer: `Catalog.warnings` says what the table stands in for.
    """
    return live_catalog(latest_quotes(endpoint, folder, now), markets, zones)


def latest_quotes(endpoint: Endpoint, folder: Path, now: float) -> Quotes:
    """Return what AWS quotes, or has quoted less than seven hours before `now` (Unix seconds).

    Quotes are kept in `folder`, but never incomplete ones.
    """
    path = folder / f"ec2-{re.sub(r'[^a-z0-9-]', '_', endpoint.region)}.json"
    quotes = kept(path, endpoint.region, endpoint.url or "")
    if quotes is not None and 0 <= now - quotes.taken_at < FRESH_SECONDS:
        return quotes
    quotes = _ask(endpoint, now)
    if not quotes.trouble:
        # A full disk must not keep anybody from planning: it is asked again next time.
        with contextlib.suppress(OSError):
            keep(path, quotes)
    return quotes


def _ask(endpoint: Endpoint, now: float) -> Quotes:
    trouble: dict[Market, str] = {}
    on_demand = _attempt("on-demand", trouble, lambda: _on_demand(endpoint))
    spot = _attempt("spot", trouble, lambda: _spot(endpoint, now))
    return Quotes(endpoint.region, endpoint.url or "", now, on_demand, spot, trouble)


def _attempt(
    market: Market, trouble: dict[Market, str], ask: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return an answer; where there is none, say why and return nothing."""
    try:
        if found := ask():
            return found
        trouble[market] = "AWS knows none"
    except ClientError as error:
        trouble[market] = f"{error} (it needs {_PERMISSION[market]})"
    except (*CALL_ERRORS, _StrangeAnswerError) as error:
        trouble[market] = str(error)
    return {}


# ---- on demand -----------------------------------------------------------------------------


def _on_demand(endpoint: Endpoint) -> dict[str, float]:
    """Return the price of each of our types that the price list of the region has.

    A type that is listed twice counts at its dearest.
    """
    names = {HEAD_TYPE, *(each.instance_type.name for each in rentable())}
    prices: dict[str, float] = {}
    for product in _products(endpoint):
        try:
            name = product["product"]["attributes"]["instanceType"]
            quoted = list(_hourly(product["terms"].get("OnDemand", {})))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _StrangeAnswerError(f"a product that can't be read ({error!r})") from error
        if name in names and quoted:
            prices[name] = max(*quoted, prices.get(name, 0.0))
    return prices


def _products(endpoint: Endpoint) -> Iterator[Any]:
    with contextlib.closing(client("pricing", endpoint, _CONFIG, _PRICE_LIST_REGION)) as prices:
        for family in _FAMILIES:
            fields = {**_FILTERS, **family, "regionCode": endpoint.region}
            filters = [{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in fields.items()]
            pages = prices.get_paginator("get_products").paginate(
                ServiceCode="AmazonEC2", Filters=filters
            )
            for page in pages:
                yield from map(_parsed, page.get("PriceList", ()))


def _parsed(product: str) -> Any:
    try:
        return json.loads(product)
    except ValueError as error:
        raise _StrangeAnswerError(f"a product that is no JSON ({error})") from error


def _hourly(terms: Mapping[str, Any]) -> Iterator[float]:
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == "Hrs" and "USD" in dimension["pricePerUnit"]:
                yield float(dimension["pricePerUnit"]["USD"])


# ---- spot ----------------------------------------------------------------------------------


def _spot(endpoint: Endpoint, now: float) -> dict[str, dict[str, SpotQuote]]:
    """Return the newest price by type and zone, with the p90 of the week before `now`."""
    changes: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for entry in _history(endpoint, now):
        try:
            name, zone = entry["InstanceType"], entry["AvailabilityZone"]
            change = (entry["Timestamp"].timestamp(), float(entry["SpotPrice"]))
        except (KeyError, ValueError, AttributeError) as error:
            raise _StrangeAnswerError(f"a price that can't be read ({error!r})") from error
        changes.setdefault(name, {}).setdefault(zone, []).append(change)
    return {
        name: {zone: _quote(seen, now) for zone, seen in by_zone.items()}
        for name, by_zone in changes.items()
    }


def _history(endpoint: Endpoint, now: float) -> Iterator[Any]:
    end = datetime.fromtimestamp(now, UTC)
    with contextlib.closing(client("ec2", endpoint, _CONFIG)) as ec2:
        pages = ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=[each.instance_type.name for each in rentable()],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=end - _HISTORY,
            EndTime=end,
        )
        for page in pages:
            yield from page.get("SpotPriceHistory", ())


def _quote(changes: list[tuple[float, float]], now: float) -> SpotQuote:
    at, price = max(changes)
    begin = now - _HISTORY.total_seconds()
    return SpotQuote(price, at, time_weighted_p90(changes, begin, now))
