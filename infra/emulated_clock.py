"""The emulator's time: one clock, which can be moved, for everything that it dates or waits for."""

from __future__ import annotations

import time


class Clock:
    """This machine's time, moved by what `move` was told so far.

    The processes of the machines have this machine's time whatever the clock says: a clock that
    has been moved is also one that disagrees with theirs.
    """

    def __init__(self) -> None:
        self._offset = 0.0

    @property
    def offset(self) -> float:
        """Seconds by which it is ahead of this machine's time."""
        return self._offset

    def now(self) -> float:
        """Return the emulator's time in epoch seconds."""
        return time.time() + self._offset

    def move(self, seconds: float) -> None:
        """Jump forward, or back by negative seconds."""
        self._offset += seconds
