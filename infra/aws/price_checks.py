"""Live prices: which of them are plausible, and the `Catalog` of them and our own table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cloudtune.infra.aws.pricing import AS_OF, Listing, rentable, source, unfit
from cloudtune.model.catalog import Catalog, Market, Offer

# Far below every price of the table: a lower one is a mistake.
MIN_USD_PER_GPU_HOUR = 0.01
# A price further from the table's counts as a mistake, ours or AWS's.
MAX_TIMES_OFF = 10.0
_LIVE = {
    "on-demand": "AWS Price List API",
    "spot": "EC2 spot price history (the week's p90, or the newest price if above)",
}


@dataclass(frozen=True)
class Quotes:
    """AWS's prices per hour in a region, unchecked; `taken_at` is in Unix seconds.

    `on_demand` is by type, `spot` by type and zone. A market that couldn't be queried is empty, and
    `trouble` says why. `endpoint` is "" for AWS itself.
    """

    region: str
    endpoint: str
    taken_at: float
    on_demand: Mapping[str, float]
    spot: Mapping[str, Mapping[str, float]]
    trouble: Mapping[Market, str] = field(default_factory=dict)


def is_plausible(listing: Listing, market: Market, price: float) -> bool:
    """Whether a quoted price is near the table's, for the market or else on demand."""
    if not price >= MIN_USD_PER_GPU_HOUR * listing.instance_type.gpus:
        return False
    of_table = listing.price(market) or listing.on_demand
    return of_table is None or of_table / MAX_TIMES_OFF <= price <= of_table * MAX_TIMES_OFF


def live_catalog(quotes: Quotes, markets: Sequence[Market], zones: Sequence[str] = ()) -> Catalog:
    """Return the offers at the quoted prices; the table's price replaces implausible ones.

    Types without a quote aren't sold there, and aren't offered. A market that couldn't be queried
    has the table's prices, and then the catalog has the table's date. Without zones, a spot offer
    has the price of the most expensive zone, because the cloud may choose that.
    """
    offers: list[Offer] = []
    warnings = [
        f"no live {market} prices of {quotes.region}: {quotes.trouble[market]}; the table of "
        f"{AS_OF} stands in"
        for market in markets
        if market in quotes.trouble
    ]
    unsold: dict[Market, list[str]] = {}
    for listing in rentable():
        for market in markets:
            prices = _prices(quotes, listing, market, zones, warnings)
            if not prices and listing.price(market) is not None:
                unsold.setdefault(market, []).append(listing.instance_type.name)
            offers += [
                listing.offer(market, quotes.region, price, zone)
                for zone, price in prices.items()
                if price is not None
            ]
    warnings += [
        f"AWS quotes no {market} price in {quotes.region} for {', '.join(names)}: not offered"
        for market, names in unsold.items()
    ]
    taken = datetime.fromtimestamp(quotes.taken_at, UTC)
    is_stale = any(market in quotes.trouble for market in markets)
    as_of = AS_OF if is_stale else f"{taken:%Y-%m-%d}"
    return Catalog(tuple(offers), _source(quotes, markets, taken), as_of, tuple(warnings), unfit())


def _prices(
    quotes: Quotes, listing: Listing, market: Market, zones: Sequence[str], warnings: list[str]
) -> dict[str, float | None]:
    """Return the price in each zone that has one; None if implausible and not in the table."""
    name = listing.instance_type.name
    of_table = listing.price(market)
    any_zone: dict[str, float | None] = dict.fromkeys(zones or ("",), of_table)
    if market in quotes.trouble:
        return any_zone
    if market == "spot":
        by_zone = quotes.spot.get(name, {})
        quoted = {zone: by_zone[zone] for zone in zones or sorted(by_zone) if zone in by_zone}
    else:
        quoted = {"": quotes.on_demand[name]} if name in quotes.on_demand else {}
    refused = {
        zone: price for zone, price in quoted.items() if not is_plausible(listing, market, price)
    }
    if refused:
        warnings.append(_refused(name, market, refused, of_table))
    believed = {zone: price for zone, price in quoted.items() if zone not in refused}
    if market == "spot" and zones:
        return {zone: believed.get(zone, of_table) for zone in quoted}
    price = max(believed.values(), default=of_table)
    return dict.fromkeys(any_zone, price) if quoted else {}


def _refused(
    name: str, market: Market, refused: Mapping[str, float], of_table: float | None
) -> str:
    prices = dict.fromkeys((_usd(min(refused.values())), _usd(max(refused.values()))))
    zones = ", ".join(zone for zone in refused if zone)
    where = f" in {zones}" if zones else ""
    instead = "and the table has none"
    if of_table is not None:
        instead = f"the table's {_usd(of_table)} stands in"
    return (
        f"{name} {market}: {' to '.join(prices)}{where} refused (more than {MAX_TIMES_OFF:g} times "
        f"off, or below ${MIN_USD_PER_GPU_HOUR:g} per GPU-hour); {instead}"
    )


def _source(quotes: Quotes, markets: Sequence[Market], taken: datetime) -> str:
    fresh = [market for market in markets if market not in quotes.trouble]
    stale = [market for market in markets if market in quotes.trouble]
    lives = ", ".join(f"{market} from the {_LIVE[market]}" for market in fresh)
    live = f"live prices of {quotes.region}, {taken:%Y-%m-%d %H:%M} UTC: {lives}"
    parts = ([live] if fresh else []) + ([source(quotes.region, stale)] if stale else [])
    return "; ".join(parts)


def _usd(price: float) -> str:
    return f"${price:.5f}".rstrip("0").rstrip(".") + "/h"
