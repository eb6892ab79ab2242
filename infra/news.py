"""News by number: kept until they are acknowledged, and waited for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cloudtune.infra.messages import News

if TYPE_CHECKING:
    from cloudtune.infra.messages import Body, Interruption, Remark


class NewsLog:
    """What an agent has to tell; any thread may add to it, or wait for more."""

    def __init__(self) -> None:
        self._kept: list[News] = []
        self.last = 0
        """The number of the youngest."""
        self._closed = False
        self._changed = threading.Condition()

    def add(self, session: str, rank: int, body: Body | Interruption | Remark) -> int:
        """Add news; returns their number."""
        with self._changed:
            self.last += 1
            self._kept.append(News(self.last, session, rank, body))
            self._changed.notify_all()
            return self.last

    def wait(self, after: int, acknowledged: int, seconds: float) -> list[News]:
        """Return those after a number, once there are any, or none after so long.

        Those up to the acknowledged number are dropped.
        """
        with self._changed:
            self._kept = [news for news in self._kept if news.number > acknowledged]
            self._changed.wait_for(lambda: self._closed or self.last > after, seconds)
            return [news for news in self._kept if news.number > after]

    def close(self) -> None:
        """Let everybody who waits go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Receipts:
    """Up to which number news have been dealt with, where that happens in any order."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.received = 0
        """The number of the youngest that was received."""

    def receive(self, number: int) -> None:
        """Take news in."""
        self._open.add(number)
        self.received = max(self.received, number)

    def settle(self, number: int) -> None:
        """Note that news have been dealt with."""
        self._open.discard(number)

    @property
    def acknowledged(self) -> int:
        """The number up to which all have been."""
        return min(self._open, default=self.received + 1) - 1
