from dataclasses import dataclass, field

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.errors import CloudtuneError
from cloudtune.model.commands import Command, EndRun, Launch, SetTimer
from cloudtune.model.events import Event, InstanceLaunched, RunStarted, TimerFired
from cloudtune.model.trial import EndReason

EVENTS: list[Event] = [RunStarted(0.0), TimerFired(1.0, "tick")]
ANSWERS: dict[Event, tuple[Command, ...]] = {
    EVENTS[0]: (SetTimer("tick", 1.0), SetTimer("other", 2.0)),
    EVENTS[1]: (EndRun(EndReason.DONE),),
}


@dataclass
class Story:
    """A world, a policy and a ledger in one, that writes down who is asked what."""

    calls: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=lambda: list(EVENTS))
    fails_at: str = ""

    def next_event(self) -> Event | None:
        return self.events.pop(0) if self.events else None

    def handle(self, event: Event) -> tuple[Command, ...]:
        self.calls.append(f"handle {type(event).__name__}")
        return ANSWERS[event]

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        self.calls.append(f"record {len(commands)}")

    def apply(self, command: Command) -> None:
        self.calls.append(f"apply {type(command).__name__}")
        if self.fails_at == type(command).__name__:
            raise OSError("the world broke")


def test_every_decision_is_on_record_before_it_is_carried_out() -> None:
    story = Story()
    run(story, story, story, lambda event, _: story.calls.append(f"watch {event.at:g}"))
    assert story.calls == [
        *("handle RunStarted", "record 2", "apply SetTimer", "apply SetTimer", "watch 0"),
        *("handle TimerFired", "record 1", "apply EndRun", "watch 1"),
    ]


def test_what_could_not_be_carried_out_is_on_record() -> None:
    story, ledger = Story(fails_at="SetTimer"), MemoryLedger()
    with pytest.raises(OSError, match="the world broke"):
        run(story, story, ledger)
    assert [entry.commands for entry in ledger.entries] == [ANSWERS[EVENTS[0]]]


class Busy:
    """A world and a policy that rent for ever, `at_once` at each instant."""

    def __init__(self, at_once: int, until: int = 10**6) -> None:
        self._at_once, self._until, self._events = at_once, until, 0

    def next_event(self) -> Event | None:
        self._events += 1
        if self._events > self._until:
            return None
        return InstanceLaunched(float(self._events // self._at_once), "i", "i-0", 0.0)

    def handle(self, event: Event) -> tuple[Command, ...]:
        return (Launch("i", "g.4x", "on-demand", "", 1.0),)

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        pass

    def apply(self, command: Command) -> None:
        pass


def test_a_run_that_decides_for_ever_at_one_instant_fails() -> None:
    busy = Busy(10**7)
    with pytest.raises(CloudtuneError, match=r"forever at one instant: 3,001 events at second 0"):
        run(busy, busy, busy)


def test_a_large_run_has_many_events_at_one_instant() -> None:
    """Each instance that it had by then may have some."""
    busy = Busy(2_900, 29_000)
    run(busy, busy, busy)
    grown = Busy(30_000, 57_000)
    grown._events = 27_100  # the first instant has 2,899 of them, the next one 27,000
    run(grown, grown, grown)
