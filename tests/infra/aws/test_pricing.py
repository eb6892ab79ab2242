"""The table of ours, the offers made of it, and how they are looked up."""

import math
import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.errors import UsageError
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import Catalog

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


def test_it_has_every_accelerated_type_once() -> None:
    types = pricing.instance_types()
    assert len(types) == len(pricing.listings()) == 94
    assert types["p4d.24xlarge"].gpus == 8
    assert types["p4d.24xlarge"].gpu == "a100"
    assert types["p4d.24xlarge"].gpu_memory_mib == 40960
    assert types["p4d.24xlarge"].network_mbps == 400_000
    assert types["inf2.24xlarge"].gpus == 6
    assert {kind.gpu_maker for kind in types.values()} == {
        "amd", "aws", "habana", "nvidia", "qualcomm",
    }  # fmt: skip


def test_spot_price_is_below_on_demand() -> None:
    for listing in pricing.listings():
        assert (listing.spot is None) == (listing.band == "")
        if listing.spot is not None and listing.on_demand is not None:
            assert 0.1 * listing.on_demand < listing.spot < listing.on_demand


def test_a_band_becomes_its_middles_monthly_loss_rate() -> None:
    assert pricing.interruptions_per_hour("<5%") == pytest.approx(-math.log(0.975) / 730.5)
    assert 1 - math.exp(-pricing.interruptions_per_hour("10-15%") * 730.5) == pytest.approx(0.125)
    assert pricing.interruptions_per_hour(">20%") == pytest.approx(3.938e-4, rel=1e-3)


def test_priced_types_are_on_demand() -> None:
    offers = pricing.catalog("us-east-1").offers
    missing = set(pricing.instance_types()) - {offer.instance_type.name for offer in offers}
    assert {name for name in missing if name.startswith(("g6f", "gr6f", "p5e"))} == {
        "p5e.48xlarge",  # no price
        "g6f.large", "g6f.xlarge", "g6f.2xlarge", "g6f.4xlarge", "gr6f.4xlarge",  # shares
    }  # fmt: skip
    others = {name.partition(".")[0] for name in missing} - {"g6f", "gr6f", "p5e"}
    assert others == {"dl1", "dl2q", "inf1", "inf2", "trn1", "trn1n", "trn2", "g4ad", "g5g"}
    assert {offer.zone for offer in offers} == {""}
    assert {offer.interruptions_per_hour for offer in offers} == {0.0}


def test_offers_have_one_market_and_zone() -> None:
    prices = pricing.catalog("us-east-1", pricing.MARKETS, ZONES)
    mine = [o for o in prices.offers if o.instance_type.name == "g4dn.xlarge"]
    assert [(o.market, o.zone) for o in mine] == [(m, z) for m in pricing.MARKETS for z in ZONES]
    assert [o.usd_per_hour for o in mine] == pytest.approx([0.526] * 3 + [0.526 * 0.36] * 3)
    assert mine[-1].interruptions_per_hour == pricing.interruptions_per_hour("15-20%")
    assert len(set(prices.offers)) == len(prices.offers)


def test_ec2_bills_seconds_after_a_minute() -> None:
    offer = pricing.catalog("us-east-1").offer("g4dn.12xlarge")
    assert offer.charge(1.0) == pytest.approx(3.912 / 60)
    assert offer.charge(60.2) == pytest.approx(3.912 * 61 / 3600)


def test_other_regions_prices_are_marked() -> None:
    assert "used for" not in pricing.catalog("us-east-1").source
    abroad = pricing.catalog("eu-west-1", pricing.MARKETS)
    assert abroad.source.endswith("; used for eu-west-1, where prices differ")
    assert "mid-2025" in abroad.source
    assert {offer.region for offer in abroad.offers} == {"eu-west-1"}
    assert abroad.as_of == pricing.AS_OF


PRICES = pricing.catalog("us-east-1", pricing.MARKETS, ZONES)


def names(prices: Catalog, *patterns: str) -> list[str]:
    result = prices.matching(patterns, ("on-demand",), ZONES[:1])
    return [offer.instance_type.name for offer in result]


def test_patterns_are_names_and_globs() -> None:
    assert names(PRICES, "p3.8xlarge", "p3.*") == ["p3.8xlarge", "p3.2xlarge", "p3.16xlarge"]
    assert names(PRICES, "g4dn.[24]xlarge") == ["g4dn.2xlarge", "g4dn.4xlarge"]
    assert len(PRICES.matching(["p4d*"], pricing.MARKETS)) == 2 * 2 * 3
    assert {o.zone for o in PRICES.matching(["p4d*"], pricing.MARKETS, ZONES[1:])} == set(ZONES[1:])


def test_the_nearest_name_is_given() -> None:
    with pytest.raises(UsageError, match=r"'g4dn.12xlrge'.* Did you mean 'g4dn.12xlarge'\?"):
        PRICES.matching(["p3.8xlarge", "g4dn.12xlrge"], pricing.MARKETS)
    with pytest.raises(UsageError, match=r"Did you mean 'p4d.24xlarge'\?"):
        PRICES.offer("p4d.24large")


def test_type_without_offer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no spot price is known for instance type 'g7.2xlarge'"):
        PRICES.matching(["g7.2xlarge"], ("spot",))
    with pytest.raises(UsageError, match=r"'g5\.xlarge' in us-east-1z"):
        PRICES.offer("g5.xlarge", zone="us-east-1z")
    assert len(PRICES.matching(["g7.2xlarge"], pricing.MARKETS)) == 3


@given(st.dates(date(1970, 1, 1), date(2200, 1, 1)), st.dates(date(1970, 1, 1), date(2200, 1, 1)))
def test_age_is_what_the_calendar_says(then: date, today: date) -> None:
    prices = Catalog((), "", then.isoformat())
    assert prices.age_days(today.isoformat()) == max(0, (today - then).days)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("g4ad.xlarge", "its accelerators are amd's, and trials train on NVIDIA's GPUs"),
        ("dl1.24xlarge", "its accelerators are habana's"),
        ("g5g.*", "its cores are ARM's"),
        ("g6f.large", "it has only a part of a GPU"),
    ],
)
def test_unusable_type_is_refused(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"instance type '{re.escape(name)}' can't be used: {why}"):
        pricing.catalog("us-east-1").matching((name,), ("on-demand",))


def test_disk_and_address_have_aws_prices() -> None:
    assert pricing.added_usd_per_hour(720.0) == pytest.approx(0.08 + 0.005)
    assert pricing.added_usd_per_hour(100.0) == pytest.approx(0.0161, abs=1e-4)
    assert pricing.added_usd_per_hour(720.0, 0.0952) == pytest.approx(0.0952 + 0.005)
