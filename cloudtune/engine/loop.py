"""The one loop of a run: event -> policy -> ledger -> world."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from cloudtune.engine.ledger import Ledger
from cloudtune.errors import CloudtuneError
from cloudtune.model.commands import Command, Launch, StartTrial
from cloudtune.model.events import Event
from cloudtune.policy.base import Policy

# Hears each event of a run, and the resulting commands.
EventListener: TypeAlias = Callable[[Event, tuple[Command, ...]], object]

# The maximum number of events at one instant; `_EACH` more for each trial and earlier instance.
_AT_ONCE = 3_000
_EACH = 10


class World(Protocol):
    """Where things happen: simulated or real."""

    def next_event(self) -> Event | None:
        """Wait for the next event and return it; None once the run has ended."""

    def apply(self, command: Command) -> None:
        """Begin to carry out a command, without waiting; its outcome arrives as an event."""


def run(
    policy: Policy,
    world: World,
    ledger: Ledger,
    watch: EventListener = lambda _event, _commands: None,
) -> None:
    """Drive a policy through a world until the run ends.

    Every decision is in the ledger before any of it is carried out. So whatever happens to this
    process, the ledger names everything that may exist.

    Raises:
        CloudtuneError: events and commands follow each other forever, while no time passes.
    """
    instant = _Instant()
    while (event := world.next_event()) is not None:
        instant.take(event)
        commands = policy.handle(event)
        ledger.append(event, commands)
        for command in commands:
            world.apply(command)
        instant.follow(commands)
        watch(event, commands)


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn off the garbage collector during a run in virtual time.

    A run creates almost no reference cycles, and looking for them takes a quarter of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Instant:
    """Counts the events of one instant, to end a run that decides forever while no time passes."""

    def __init__(self) -> None:
        self._trials: set[str] = set()
        self._at = -math.inf
        self._events = self._instances = self._before = 0

    def follow(self, commands: tuple[Command, ...]) -> None:
        """Count the trials and instances that commands start."""
        for command in commands:
            if isinstance(command, StartTrial):
                self._trials.add(command.trial)
            self._instances += isinstance(command, Launch)

    def take(self, event: Event) -> None:
        """Count an event.

        Raises:
            CloudtuneError: there are too many at its time.
        """
        if event.at != self._at:
            self._at = event.at
            self._events = 0
            self._before = self._instances
        self._events += 1
        if self._events > _AT_ONCE + _EACH * (self._before + len(self._trials)):
            raise CloudtuneError(
                f"the run decides forever at one instant: {self._events:,} events at second "
                f"{event.at:g}, the last of them {type(event).__name__}. That is a bug in "
                "cloudtune, or in a strategy, an allocator or a fleet of your own: please report "
                "the command, and meanwhile take another --fleet or --allocator"
            )
