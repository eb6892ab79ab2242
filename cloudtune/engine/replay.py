"""A recorded run as a world: the same events again, and a check that the same commands come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.errors import CloudtuneError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtune.engine.ledger import Entry
    from cloudtune.model.commands import Command
    from cloudtune.model.events import Event


class DivergedError(CloudtuneError):
    """The replayed policy decided otherwise than the recorded one."""


class ReplayWorld:
    """Gives the recorded events in order, and insists on the recorded commands."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = iter(entries)
        self._expected: list[Command] = []
        self._number = 0

    def next_event(self) -> Event | None:
        """Return the next recorded event; None after the last.

        Raises:
            DivergedError: recorded commands of the event before were not asked for.
        """
        if self._expected:
            raise DivergedError(f"entry {self._number}: never asked for {self._expected[0]}")
        entry = next(self._entries, None)
        if entry is None:
            return None
        self._number += 1
        self._expected = list(entry.commands)
        return entry.event

    def apply(self, command: Command) -> None:
        """Check a command against the record.

        Raises:
            DivergedError: it isn't the one that was recorded here.
        """
        expected = self._expected.pop(0) if self._expected else None
        if command != expected:
            raise DivergedError(f"entry {self._number}: recorded {expected}, got {command}")
