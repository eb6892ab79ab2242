"""One piece of work at a time, waited for from any thread."""

import threading

import pytest

from cloudtune.train.session import Deliveries


def test_who_waits_as_work_begins_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries, start = Deliveries(), threading.Thread.start
    waited: list[int] = []

    def start_late(thread: threading.Thread) -> None:
        deliveries.wait()  # as another thread does just now
        waited.append(len(done))
        start(thread)

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", start_late)
    deliveries.begin(lambda: done.append(1))
    deliveries.begin(lambda: done.append(2))
    deliveries.wait()
    assert done == [1, 2]
    assert waited == [0, 1], "what was begun before is still waited for"


def test_waiting_has_a_limit() -> None:
    deliveries, may_end, done = Deliveries(), threading.Event(), threading.Event()

    def work() -> None:
        assert may_end.wait(60)
        done.set()

    deliveries.wait()
    deliveries.begin(work)
    deliveries.wait(0.01)
    assert not done.is_set()
    may_end.set()
    deliveries.wait()
    assert done.is_set()
