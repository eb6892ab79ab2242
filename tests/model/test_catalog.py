import pytest

from cloudtune.errors import UsageError
from cloudtune.model.catalog import Catalog, InstanceType, Offer

T4X4 = InstanceType("g4dn.12xlarge", 4, "T4", 65536, 48, 196608)
OFFER = Offer(T4X4, "on-demand", "us-east-1", 3.912)


def test_the_charge_is_by_the_second_with_a_minimum() -> None:
    assert OFFER.charge(0.0) == OFFER.charge(60.0) == pytest.approx(0.0652)
    assert OFFER.charge(3600.0) == pytest.approx(3.912)
    assert OFFER.charge(61.0) == pytest.approx(3.912 * 61 / 3600)


def test_an_offer_is_found_by_its_type() -> None:
    catalog = Catalog((OFFER,), "a table", "2026-01-01")
    assert catalog.offer("g4dn.12xlarge") is OFFER
    assert OFFER.gpus == 4
    assert str(OFFER) == "g4dn.12xlarge on-demand $3.912/h"
    with pytest.raises(UsageError, match=r"'p9.huge'; known: g4dn.12xlarge"):
        catalog.offer("p9.huge")
