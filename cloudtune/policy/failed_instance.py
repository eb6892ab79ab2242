"""An instance whose trial failed is kept for a person to look at (`trial.keep_failed`).

It is one at a time: trials that fail alike say the same, and each instance costs money. It goes on
training other trials; it only isn't returned before its time, not even at the run's end. The run's
limits go first, and so does a person who stops the run.
"""

from cloudtune.model.commands import Command, KeepInstance, SetTimer
from cloudtune.model.fleet import Rented
from cloudtune.policy.base import Noted
from cloudtune.policy.state import RunState

TIMER = "kept"


class FailedInstance:
    """Keeps an instance for `seconds` after a trial failed on it; with 0 it keeps none."""

    def __init__(self, state: RunState, seconds: float) -> None:
        self._state = state
        self._seconds = seconds

    @property
    def kept(self) -> Rented | None:
        """The instance that is kept now; None if there is none."""
        if self._seconds <= 0:
            return None
        return next((rented for rented in self._state.fleet.alive() if rented.kept_until), None)

    def follow(self, noted: Noted) -> list[Command]:
        """Keep the instance of a trial that failed just now, unless one is kept already."""
        if self._seconds <= 0 or not noted.failed_on or self.kept is not None:
            return []
        rented = self._state.fleet.of(noted.failed_on)
        if rented.over or rented.being_lost or rented.released:
            return []
        rented.kept_until = self._state.now + self._seconds
        return [
            KeepInstance(rented.intent, rented.kept_until),
            SetTimer(TIMER, rented.kept_until),
        ]

    def let_go(self) -> None:
        """Let the instance be returned like any other."""
        kept = self.kept
        if kept is not None:
            kept.kept_until = 0.0
