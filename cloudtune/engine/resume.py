"""Taking over a run from a controller that died, with the requests that it had in flight.

The ledger has every decision before it was carried out, so it names everything that may exist. A
fresh policy that is fed its events is where the dead one was. Outstanding requests are repeated,
which is harmless if they were carried out already: each command names what it creates.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cloudtune.engine.ledger import DAMAGED, Entry, Ledger
from cloudtune.engine.loop import EventListener, World, run
from cloudtune.engine.record.timeline import InstanceSpan, SessionSpan, Timeline
from cloudtune.errors import CloudtuneError
from cloudtune.model.events import Event, first_event
from cloudtune.model.plans import Limits
from cloudtune.policy.base import Policy


@dataclass
class InFlight:
    """What a run has requested that hasn't ended, in order: instances, sessions and timers.

    `begun` says whether the ledger has the start of the run. `at` is the run second of the last
    event: whatever a clock says, no event may come before it. `within` are the new limits of a
    resumed run; `more` is how many trials it adds.
    """

    instances: dict[str, InstanceSpan]
    sessions: dict[str, SessionSpan]
    timers: dict[str, float]
    begun: bool
    ended: bool
    at: float
    within: Limits | None = None
    more: int = 0

    def first(self, at: float) -> Event:
        """Return the first event of a world, at that time: how the run continues."""
        within = None if self.within is None else (self.within.deadline, self.within.budget)
        return first_event(at, begun=self.begun, within=within, more=self.more)

    @classmethod
    def of(cls, timeline: Timeline) -> "InFlight":
        """Return what a run has in flight, as far as it was read."""
        return cls(
            instances={k: i for k, i in timeline.instances.items() if i.gone_at is None},
            sessions={k: s for k, s in timeline.sessions.items() if s.ending is None},
            timers=dict(timeline.timers),
            begun=timeline.began is not None,
            ended=timeline.ended is not None,
            at=timeline.at,
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
