"""How often a save in the middle of an epoch pays, on machines that may be taken back.

Saving often costs its time, saving seldom what is lost since the last one. Where a machine is lost
r times an hour and a save takes c seconds, both together are least if saves are sqrt(2 c / r) apart
(Young, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 1974).
"""

import math
import time
from dataclasses import dataclass, field

# Seconds: nothing is saved more often.
_LEAST = 1.0


def interval(took: float, losses_per_hour: float) -> float:
    """Return the seconds from one save to the next; inf where nothing is lost.

    `took` are the seconds of a save, during which nothing trains.
    """
    if losses_per_hour <= 0:
        return math.inf
    return max(_LEAST, math.sqrt(2 * took * 3600 / losses_per_hour))


@dataclass
class SaveTimes:
    """When a trial was saved last and what that took; `losses_per_hour` is how often it is lost."""

    losses_per_hour: float = 0.0
    _took: float | None = field(default=None, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def begin(self) -> None:
        """Take note that an epoch begins: the one before it is saved."""
        self._since = time.monotonic()

    def saved(self, took: float, *, whole: bool = True) -> None:
        """Take note of a save and its seconds.

        Not `whole` where training went on while the files went to the storage, as at an epoch's
        end: that counts until a save has been measured as a whole.
        """
        if whole or self._took is None:
            self._took = took
        self._since = time.monotonic()

    def due(self) -> bool:
        """Whether a save would pay now; not before one has been measured."""
        if self._took is None:
            return False
        return time.monotonic() - self._since >= interval(self._took, self.losses_per_hour)
