"""Which GPUs are free, as instances come and go and trials sit and move."""

from __future__ import annotations

from cloudtune.seats import Seats
from cloudtune.trial import Slice
from tests.builders import offer

FOUR = offer(4)
ONE = offer(1, name="s.1x")


def seats(**usable: int) -> Seats:
    """Return seats on instances of so many GPUs."""
    found = Seats()
    found.follow({name: FOUR if gpus == 4 else ONE for name, gpus in usable.items()}, ())
    return found


def test_the_fullest_instance_that_fits_is_taken() -> None:
    found = seats(a=4, b=4)
    found.take([Slice("b", 1.0)])
    assert found.find(2.0) == (FOUR, (Slice("b", 2.0),))
    assert found.find(4.0) == (FOUR, (Slice("a", 4.0),))
    assert (found.gpus, found.free_gpus) == (8, 7.0)


def test_a_seat_that_is_found_stays_free() -> None:
    found = seats(a=4)
    assert found.find(4.0) == found.find(4.0)


def test_a_trial_wider_than_an_instance_takes_whole_ones() -> None:
    found = seats(a=4, b=4)
    assert found.find(8.0) == (FOUR, (Slice("a", 4.0), Slice("b", 4.0)))
    found.take([Slice("a", 0.5)])
    assert found.find(8.0) is None


def test_three_thirds_fill_a_gpu() -> None:
    found = seats(a=1)
    for _ in range(3):
        seat = found.find(1 / 3)
        assert seat is not None
        found.take(seat[1])
    assert found.find(1 / 3) is None
    found.give([Slice("a", 1 / 3)])
    assert found.find(1 / 3) is not None


def test_only_offers_that_have_the_width_are_looked_at() -> None:
    found = Seats({FOUR: {2.0}, ONE: {1.0}})
    found.follow({"a": FOUR, "b": ONE}, ())
    assert found.find(1.0) == (ONE, (Slice("b", 1.0),))
    assert found.find(4.0) is None


def test_the_first_offer_is_preferred_and_the_others_will_do() -> None:
    found = seats(a=4, b=1)
    assert found.find(1.0, ONE) == (ONE, (Slice("b", 1.0),))
    found.take([Slice("b", 1.0)])
    assert found.find(1.0, ONE) == (FOUR, (Slice("a", 1.0),))


def test_what_sat_on_an_instance_that_is_gone_is_forgotten() -> None:
    found = seats(a=4, b=4)
    both = (Slice("a", 4.0), Slice("b", 4.0))
    found.take(both)
    found.follow({"b": FOUR}, both)
    assert (found.gpus, found.free_gpus) == (4, 0.0)
    found.give(both)
    assert (found.gpus, found.free_gpus) == (4, 4.0)


def test_a_new_instance_counts_what_sits_on_it_already() -> None:
    found = seats(a=4)
    found.follow({"a": FOUR, "b": FOUR}, [Slice("b", 3.0)])
    assert found.free_gpus == 5.0


def test_a_trial_that_grows_reserves_what_it_needs_besides() -> None:
    found = seats(a=4)
    own = (Slice("a", 1.0),)
    found.take(own)
    assert found.move(4.0, FOUR, own) == ((FOUR, (Slice("a", 4.0),)), (Slice("a", 3.0),))
    assert found.free_gpus == 0.0


def test_a_trial_that_shrinks_where_it_is_reserves_nothing() -> None:
    found = seats(a=4)
    own = (Slice("a", 4.0),)
    found.take(own)
    assert found.move(2.0, FOUR, own) == ((FOUR, (Slice("a", 2.0),)), ())
    assert found.free_gpus == 0.0


def test_without_room_nothing_is_reserved() -> None:
    found = seats(a=4)
    own, other = (Slice("a", 1.0),), (Slice("a", 2.0),)
    found.take((*own, *other))
    assert found.move(4.0, FOUR, own) is None
    assert found.free_gpus == 1.0


def test_a_trial_leaves_an_instance_that_is_to_go() -> None:
    found = seats(a=4, b=4)
    own = (Slice("a", 2.0),)
    found.take(own)
    found.follow({"b": FOUR}, own)
    assert found.move(2.0, FOUR, own) == ((FOUR, (Slice("b", 2.0),)), (Slice("b", 2.0),))
    assert found.free_gpus == 2.0
