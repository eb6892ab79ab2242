import pytest

from cloudtune.model.fleet import FleetBook
from tests.builders import offer


def test_an_instance_costs_a_minute_at_least() -> None:
    book = FleetBook()
    rented = book.request(offer(usd_per_hour=36.0), at=0.0)
    rented.instance, rented.launched_at = "i-1", 5.0
    assert rented.dollars(10.0) == pytest.approx(0.60)
    assert rented.dollars(65.0) == pytest.approx(0.60)
    assert rented.dollars(105.0) == pytest.approx(1.00)
    rented.gone_at = 85.0
    assert rented.dollars(500.0) == pytest.approx(0.80), "it bills no longer"


def test_an_unanswered_request_counts_as_launched_at_once() -> None:
    rented = FleetBook().request(offer(), at=10.0)
    assert rented.dollars(20.0) == pytest.approx(0.60)
    assert rented.dollars(110.0) == pytest.approx(1.00)
    rented.gone_at = 21.0
    assert rented.dollars(1000.0) == 0.0, "refused: it never existed"


def test_what_is_alive_wanted_and_usable() -> None:
    book = FleetBook()
    asked, joined, surplus, released, gone = (book.request(offer(), 0.0) for _ in range(5))
    for rented in (joined, surplus, released, gone):
        rented.joined = True
    surplus.surplus = released.released = True
    gone.gone_at = 9.0
    assert [r.intent for r in book] == ["i000", "i001", "i002", "i003", "i004"]
    assert book.alive() == [asked, joined, surplus, released]
    assert book.staying() == [asked, joined]
    assert book.usable() == [joined]
    assert book["i003"] is released


def test_what_is_to_stay_is_counted_by_offer() -> None:
    book, other = FleetBook(), offer(1, name="p.1x")
    book.request(other, 0.0).surplus = True
    for item in (offer(), other, offer()):
        book.request(item, 0.0)
    assert book.held() == {offer(): 2, other: 1}


def test_a_launch_counts_unless_it_was_refused() -> None:
    book = FleetBook()
    asked, refused, launched = (book.request(offer(), at=float(n)) for n in range(3))
    launched.launched_at, launched.gone_at = 5.0, 9.0
    assert (asked.began_at, launched.began_at) == (0.0, 5.0)
    assert book.launches == 3, "what isn't answered may exist"
    refused.gone_at = 2.0
    assert book.launches == 2


def test_the_bill_is_the_sum() -> None:
    book = FleetBook()
    for name in ("i-1", "i-2"):
        rented = book.request(offer(), 0.0)
        rented.instance, rented.launched_at = name, 0.0
    assert book.dollars(100.0) == pytest.approx(2.00)
