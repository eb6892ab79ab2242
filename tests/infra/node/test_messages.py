"""Messages are kept until they are acknowledged, and settled in any order."""

import threading

from cloudtune.infra.node.messages import Acks, Done, Gone, Outbox, Ready


def numbers(log: Outbox, after: int, acknowledged: int = 0) -> list[int]:
    return [item.number for item in log.wait(after, acknowledged, 0.0)]


def test_second_listener_gets_unacknowledged_messages() -> None:
    log = Outbox()
    for body in (Ready(), Done(), Gone()):
        log.add("t00.1", 0, body)
    assert numbers(log, after=0) == [1, 2, 3]
    assert numbers(log, after=3) == []
    assert numbers(log, after=3, acknowledged=1) == []
    assert numbers(log, after=0) == [2, 3], "as a new controller asks"
    assert log.last == 3


def test_who_waits_is_woken() -> None:
    log, got = Outbox(), list[int]()
    thread = threading.Thread(target=lambda: got.extend(n.number for n in log.wait(0, 0, 30.0)))
    thread.start()
    log.add("t00.1", 0, Ready())
    thread.join(60)
    assert got == [1]


def test_closing_lets_everybody_go() -> None:
    log = Outbox()
    thread = threading.Thread(target=log.wait, args=(0, 0, 30.0))
    thread.start()
    log.close()
    thread.join(60)
    assert not thread.is_alive()


def test_acknowledged_is_up_to_where_all_is_settled() -> None:
    acks = Acks()
    assert acks.acknowledged == 0
    for number in (1, 2, 3):
        acks.receive(number)
    acks.settle(2)
    assert acks.acknowledged == 0
    acks.settle(1)
    assert acks.acknowledged == 2
    acks.settle(3)
    assert acks.acknowledged == acks.received == 3
