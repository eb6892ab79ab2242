"""Which live prices are believed, and what becomes of the others."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.infra.aws.price_checks import Quotes, is_plausible, live_catalog
from cloudtune.infra.aws.price_refresh import read_cache, time_weighted_p90
from cloudtune.infra.aws.pricing import AS_OF, MARKETS, catalog, listings
from cloudtune.model.catalog import Market

NOW = datetime(2026, 11, 21, 14, 3, tzinfo=UTC).timestamp()
ROWS = {listing.instance_type.name: listing for listing in listings()}
T4 = ROWS["g4dn.xlarge"]


def quotes(
    on_demand: dict[str, float] | None = None,
    spot: dict[str, dict[str, float]] | None = None,
    *,
    region: str = "us-east-1",
) -> Quotes:
    return Quotes(region, "", NOW, on_demand or {}, spot or {})


@pytest.mark.parametrize(
    ("name", "market", "price", "believed"),
    [
        ("g4dn.xlarge", "on-demand", 0.526, True),
        ("g4dn.xlarge", "on-demand", 0.0, False),
        ("g4dn.xlarge", "on-demand", float("nan"), False),
        ("g4dn.xlarge", "on-demand", 0.05, False),
        ("g4dn.xlarge", "on-demand", 5.3, False),
        ("g4dn.xlarge", "on-demand", float("inf"), False),
        ("g4dn.xlarge", "spot", 0.02, True),
        ("g4dn.xlarge", "spot", 0.018, False),
        ("g4dn.xlarge", "spot", 1.89, True),
        ("g4dn.xlarge", "spot", 1.90, False),
        ("p5e.48xlarge", "spot", 0.079, False),  # eight GPUs, and no price in the table
        ("p5e.48xlarge", "spot", 0.081, True),
        ("g7.2xlarge", "spot", 0.25, False),  # compared with the price on demand
        ("g7.2xlarge", "spot", 0.26, True),
    ],
)
def test_a_price_is_believed(name: str, market: Market, price: float, believed: bool) -> None:
    assert is_plausible(ROWS[name], market, price) is believed


def test_believed_prices_are_offered_and_dated() -> None:
    prices = live_catalog(
        quotes({"g4dn.xlarge": 0.6}, {"g4dn.xlarge": {"us-east-1a": 0.2}}), MARKETS
    )
    assert prices.offer("g4dn.xlarge").usd_per_hour == 0.6
    spot = prices.offer("g4dn.xlarge", "spot")
    assert (spot.usd_per_hour, spot.zone) == (0.2, "")
    assert spot.interruptions_per_hour > 0
    assert prices.as_of == "2026-11-21"
    assert prices.source == (
        "live prices of us-east-1, 2026-11-21 14:03 UTC: on-demand from the AWS Price List API, "
        "spot from the EC2 spot price history (the week's p90, or the newest price if above)"
    )


def test_refused_price_falls_to_table() -> None:
    moto = {"us-east-1a": 0.00001, "us-east-1b": 0.00001}
    prices = live_catalog(quotes({"g4dn.xlarge": 5.27}, {"g4dn.xlarge": moto}), MARKETS)
    assert prices.offer("g4dn.xlarge").usd_per_hour == T4.on_demand
    assert prices.offer("g4dn.xlarge", "spot").usd_per_hour == T4.spot
    on_demand, spot = prices.warnings[:2]
    assert on_demand == (
        "g4dn.xlarge on-demand: $5.27/h refused (more than 10 times off, or below $0.01 "
        "per GPU-hour); the table's $0.526/h stands in"
    )
    assert spot == (
        "g4dn.xlarge spot: $0.00001/h in us-east-1a, us-east-1b refused (more than 10 times "
        "off, or below $0.01 per GPU-hour); the table's $0.18936/h stands in"
    )


def test_any_zone_has_dearest_price() -> None:
    by_zone = {"us-east-1a": 0.2, "us-east-1b": 0.3, "us-east-1c": 0.0}
    result = quotes(spot={"g4dn.xlarge": by_zone})
    assert live_catalog(result, ("spot",)).offer("g4dn.xlarge", "spot").usd_per_hour == 0.3
    prices = live_catalog(result, ("spot",), ("us-east-1a", "us-east-1c", "us-east-1d"))
    assert [(o.zone, o.usd_per_hour) for o in prices.offers] == [
        ("us-east-1a", 0.2),
        ("us-east-1c", T4.spot),
    ]


def test_what_has_no_quote_is_not_sold_there() -> None:
    prices = live_catalog(quotes({"g4dn.xlarge": 0.6}, region="eu-north-1"), ("on-demand",))
    assert [o.instance_type.name for o in prices.offers] == ["g4dn.xlarge"]
    (warning,) = prices.warnings
    assert warning.startswith("AWS quotes no on-demand price in eu-north-1 for g3.4xlarge, ")
    assert "p4d.24xlarge" in warning
    assert "p5e.48xlarge" not in warning, "no price of it is known"


def test_partial_answer_names_both_sources() -> None:
    result = Quotes("us-east-1", "", NOW, {"g5.xlarge": 1.1}, {}, {"spot": "no way"})
    both = live_catalog(result, MARKETS)
    assert both.as_of == AS_OF
    assert both.source.startswith("live prices of us-east-1")
    assert "; EC2 spot, us-east-1 (own table" in both.source
    alone = live_catalog(result, ("on-demand",))
    assert alone.as_of == "2026-11-21"
    assert not any("no way" in warning for warning in alone.warnings)


@given(st.lists(st.tuples(st.floats(-50, 99), st.floats(0.01, 100)), min_size=1, max_size=20))
def test_p90_is_what_held_for_nine_tenths(changes: list[tuple[float, float]]) -> None:
    p90 = time_weighted_p90(changes, 0.0, 100.0)
    assert p90 in {price for _, price in changes}
    ordered = sorted(changes)
    ends = [time for time, _ in ordered[1:]] + [100.0]
    spans = [
        (price, max(0.0, end - max(0.0, begin)))
        for (begin, price), end in zip(ordered, ends, strict=True)
    ]
    total = sum(span for _, span in spans)
    assert sum(span for price, span in spans if price <= p90) >= 0.9 * total - 1e-6
    assert sum(span for price, span in spans if price < p90) <= 0.9 * total + 1e-6


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"region": 1}', "null"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ec2.json"
    path.write_text(text)
    assert read_cache(path, Quotes) is None
    assert read_cache(tmp_path / "none.json", Quotes) is None


def test_unreadable_market_falls_to_table() -> None:
    result = Quotes("us-east-1", "", NOW, {}, {}, {"on-demand": "no way", "spot": "nor there"})
    prices = live_catalog(result, MARKETS, ("us-east-1a",))
    table = catalog("us-east-1", MARKETS, ("us-east-1a",))
    assert (prices.offers, prices.source, prices.as_of) == (table.offers, table.source, AS_OF)
    assert prices.warnings[0] == (
        "no live on-demand prices of us-east-1: no way; the table of 2026-07-20 stands in"
    )
