import dataclasses

import pytest

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.replay import DivergedError, ReplayWorld
from cloudtune.errors import CloudtuneError
from cloudtune.model.commands import EndRun, Launch, SetTimer
from cloudtune.model.events import RunStarted, TimerFired
from cloudtune.model.trial import EndReason
from tests.builders import play
from tests.contracts.world import SETTING, WorldContract

LAUNCH = Launch("i000", "g.4x", "on-demand")
TIMER = SetTimer("tick", 1.0)
RECORD = [
    Entry(RunStarted(0.0), (TIMER, LAUNCH)),
    Entry(TimerFired(1.0, "tick"), (EndRun(EndReason.FAILED),)),
]


class TestReplayWorld(WorldContract):
    def world(self) -> ReplayWorld:
        return ReplayWorld(play(SETTING).entries)


def test_the_recorded_commands_in_the_recorded_order() -> None:
    world = ReplayWorld(RECORD)
    assert world.next_event() == RunStarted(0.0)
    world.apply(TIMER)
    world.apply(LAUNCH)
    assert world.next_event() == TimerFired(1.0, "tick")
    world.apply(EndRun(EndReason.FAILED))
    assert world.next_event() is None


def test_another_command_has_diverged() -> None:
    world = ReplayWorld(RECORD)
    world.next_event()
    with pytest.raises(DivergedError, match=r"entry 1: recorded SetTimer.*, got Launch"):
        world.apply(LAUNCH)


def test_one_command_too_many_has_diverged() -> None:
    world = ReplayWorld(RECORD)
    world.next_event()
    world.apply(TIMER)
    world.apply(LAUNCH)
    with pytest.raises(DivergedError, match="entry 1: recorded None, got Launch"):
        world.apply(LAUNCH)


def test_one_command_too_few_has_diverged() -> None:
    world = ReplayWorld(RECORD)
    world.next_event()
    world.apply(TIMER)
    with pytest.raises(DivergedError, match="entry 1: never asked for Launch"):
        world.next_event()


def test_another_policy_diverges_from_the_record() -> None:
    other = SETTING.but(eta=3)
    with pytest.raises(DivergedError):
        run(other.policy(), ReplayWorld(play(SETTING).entries), MemoryLedger())
    assert issubclass(DivergedError, CloudtuneError)


def test_a_record_that_was_cut_short_is_replayed_as_far_as_it_goes() -> None:
    entries = play(SETTING).entries[:20]
    policy, again = SETTING.policy(), MemoryLedger()
    run(policy, ReplayWorld(entries), again)
    assert tuple(again.entries) == entries
    assert not policy.ended


def test_a_changed_event_is_noticed() -> None:
    entries = list(play(SETTING).entries)
    number = next(n for n, entry in enumerate(entries) if len(entry.commands) > 1 and n)
    entries[number] = dataclasses.replace(entries[number], event=TimerFired(1e9, "tick"))
    with pytest.raises(DivergedError):
        run(SETTING.policy(), ReplayWorld(entries), MemoryLedger())
