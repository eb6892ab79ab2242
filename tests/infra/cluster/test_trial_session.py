"""A session's events from what the agents of its nodes tell, in whatever order."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cloudtune.infra.cluster.trial_session import TrialSession, cause, parts_of
from cloudtune.infra.node.messages import Body, Done, Epoch, Failure, Gone, Lost, Message, Ready
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import (
    EpochDone,
    EpochReport,
    Event,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.trial import Slice

BOOM = Failure("ValueError: boom", "Traceback …")
REPORT = EpochReport(1, {"loss": 0.5}, "s/1", 2.0, saving=0.1)
CLOSED = Failure("RuntimeError: Connection closed by peer", "…", peer=True)


def start(*pieces: Slice) -> StartTrial:
    return StartTrial("t00.1", "t00", {}, sum(p.gpus for p in pieces), pieces, None, 0, 2)


class Played:
    """A session on instances i-1 and i-2, two workers and one, with agents that note calls."""

    def __init__(self, command: StartTrial | None = None, agents: tuple[str, ...] = ("i-1", "i-2")):
        self.agents = agents
        self.calls: list[tuple[Any, ...]] = []
        self.events: list[Event] = []
        self.settled: list[int] = []
        self._number = 0
        command = command or start(Slice("i-1", 2.0), Slice("i-2", 1.0))
        self.session = TrialSession(command, 0, self._call, self._emit)

    def _call(self, instance: str, method: str, *arguments: object) -> object:
        if instance not in self.agents:
            return None
        self.calls.append((instance, method, *arguments))
        return f"answer of {instance}"

    def _emit(
        self, make: Callable[[float], Event], settled: Sequence[Callable[[], None]] = ()
    ) -> None:
        self.events.append(make(0.0))
        for settle in settled:
            settle()

    def hear(self, instance: str, rank: int, body: Body) -> list[Event]:
        """Give the events that a message brings about."""
        self._number += 1
        number, before = self._number, len(self.events)
        message = Message(number, "t00.1", rank, body)
        self.session.hear(instance, message, lambda: self.settled.append(number))
        return self.events[before:]

    @property
    def stopped(self) -> set[str]:
        return {call[0] for call in self.calls if call[1] == "stop"}


def test_ranks_follow_the_placement_and_those_of_a_node_are_together() -> None:
    parts = parts_of(start(Slice("i-2", 2.0), Slice("i-1", 1.0)), keep_from=0)
    assert [(name, [slot.rank for slot in part.slots]) for name, part in parts.items()] == [
        ("i-2", [0, 1]),
        ("i-1", [2]),
    ]
    assert [slot.local_rank for slot in parts["i-2"].slots] == [0, 1]
    assert {(s.world_size, s.nodes) for part in parts.values() for s in part.slots} == {(3, 2)}
    packed = parts_of(start(Slice("i-1", 0.5, 3)), keep_from=0)["i-1"]
    assert packed.gpu == 3
    assert [slot.share for slot in packed.slots] == [0.5]
    assert packed.gpus == 0.5


def test_the_first_node_says_where_the_workers_meet() -> None:
    played = Played()
    played.session.start()
    assert [(call[0], call[1], call[3]) for call in played.calls] == [
        ("i-1", "start", ""),
        ("i-2", "start", "answer of i-1"),
    ]


def test_it_has_started_when_all_ranks_are_ready() -> None:
    played = Played()
    assert played.hear("i-1", 1, Ready()) == []
    assert played.hear("i-2", 2, Ready()) == []
    assert played.settled == [], "a controller that dies now must hear of them again"
    assert played.hear("i-1", 0, Ready()) == [TrialStarted(0.0, "t00.1")]
    assert played.settled == [1, 2, 3]
    assert played.hear("i-1", 0, Epoch(REPORT)) == [
        EpochDone(0.0, "t00.1", 1, {"loss": 0.5}, "s/1", 2.0, None, 0.1)
    ]


def test_it_has_stopped_when_all_its_nodes_say_so() -> None:
    played = Played()
    played.session.stop()
    assert played.stopped == {"i-1", "i-2"}
    [late] = played.hear("i-1", 0, Epoch(REPORT))
    assert isinstance(late, EpochDone), "nobody waits for it, but a result is a result"
    assert played.hear("i-1", 0, Gone()) == []
    assert played.hear("i-2", 2, Gone()) == [TrialStopped(0.0, "t00.1")]
    assert played.settled == [1, 2, 3]


def test_an_error_on_one_node_ends_the_session_on_all() -> None:
    played = Played()
    assert played.hear("i-2", 2, CLOSED) == []
    assert played.hear("i-1", 0, BOOM) == []
    assert played.stopped == {"i-1", "i-2"}
    played.hear("i-1", 0, Gone())
    assert played.hear("i-2", 2, Gone()) == [
        TrialFailed(0.0, "t00.1", "ValueError: boom", "Traceback …")
    ]


def test_a_node_that_goes_takes_the_session_with_it() -> None:
    played = Played()
    played.session.note_lost("i-3", "not of it")
    assert not played.stopped
    played.session.note_lost("i-2", "its node is gone")
    assert played.stopped == {"i-1"}
    assert played.hear("i-1", 0, Gone()) == [TrialLost(0.0, "t00.1", "its node is gone")]


def test_without_an_agent_it_is_lost() -> None:
    played = Played(start(Slice("i-1", 1.0)), agents=())
    played.session.start()
    assert played.events == [TrialLost(0.0, "t00.1", "i-1 has no agent")]


def test_an_adopted_session_goes_on_from_what_its_agents_say() -> None:
    played = Played()
    played.session.adopt(ready=[0, 1], alive=["i-1", "i-2"])
    assert played.events == []
    assert played.hear("i-2", 2, Ready()) == [TrialStarted(0.0, "t00.1")]
    gone = Played()
    gone.session.adopt(ready=[0, 1, 2], alive=["i-1"])
    assert gone.events == [TrialStarted(0.0, "t00.1")]
    assert gone.stopped == {"i-1"}
    (lost,) = gone.hear("i-1", 0, Gone())
    assert isinstance(lost, TrialLost)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([CLOSED, BOOM], BOOM),
        ([CLOSED, Lost("killed"), BOOM], Lost("killed")),
        ([CLOSED, CLOSED], Lost(f"a worker lost the others: {CLOSED.error}")),
        ([BOOM, Lost("killed")], BOOM),
    ],
)
def test_the_cause_is_what_came_first_and_not_of_another(ends: list[Body], expected: Body) -> None:
    assert cause(ends) == expected


def test_a_function_that_returns_early_has_failed() -> None:
    end = cause([Done()])
    assert isinstance(end, Failure)
    assert "returned before its last epoch" in end.error


def test_too_little_memory_is_told() -> None:
    played = Played(start(Slice("i-1", 0.5)))
    played.hear("i-1", 0, Failure("OutOfMemoryError: …", "", out_of_memory=True))
    (failed,) = played.hear("i-1", 0, Gone())
    assert isinstance(failed, TrialFailed)
    assert failed.out_of_memory
