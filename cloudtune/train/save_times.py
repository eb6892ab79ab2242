"""How often a save in the middle of an epoch pays, on machines that may be interrupted.

Saves cost their own time; without them, an interruption loses the work since the last one. If a
machine is lost at rate r and a save takes c seconds, the total is least with saves sqrt(2 c / r)
apart (Young, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 1974).
"""

import math
import time
from dataclasses import dataclass, field

# The least seconds between two saves.
_LEAST = 1.0


def interval(took: float, losses_per_hour: float) -> float:
    """Return the seconds from one save to the next; inf if machines are never lost.

    `took` are the seconds of a save, during which nothing trains.
    """
    if losses_per_hour <= 0:
        return math.inf
    return max(_LEAST, math.sqrt(2 * took * 3600 / losses_per_hour))


@dataclass
class SaveTimes:
    """The last save of a trial and its time; `losses_per_hour` is how often it is lost."""

    losses_per_hour: float = 0.0
    _took: float | None = field(default=None, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def begin(self) -> None:
        """Record that an epoch begins, with the previous one saved."""
        self._since = time.monotonic()

    def saved(self, took: float, *, whole: bool = True) -> None:
        """Record a save and its seconds.

        `whole` is False if training continued during the upload, as at an epoch's end: that time
        counts until a whole save has been measured.
        """
        if whole or self._took is None:
            self._took = took
        self._since = time.monotonic()

    def due(self) -> bool:
        """Whether a save would pay now; False until one has been measured."""
        if self._took is None:
            return False
        return time.monotonic() - self._since >= interval(self._took, self.losses_per_hour)
