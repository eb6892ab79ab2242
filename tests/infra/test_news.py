"""News are kept until they are acknowledged, and settled in any order."""

from __future__ import annotations

import threading

from cloudtune.infra.messages import Done, Gone, Ready
from cloudtune.infra.news import NewsLog, Receipts


def numbers(log: NewsLog, after: int, acknowledged: int = 0) -> list[int]:
    return [news.number for news in log.wait(after, acknowledged, 0.0)]


def test_a_second_listener_gets_all_that_is_not_acknowledged() -> None:
    log = NewsLog()
    for body in (Ready(), Done(), Gone()):
        log.add("t00.1", 0, body)
    assert numbers(log, after=0) == [1, 2, 3]
    assert numbers(log, after=3) == []
    assert numbers(log, after=3, acknowledged=1) == []
    assert numbers(log, after=0) == [2, 3], "as a new controller asks"
    assert log.last == 3


def test_who_waits_is_woken() -> None:
    log, got = NewsLog(), list[int]()
    thread = threading.Thread(target=lambda: got.extend(n.number for n in log.wait(0, 0, 30.0)))
    thread.start()
    log.add("t00.1", 0, Ready())
    thread.join(10)
    assert got == [1]


def test_closing_lets_everybody_go() -> None:
    log = NewsLog()
    thread = threading.Thread(target=log.wait, args=(0, 0, 30.0))
    thread.start()
    log.close()
    thread.join(10)
    assert not thread.is_alive()


def test_acknowledged_is_up_to_where_all_is_settled() -> None:
    receipts = Receipts()
    assert receipts.acknowledged == 0
    for number in (1, 2, 3):
        receipts.receive(number)
    receipts.settle(2)
    assert receipts.acknowledged == 0
    receipts.settle(1)
    assert receipts.acknowledged == 2
    receipts.settle(3)
    assert receipts.acknowledged == receipts.received == 3
