"""A simulated cloud that outlives its controller, which dies at a boundary of our choice.

A boundary is where a real controller could be killed: before and after each event is taken, each
decision is put on record, and each command is carried out. What the cloud and the trials do goes on
without it, but for what a lease ends; the next controller begins from the ledger alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cloudtune.engine.ledger import Entry
from cloudtune.engine.loop import run
from cloudtune.engine.resume import replay, resume
from cloudtune.model.commands import ExtendTrial, Launch, Release, SetTimer, StopTrial
from cloudtune.model.events import (
    EpochDone,
    InstanceGone,
    RunResumed,
    TimerFired,
    TrialLost,
    TrialStopped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cloudtune.engine.resume import InFlight
    from cloudtune.engine.simulator import SimWorld
    from cloudtune.model.commands import Command
    from cloudtune.model.events import Event
    from cloudtune.policy.run import RunPolicy

# Taken over so shortly before its leases end (a tick, and the drain), a run brakes at once.
_TOO_LATE = 7.0


class KilledError(Exception):
    """The controller died here."""


@dataclass(frozen=True)
class Kill:
    """A death of the controller: at which boundary, for how long no controller runs.

    `workers`: the trials die with it.
    """

    boundary: int
    away: float
    workers: bool = False


@dataclass
class Fuse:
    """Counts boundaries, and kills the controller at some of them, one after the other."""

    kills: list[Kill]
    passed: int = 0

    def burn(self) -> None:
        """Pass a boundary.

        Raises:
            KilledError: not this one.
        """
        self.passed += 1
        if self.kills and self.passed >= self.kills[0].boundary:
            raise KilledError


class OutlivingCloud:
    """The world and the ledger of a run, over the deaths of its controllers."""

    def __init__(self, world: SimWorld, fuse: Fuse, deadline: float | None) -> None:
        self.world = world
        self.fuse = fuse
        self._deadline = deadline
        self.entries: list[Entry] = []
        self.reported: dict[tuple[str, int], float] = {}
        self._missed: list[Event] = []
        self._taken: Event | None = None

    # ---- the world -----------------------------------------------------------------------

    def next_event(self) -> Event | None:
        """Return what wasn't delivered yet, and then what happens next."""
        if self._missed:
            event: Event | None = replace(self._missed.pop(0), at=self.world.now)
        else:
            event = self.world.next_event()
        self._taken = event
        self._count(event)
        self.fuse.burn()
        return event

    def apply(self, command: Command) -> None:
        """Carry a command out, if the controller lives to ask for it."""
        self.fuse.burn()
        # Of a session that never began, and is reported lost, nothing is to be stopped.
        if not (isinstance(command, StopTrial) and command.session not in self.world.sessions):
            self.world.apply(command)
        if isinstance(command, Launch) and self._deadline is not None:
            self._end([command.intent], self._deadline)
        self.fuse.burn()

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Put a decision on record, if the controller lives to do so."""
        self.fuse.burn()
        self.entries.append(Entry(event, commands))
        self._taken = None
        self.fuse.burn()

    def _count(self, event: Event | None) -> None:
        if isinstance(event, EpochDone):
            self.reported.setdefault((event.session, event.epoch), event.at)

    # ---- death and after -----------------------------------------------------------------

    def bury(self, kill: Kill, safe_until: float) -> None:
        """Let time go by without a controller; leases end all when its limits would be passed."""
        unheard = [self._taken] if self._taken is not None else []
        self._missed = [e for e in (*unheard, *self._missed) if not isinstance(e, TimerFired)]
        self._taken = None
        back = self.world.now + kill.away
        self._pass(min(safe_until, back))
        if safe_until < back + _TOO_LATE:
            self._end(self.world.alive(), max(safe_until, self.world.now))
        self._pass(back)

    def _pass(self, until: float) -> None:
        missed = self.world.pass_without(until)
        for event in missed:
            self._count(event)
        self._missed += missed

    def _end(self, intents: Iterable[str], when: float) -> None:
        """Have leases end; none ever goes past the deadline."""
        for intent in intents:
            at = max(when, self.world.intents[intent].launched_at)
            self.world.schedule(InstanceGone(at, intent, at, "its lease ended"))

    def take_over(self, in_flight: InFlight) -> None:
        """Ask for all that is outstanding once more, as a real world does."""
        instances = in_flight.instances
        commands: list[Command] = [span.launch for span in instances.values()]
        commands += [Release(intent) for intent in sorted(instances) if instances[intent].released]
        for name, known in in_flight.sessions.items():
            commands += [known.start_now, ExtendTrial(name, known.until)]
            commands += [StopTrial(name)] if known.stopping is not None else []
        due = {name: max(at, self.world.now) for name, at in in_flight.timers.items()}
        commands += [SetTimer(name, at) for name, at in due.items()]
        begin: list[Event] = [RunResumed(self.world.now)] if in_flight.begun else []
        # What trials have reported comes first: it is in the storage, whatever became of them.
        self._missed.sort(key=lambda event: not isinstance(event, EpochDone))
        self._missed = [*begin, *self._missed]
        for command in commands:
            self.apply(command)

    def lose_workers(self, in_flight: InFlight) -> None:
        """Let every session be gone: those that were to stop have stopped, the others are lost."""
        lost: list[Event] = []
        for name, known in in_flight.sessions.items():
            at, gone = self.world.now, "its worker died with the controller"
            stopped = TrialStopped(at, name)
            dead = TrialLost(at, name, gone, blameless=True)
            lost.append(dead if known.stopping is None else stopped)
            self.world.drop(name)
        self._missed = [*lost, *self._missed]  # before the policy wants any of them stopped


@dataclass
class Survived:
    """A run that came to its end in spite of all; `deaths` of its controllers on the way."""

    policy: RunPolicy
    cloud: OutlivingCloud
    deaths: int = 0
    entries: Sequence[Entry] = field(default_factory=tuple)


def survive(make: Callable[[], RunPolicy], world: SimWorld, kills: Sequence[Kill]) -> Survived:
    """Run to the end, with a new controller from the ledger after each death."""
    fuse = Fuse(sorted(kills, key=lambda kill: kill.boundary))
    policy, deaths, left = make(), 0, None
    cloud = OutlivingCloud(world, fuse, policy.limits.deadline)
    while True:
        try:
            if left is None:
                run(policy, cloud, cloud)
            else:
                resume(policy, cloud, cloud, left)
        except KilledError:
            kill, deaths = fuse.kills.pop(0), deaths + 1
            cloud.bury(kill, policy.safe_until())
            policy = make()
            left = replay(policy, cloud.entries)
            if kill.workers:
                cloud.lose_workers(left)
                left.sessions.clear()
        else:
            return Survived(policy, cloud, deaths, tuple(cloud.entries))
