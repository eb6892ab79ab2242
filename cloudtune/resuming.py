"""Taking a run over from a controller that died: what it had asked for without hearing the end.

The ledger has every decision before it was carried out, so it names all that may exist. A fresh
policy that is fed its events stands where the dead one stood; what is outstanding is asked for once
more, which is harmless where it was carried out already: each command names what it makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, assert_never

from cloudtune.commands import (
    EndRun,
    ExtendTrial,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.engine import World, run
from cloudtune.errors import CloudtuneError
from cloudtune.events import (
    EpochDone,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    InterruptionNotice,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RunResumed,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.ledger import Entry, Ledger
    from cloudtune.policy import Policy


@dataclass(frozen=True)
class OpenSession:
    """A session whose end wasn't heard of; `start` has the epoch that it may train to by now."""

    start: StartTrial
    stopping: bool = False


@dataclass
class Outstanding:
    """What a run has asked for and hasn't heard the end of, by name and in order.

    Of the launches, `instances` has the ids that are known, `joined` are those that take trials,
    `released` those that were given back. `begun`: it was told of its begin.
    `at`: when it last heard anything; whatever a clock says, nothing comes before that.
    """

    launches: dict[str, Launch] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    sessions: dict[str, OpenSession] = field(default_factory=dict)
    timers: dict[str, float] = field(default_factory=dict)
    begun: bool = False
    ended: bool = False
    at: float = 0.0

    def hear(self, event: Event) -> None:
        """Take an event down: some are the end of what was asked for."""
        self.at = event.at
        match event:
            case InstanceLaunched():
                self.instances[event.intent] = event.instance
            case NodeJoined():
                self.joined.add(event.intent)
            case NodeLost():
                self.joined.discard(event.intent)
            case InstanceGone() | LaunchFailed():
                self._close(event.intent)
            case TrialStopped() | TrialFailed() | TrialLost():
                self.sessions.pop(event.session, None)
            case RunStarted():
                self.begun = True
            case TimerFired():
                self.timers.pop(event.name, None)
            case TrialStarted() | EpochDone() | InterruptionNotice() | Interrupted():
                pass
            case RunResumed():
                pass
            case _:
                assert_never(event)

    def _close(self, intent: str) -> None:
        self.launches.pop(intent, None)
        self.instances.pop(intent, None)
        self.joined.discard(intent)
        self.released.discard(intent)

    def follow(self, command: Command) -> None:
        """Take a command down."""
        match command:
            case Launch():
                self.launches[command.intent] = command
            case Release():
                self.released.add(command.intent)
            case StartTrial():
                self.sessions[command.session] = OpenSession(command)
            case ExtendTrial() | StopTrial():
                self._change(command)
            case SetTimer():
                self.timers[command.name] = command.at
            case EndRun():
                self.ended = True
            case _:
                assert_never(command)

    def _change(self, command: ExtendTrial | StopTrial) -> None:
        known = self.sessions.get(command.session)
        if known is None:
            return
        if isinstance(command, StopTrial):
            self.sessions[command.session] = replace(known, stopping=True)
        else:
            start = replace(known.start, until_epoch=command.until_epoch)
            self.sessions[command.session] = replace(known, start=start)


class ResumableWorld(World, Protocol):
    """A world that another controller has acted upon before."""

    def take_over(self, outstanding: Outstanding) -> None:
        """Begin with what that one has left; `RunResumed` is the first event, if the run had begun.

        Whatever has happened to it since is told as events, be it for a second time.
        """
        ...


def replayed(policy: Policy, entries: Iterable[Entry]) -> Outstanding:
    """Bring a fresh policy to where a ledger ends; returns what is outstanding.

    Raises:
        CloudtuneError: it decides otherwise than the recorded one did, so it can't go on for it.
    """
    outstanding = Outstanding()
    for number, entry in enumerate(entries, start=2):
        commands = policy.handle(entry.event)
        if commands != entry.commands:
            raise CloudtuneError(
                f"ledger line {number}: this version of cloudtune decides otherwise than the one "
                "that wrote it, so it can't go on with the run. Resume with that version, or give "
                "everything back with `cloudtune gc`"
            )
        outstanding.hear(entry.event)
        for command in commands:
            outstanding.follow(command)
    return outstanding


def resume(
    policy: Policy,
    world: ResumableWorld,
    ledger: Ledger,
    outstanding: Outstanding,
    watch: Callable[[Event, tuple[Command, ...]], None] = lambda _event, _commands: None,
) -> None:
    """Drive a policy on from where its ledger ended, until the run ends."""
    if outstanding.ended:
        return
    world.take_over(outstanding)
    run(policy, world, ledger, watch)
