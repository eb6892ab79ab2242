"""Which live prices are believed, and the `Catalog` that they make with our own table."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cloudtune.infra.aws.pricing import AS_OF, rentable, source, unfit
from cloudtune.model.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.infra.aws.price_quotes import Quotes, SpotQuote
    from cloudtune.infra.aws.pricing import Listing
    from cloudtune.model.catalog import Market, Offer

MIN_USD_PER_GPU_HOUR = 0.01
MAX_TIMES_OFF = 10.0
OLDEST_SPOT_SECONDS = 24 * 3600.0
_LIVE = {
    "on-demand": "AWS Price List API",
    "spot": "EC2 spot price history (the week's p90, or the newest price if above)",
}
_ANY_ZONE = ("",)


def refusal(listing: Listing, market: Market, price: float, age_seconds: float) -> str:
    """Return why a quoted price is not believed, in words; "" where it is.

    The table's price is what it is compared with: that of the market, else on demand. A spot price
    has an age; AWS's price list has none (0).
    """
    if not price >= MIN_USD_PER_GPU_HOUR * listing.instance_type.gpus:
        return f"below ${MIN_USD_PER_GPU_HOUR:g} per GPU-hour"
    known = listing.price(market) or listing.on_demand
    if known is not None and not known / MAX_TIMES_OFF <= price <= known * MAX_TIMES_OFF:
        return f"more than {MAX_TIMES_OFF:g} times off"
    if age_seconds > OLDEST_SPOT_SECONDS:
        return f"{age_seconds / 3600:.0f} h old"
    return ""


def live_catalog(quotes: Quotes, markets: Sequence[Market], zones: Sequence[str] = ()) -> Catalog:
    """Return the offers at the quoted prices; the table's price stands in for one that is refused.

    What AWS quotes no price for isn't sold there, and isn't offered. A market that could not be
    asked is the table's altogether, and then so is the date. With no zones given, a spot offer has
    the price of the dearest zone: the cloud is free to choose it.
    """
    merged = _Merged(quotes, tuple(zones) or _ANY_ZONE)
    merged.tell_trouble(markets)
    offers = tuple(
        offer
        for listing in rentable()
        for market in markets
        for offer in merged.offers(listing, market)
    )
    merged.tell_unsold()
    untouched = any(market in quotes.trouble for market in markets)
    taken = datetime.fromtimestamp(quotes.taken_at, UTC)
    return Catalog(
        offers,
        _source(quotes, markets, taken),
        AS_OF if untouched else f"{taken:%Y-%m-%d}",
        tuple(merged.warnings),
        unfit(),
    )


def _source(quotes: Quotes, markets: Sequence[Market], taken: datetime) -> str:
    fresh = [market for market in markets if market not in quotes.trouble]
    stale = [market for market in markets if market in quotes.trouble]
    lives = ", ".join(f"{market} from the {_LIVE[market]}" for market in fresh)
    live = f"live prices of {quotes.region}, {taken:%Y-%m-%d %H:%M} UTC: {lives}"
    parts = ([live] if fresh else []) + ([source(quotes.region, stale)] if stale else [])
    return "; ".join(parts)


@dataclass
class _Merged:
    """The table with the quotes over it, and what there was to say about that."""

    quotes: Quotes
    zones: tuple[str, ...]
    warnings: list[str] = field(default_factory=list)
    unsold: dict[Market, list[str]] = field(default_factory=dict)

    def offers(self, listing: Listing, market: Market) -> Iterator[Offer]:
        for zone, price in self._prices(listing, market):
            if price is not None:
                yield listing.offer(market, self.quotes.region, price, zone)

    def _prices(self, listing: Listing, market: Market) -> list[tuple[str, float | None]]:
        """Return a price for each zone that has one, None where it is refused and not known."""
        name, known = listing.instance_type.name, listing.price(market)
        if market in self.quotes.trouble:
            return [(zone, known) for zone in self.zones]
        if market == "spot":
            return self._spot(listing, self.quotes.spot.get(name, {}))
        quoted = self.quotes.on_demand.get(name)
        if quoted is None:
            self._note_unsold(listing, market)
            return []
        why = refusal(listing, market, quoted, 0.0)
        if why:
            self.warnings.append(_refused(listing, market, [("", quoted)], why))
        return [(zone, known if why else quoted) for zone in self.zones]

    def _spot(
        self, listing: Listing, by_zone: Mapping[str, SpotQuote]
    ) -> list[tuple[str, float | None]]:
        wanted = {z: q for z, q in by_zone.items() if self.zones == _ANY_ZONE or z in self.zones}
        if not by_zone:
            self._note_unsold(listing, "spot")
        believed: dict[str, float] = {}
        refused: dict[str, list[tuple[str, float]]] = {}
        for zone, quote in sorted(wanted.items()):
            why = refusal(listing, "spot", quote.usd_per_hour, self.quotes.taken_at - quote.at)
            if why:
                refused.setdefault(why, []).append((zone, quote.usd_per_hour))
            else:
                # What held for nine tenths of the week, as the newest price may be a lucky one.
                week = 0.0 if refusal(listing, "spot", quote.p90, 0.0) else quote.p90
                believed[zone] = max(quote.usd_per_hour, week)
        for why, which in refused.items():
            self.warnings.append(_refused(listing, "spot", which, why))
        if not wanted:
            return []
        if self.zones == _ANY_ZONE:
            return [("", max(believed.values()) if believed else listing.spot)]
        return [(zone, believed.get(zone, listing.spot)) for zone in self.zones if zone in wanted]

    def _note_unsold(self, listing: Listing, market: Market) -> None:
        if listing.price(market) is not None:
            self.unsold.setdefault(market, []).append(listing.instance_type.name)

    def tell_trouble(self, markets: Sequence[Market]) -> None:
        for market in markets:
            if market in self.quotes.trouble:
                self.warnings.append(
                    f"no live {market} prices of {self.quotes.region}: "
                    f"{self.quotes.trouble[market]}; the table of {AS_OF} stands in"
                )

    def tell_unsold(self) -> None:
        for market, names in self.unsold.items():
            self.warnings.append(
                f"AWS quotes no {market} price in {self.quotes.region} for {', '.join(names)}: "
                "not offered"
            )


def _refused(
    listing: Listing, market: Market, quotes: Sequence[tuple[str, float]], why: str
) -> str:
    prices = sorted({price for _, price in quotes})
    zones = ", ".join(zone for zone, _ in quotes if zone)
    quoted = " to ".join(dict.fromkeys((_usd(prices[0]), _usd(prices[-1]))))
    where = f" in {zones}" if zones else ""
    known = listing.price(market)
    instead = "and the table has none" if known is None else f"the table's {_usd(known)} stands in"
    return f"{listing.instance_type.name} {market}: {quoted}{where} refused ({why}); {instead}"


def _usd(price: float) -> str:
    return f"${price:.5f}".rstrip("0").rstrip(".") + "/h"
