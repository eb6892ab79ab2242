"""Events in a few words, and what a policy says to them."""

from collections.abc import Iterable

from cloudtune.engine.ledger import Entry
from cloudtune.model import events
from cloudtune.model.commands import Command, Launch, StartTrial
from cloudtune.model.trial import Slice
from cloudtune.policy.base import Policy


def instance(intent: str) -> str:
    """Return the instance id that `join` gives to an intent."""
    return intent.replace("i", "i-")


def join(policy: Policy, at: float, *intents: str) -> tuple[Command, ...]:
    """Let instances be launched and join; returns what the policy says to the joins."""
    said: list[Command] = []
    for intent in intents:
        policy.handle(events.InstanceLaunched(at, intent, instance(intent), at))
    for intent in intents:
        said += policy.handle(events.NodeJoined(at, intent))
    return tuple(said)


def begun(policy: Policy, *intents: str, at: float = 10.0) -> tuple[Command, ...]:
    """Start a run and let its instances join; returns what the policy says to the joins."""
    policy.handle(events.RunStarted(0.0))
    return join(policy, at, *intents)


def epoch(
    at: float, session: str, number: int, score: float = 0.5, *, saved: bool = True
) -> events.EpochDone:
    """Return an epoch that took a second; its checkpoint is named trial/number."""
    checkpoint = f"{session.partition('.')[0]}/{number}" if saved else None
    return events.EpochDone(at, session, number, {"score": score}, checkpoint, 1.0)


def returned(at: float, intent: str = "i000") -> events.InstanceGone:
    return events.InstanceGone(at, intent, at, "released")


def dry(at: float, intent: str) -> events.LaunchFailed:
    return events.LaunchFailed(at, intent, "Dry", "none left", kind="capacity")


def tick(at: float) -> events.TimerFired:
    return events.TimerFired(at, "tick")


def launch(intent: str) -> Launch:
    return Launch(intent, "g.4x", "on-demand")


def start(session: str, width: float = 1.0, begin: int = 0, until: int = 2) -> StartTrial:
    trial = session.partition(".")[0]
    return StartTrial(session, trial, {}, width, (Slice("i-0", width),), None, begin, until)


def entry(event: events.Event, *commands: Command) -> Entry:
    return Entry(event, commands)


def starts(commands: Iterable[Command]) -> dict[str, tuple[Slice, ...]]:
    return {c.session: c.placement for c in commands if isinstance(c, StartTrial)}


def launches_of(said: Iterable[Command]) -> list[Command]:
    return [command for command in said if isinstance(command, Launch)]
