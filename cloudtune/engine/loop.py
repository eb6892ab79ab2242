"""The one loop of a run: event -> policy -> ledger -> world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudtune.commands import Command
    from cloudtune.engine.ledger import Ledger
    from cloudtune.events import Event
    from cloudtune.policy.base import Policy


class World(Protocol):
    """Where things happen: simulated, real or replayed."""

    def next_event(self) -> Event | None:
        """Return what happens next, waiting for it; None once the run has ended."""
        ...

    def apply(self, command: Command) -> None:
        """Begin to carry a command out, without waiting; its outcome comes as an event."""
        ...


def run(
    policy: Policy,
    world: World,
    ledger: Ledger,
    watch: Callable[[Event, tuple[Command, ...]], None] = lambda _event, _commands: None,
) -> None:
    """Drive a policy through a world until the run ends.

    Every decision is on record before any of it is carried out, so that whatever happens to this
    process, the ledger names all that may exist.
    """
    while (event := world.next_event()) is not None:
        commands = policy.handle(event)
        ledger.append(event, commands)
        for command in commands:
            world.apply(command)
        watch(event, commands)
