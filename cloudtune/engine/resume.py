"""Taking over a run from a controller that died, with the requests that it had in flight.

The ledger has every decision before it was carried out, so it names everything that may exist. A
fresh policy that is fed its events is where the dead one was. Outstanding requests are repeated,
which is harmless if they were carried out already: each command names what it creates.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from cloudtune.engine.ledger import DAMAGED, Entry, Ledger
from cloudtune.engine.loop import EventListener, World, run
from cloudtune.engine.record.timeline import Timeline
from cloudtune.errors import CloudtuneError
from cloudtune.model.commands import Launch, StartTrial
from cloudtune.model.events import Event, first_event
from cloudtune.model.plans import Limits
from cloudtune.policy.base import Policy


@dataclass(frozen=True)
class OpenSession:
    """A session whose end wasn't reported; `start.until_epoch` is how far it may train now."""

    start: StartTrial
    stopping: bool = False


@dataclass
class InFlight:
    """Launches, sessions and timers that a run has requested and that haven't ended, in order.

    `launches` are by intent; `instances` has the known instance ids, `joined` the intents whose
    instances take trials, `released` those that were returned, `requested` the times. `begun` says
    whether the ledger has the start of the run. `at` is the run second of the last event: whatever
    a clock says, no event may come before it. `within` are the new limits of a resumed run; `more`
    is how many trials it adds.
    """

    launches: dict[str, Launch]
    instances: dict[str, str]
    joined: set[str]
    released: set[str]
    sessions: dict[str, OpenSession]
    timers: dict[str, float]
    begun: bool
    ended: bool
    at: float
    within: Limits | None = None
    more: int = 0
    requested: Mapping[str, float] = field(default_factory=dict)

    def first(self, at: float) -> Event:
        """Return the first event of a world, at that time: how the run continues."""
        within = None if self.within is None else (self.within.deadline, self.within.budget)
        return first_event(at, begun=self.begun, within=within, more=self.more)

    @classmethod
    def of(cls, timeline: Timeline) -> "InFlight":
        """Return what a run has in flight, as far as it was read."""
        open_ones = [
            instance for instance in timeline.instances.values() if instance.gone_at is None
        ]
        return cls(
            launches={instance.intent: instance.launch for instance in open_ones},
            instances={
                instance.intent: instance.instance
                for instance in open_ones
                if instance.instance is not None
            },
            joined={instance.intent for instance in open_ones if instance.joined},
            released={instance.intent for instance in open_ones if instance.released},
            sessions={
                name: OpenSession(
                    replace(session.start, until_epoch=session.until), session.stopping is not None
                )
                for name, session in timeline.sessions.items()
                if session.ending is None
            },
            timers=dict(timeline.timers),
            begun=timeline.began is not None,
            ended=timeline.ended is not None,
            at=timeline.at,
            requested={instance.intent: instance.requested_at for instance in open_ones},
        )


class ResumableWorld(World, Protocol):
    """A world that another controller has acted upon before."""

    def take_over(self, in_flight: InFlight) -> None:
        """Begin with what that controller left behind; the first event is `InFlight.first`.

        Whatever has happened since arrives as events, some of it for a second time.
        """


def replay(policy: Policy, entries: Iterable[Entry]) -> InFlight:
    """Bring a fresh policy to where a ledger ends; return what is in flight there.

    Raises:
        CloudtuneError: the policy decides differently from the recorded one, so it can't continue
            the run.
    """
    timeline = Timeline()
    for number, entry in enumerate(entries, start=2):
        try:
            commands = policy.handle(entry.event)
            timeline.read(entry)
        except DAMAGED as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise CloudtuneError(
                f"ledger line {number}: not what a run of this version wrote, or damaged "
                f"({what[:200]})"
            ) from error
        if commands != entry.commands:
            raise CloudtuneError(
                f"ledger line {number}: this version of cloudtune decides otherwise than the one "
                "that wrote it, so it can't go on with the run. Resume with that version, or give "
                "everything back with `cloudtune gc`"
            )
    return InFlight.of(timeline)


def resume(
    policy: Policy,
    world: ResumableWorld,
    ledger: Ledger,
    in_flight: InFlight,
    watch: EventListener = lambda _event, _commands: None,
) -> None:
    """Drive a policy from where its ledger ended until the run ends."""
    if in_flight.ended and in_flight.within is None:
        return
    world.take_over(in_flight)
    run(policy, world, ledger, watch)
