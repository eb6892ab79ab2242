import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.fleet import FleetBook
from tests.builders import offer

CHANGES: dict[str, Any] = {
    "instance": "i-1",
    "launched_at": 5.0,
    "joined": True,
    "surplus": True,
    "released": True,
    "gone_at": 9.0,
}


def answers(book: FleetBook) -> list[object]:
    held = dict(book.held())
    lists = [book.alive(), book.staying(), book.usable()]
    flags = [book.has_pending(), book.returning()]
    money = [book.launches, pytest.approx(book.dollars(20.0))]
    return [[r.intent for r in item] for item in lists] + [held, *flags, *money]


def afresh(book: FleetBook) -> list[object]:
    alive = [r for r in book if not r.over]
    wanted = [r for r in alive if not (r.surplus or r.released)]
    held = {o: sum(r.offer == o for r in wanted) for o in {r.offer for r in wanted}}
    lists = [alive, wanted, [r for r in book if r.usable]]
    unsettled = any(not r.joined or r.released for r in alive)
    returning = any(r.surplus and not r.released for r in alive)
    money = [sum(r.launched for r in book), sum(r.dollars(20.0) for r in book)]
    return [[r.intent for r in item] for item in lists] + [held, unsettled, returning, *money]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([*CHANGES, "request"]))))
def test_fleet_cache_equals_a_full_look(steps: list[tuple[int, str]]) -> None:
    book, offers = FleetBook(), (offer(), offer(1, name="p.1x"))
    for number, what in steps:
        if what == "request" or not book.rented:
            book.request(offers[number % 2], 0.0)
        else:
            setattr(list(book)[number % len(book.rented)], what, CHANGES[what])
        assert answers(book) == afresh(book)


def test_an_instance_is_found_by_its_present_name() -> None:
    book = FleetBook()
    first, second = book.request(offer(), 0.0), book.request(offer(), 0.0)
    first.instance, second.instance = "i-1", "i-2"
    assert (book.of("i-1"), book.of("i-2")) == (first, second)
    first.instance = "i-3"
    assert book.of("i-3") is first
    with pytest.raises(KeyError):
        book.of("i-1")


def test_what_a_book_answered_stays_as_it_was() -> None:
    book = FleetBook()
    first = book.request(offer(), 0.0)
    alive, held = book.alive(), book.held()
    assert book.alive() is alive, "nothing has changed"
    book.request(offer(), 1.0)
    assert (alive, held) == ([first], {offer(): 1})
    assert (len(book.alive()), book.held()) == (2, {offer(): 2})


@pytest.mark.parametrize("seed", ["1", "2"])
def test_offers_match_across_hash_seeds(seed: str) -> None:
    known = offer()
    assert {known: 1}[known] == 1, "now it knows its hash"
    script = (
        "import pickle, sys; from dataclasses import replace\n"
        "found = pickle.load(sys.stdin.buffer)\n"
        "assert found in {replace(found)}"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(known), check=True, env=environment
    )
