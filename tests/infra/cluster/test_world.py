"""Sessions of a real run: their events, their checkpoints, and what the next controller hears."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtune.clock import unix_time
from cloudtune.engine.record.timeline import InstanceSpan, SessionSpan
from cloudtune.engine.resume import InFlight
from cloudtune.infra.cluster import world as ray_world
from cloudtune.infra.cluster.trial_session import TrialSession, cause, split_session
from cloudtune.infra.cluster.world import CloudWorld
from cloudtune.infra.node import messages
from cloudtune.model.commands import Launch, SetTimer, StartTrial
from cloudtune.model.events import (
    EpochDone,
    EpochReport,
    Event,
    NodeLost,
    RunResumed,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.trial import Slice
from cloudtune.train.checkpoint import CheckpointStore


class Deaf:
    """A session that notes what may go."""

    def __init__(self, *_: Any) -> None:
        self.kept: list[int] = []

    def start(self) -> None: ...

    def acknowledge(self, epoch: int) -> None:
        self.kept.append(epoch)


def world_in(folder: Path) -> CloudWorld:
    """Return a world that is not entered: no cluster, no thread."""
    rental = SimpleNamespace(run="a-run", boot_log=lambda intent: f"{folder}/{intent}.log")
    head = cast(
        "Any", SimpleNamespace(alive=lambda: True, running=True, rental=rental, folder=folder)
    )
    training = messages.Training("train.py:train", "loss", "min", 9, str(folder), 0)
    return CloudWorld(head, cast("Any", None), training, folder, 0.0)


def clone_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CloudWorld:
    """Return a world in which a trial trains, and its clone starts from its fifth epoch."""
    monkeypatch.setattr(ray_world, "TrialSession", Deaf)
    world = world_in(tmp_path)
    world.apply(StartTrial("parent.1", "parent", {}, 1.0, (), None, 0, 9))
    world.apply(StartTrial("clone.1", "clone", {}, 1.0, (), "s/parent/epoch-00005", 5, 9))
    return world


def first_kept_epoch(world: CloudWorld, *events: Event) -> int:
    """Return from which epoch on the parent's checkpoints stay after its eighth."""
    saved = EpochDone(1.0, "parent.1", 8, {}, "s/parent/epoch-00008", 1.0)
    for event in (*events, saved):
        world.emit(lambda _at, event=event: event)  # type: ignore[misc]
        world.next_event()
    world._acknowledge()
    return cast("Deaf", world._sessions["parent.1"]).kept[-1]


def test_a_lost_clone_finds_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for event in (TrialLost(0.0, "clone.1", "gone"), TrialStopped(0.0, "clone.1")):
        assert first_kept_epoch(clone_world(tmp_path, monkeypatch), event) == 5
    unsaved = EpochDone(0.0, "clone.1", 6, {}, None, 1.0)
    assert first_kept_epoch(clone_world(tmp_path, monkeypatch), unsaved) == 5


def test_a_saved_clone_needs_no_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = EpochDone(0.0, "clone.1", 6, {}, "s/clone/epoch-00006", 1.0)
    for event in (saved, TrialFailed(0.0, "clone.1", "boom", "")):
        assert first_kept_epoch(clone_world(tmp_path, monkeypatch), event) == 8


START = StartTrial("t00.1", "t00", {}, 1.0, (Slice("i-1", 1.0),), None, 0, 2)
REPORT = EpochReport(1, {"loss": 0.5}, None, 2.0)


class Left:
    """A world in which another controller has left a session, and its agent's calls."""

    def __init__(self, folder: Path, *ready: int) -> None:
        self.world = world_in(folder)
        self.calls: list[tuple[object, ...]] = []
        self.settled: list[int] = []
        self.world._agents = cast("Any", SimpleNamespace(call=self._call))
        self.world._left = {"i-1": {"t00.1": messages.Described(frozenset(ready), 1, gone=False)}}

    def _call(self, *arguments: object) -> str:
        self.calls.append(arguments)
        return ""

    def hear(self, number: int, body: messages.Body) -> None:
        message = messages.Message(number, "t00.1", 0, body)
        self.world._hear("i-1", message, lambda: self.settled.append(number))

    def events(self, count: int) -> list[Event | None]:
        return [self.world.next_event() for _ in range(count)]


def test_news_wait_for_their_session_to_be_adopted(tmp_path: Path) -> None:
    left = Left(tmp_path)
    left.hear(1, messages.Ready())
    left.hear(2, messages.Epoch(REPORT))
    left.world.adopt(START)
    started, done = left.events(2)
    assert isinstance(started, TrialStarted)
    assert isinstance(done, EpochDone)
    assert left.settled == [1], "the second event isn't dealt with yet"
    left.hear(3, messages.Lost("killed"))
    left.hear(4, messages.Gone())
    (lost,) = left.events(1)
    assert isinstance(lost, TrialLost)
    assert left.settled == [1, 2]
    left.world._acknowledge()
    assert left.settled == [1, 2, 3, 4]


def test_session_ended_before_stop_succeeds(tmp_path: Path) -> None:
    left = Left(tmp_path, 0)
    left.hear(1, messages.Epoch(REPORT))
    left.hear(2, messages.Done())
    left.hear(3, messages.Gone())
    left.world.adopt(START, stopping=True)
    assert [type(event) for event in left.events(3)] == [TrialStarted, EpochDone, TrialStopped]


def test_the_agent_knows_what_was_acknowledged(tmp_path: Path) -> None:
    left = Left(tmp_path, 0)
    left.world.adopt(START)
    assert isinstance(left.events(1)[0], TrialStarted)
    left.hear(4, messages.Epoch(REPORT))
    assert isinstance(left.events(1)[0], EpochDone)


def test_an_unknown_session_is_lost_without_blame(tmp_path: Path) -> None:
    left = Left(tmp_path)
    left.world._left = {"i-1": {}}
    left.world.adopt(START)
    (lost,) = left.events(1)
    assert isinstance(lost, TrialLost)
    assert lost.blameless
    assert left.calls == []


def test_a_session_that_none_wants_is_ended(tmp_path: Path) -> None:
    left = Left(tmp_path, 0)
    assert set(left.world.sessions_alive()) == {"t00.1"}
    left.world.disown("t00.1")
    assert left.calls == [("i-1", "stop", "t00.1")]


@pytest.mark.parametrize(
    ("lived_on", "why"), [(False, "it had joined a cluster whose head died"), (True, "it was gone")]
)
def test_saved_before_its_instance_is_lost(tmp_path: Path, lived_on: bool, why: str) -> None:
    """The head has died, or only an instance, before another controller took over."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "state").write_text("of any epoch")
    store = CheckpointStore(str(tmp_path))
    for epoch in (1, 2, 3):
        store.save("t00", epoch, {"loss": 0.5}, tmp_path / "files")
    start = dataclasses.replace(START, start_epoch=1, until_epoch=2)  # then granted two more
    other = dataclasses.replace(START, session="t01.1", trial="t01")
    launch = Launch("i000", "g7.2xlarge", "spot", "")
    left = InFlight(
        instances={"i000": InstanceSpan("i000", launch, 0.0, "i-1", joined=True)},
        sessions={
            "t00.1": SessionSpan(start, 0.0, 4, 0.0),
            "t01.1": SessionSpan(other, 0.0, 2, 0.0, stopping=5.0),
        },
        timers={},
        begun=True,
        ended=False,
        at=9.0,
    )
    world = world_in(tmp_path)
    world._cluster_lived_on = lived_on
    asked: list[str] = []
    world._watcher = cast(
        "Any",
        SimpleNamespace(
            expect=lambda *_, **__: None,
            lose=lambda intent, reason: world.emit(lambda at: NodeLost(at, intent, reason)),
            failure=None,
        ),
    )
    world._head = cast(
        "Any", SimpleNamespace(alive=lambda: True, want=lambda launch, _: asked.append(launch))
    )
    world.take_over(left)
    result = [world.next_event() for _ in range(6)]
    kinds = [type(event) for event in result]
    assert kinds == [RunResumed, EpochDone, EpochDone, NodeLost, TrialLost, TrialStopped]
    assert [event.epoch for event in result if isinstance(event, EpochDone)] == [2, 3]
    assert next(event for event in result if isinstance(event, NodeLost)).reason.startswith(why)


def test_what_trials_saved_while_it_stood_still_comes_before_their_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "state").write_text("of any epoch")
    left = Left(tmp_path, 0)
    left.world.adopt(START)
    [started] = left.events(1)
    assert isinstance(started, TrialStarted)
    for epoch in (1, 2, 3):
        CheckpointStore(str(tmp_path)).save("t00", epoch, {"loss": 0.5}, tmp_path / "files")
    left.hear(1, messages.Lost("its instance is gone"))
    left.hear(2, messages.Gone())
    each_look_a_minute_later = itertools.count(unix_time(), 60.0).__next__
    monkeypatch.setattr(ray_world, "unix_time", each_look_a_minute_later)
    *saved, lost = left.events(3)
    epochs = [event.epoch for event in saved if isinstance(event, EpochDone)]
    assert epochs == [1, 2], "3 was never granted"
    assert isinstance(lost, TrialLost)


def test_a_resumed_run_did_not_stand_still(tmp_path: Path) -> None:
    """Its timers are long overdue, and agents report what it has missed."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "state").write_text("of any epoch")
    CheckpointStore(str(tmp_path)).save("t00", 1, {"loss": 0.5}, tmp_path / "files")
    left = Left(tmp_path, 0)
    left.world.apply(SetTimer("tick", 0.0))
    left.world.adopt(START)
    [first] = left.events(1)
    assert isinstance(first, TrialStarted)


BOOM = messages.Failure("ValueError: boom", "Traceback …")
SAVED = EpochReport(1, {"loss": 0.5}, "s/1", 2.0, saving=0.1)
CLOSED = messages.Failure("RuntimeError: Connection closed by peer", "…", peer=True)


def place(*pieces: Slice) -> StartTrial:
    return StartTrial("t00.1", "t00", {}, sum(p.gpus for p in pieces), pieces, None, 0, 2)


class Played:
    """A session on instances i-1 and i-2, two workers and one, with agents that note calls."""

    def __init__(self, command: StartTrial | None = None, agents: tuple[str, ...] = ("i-1", "i-2")):
        self.agents = agents
        self.calls: list[tuple[Any, ...]] = []
        self.events: list[Event] = []
        self.settled: list[int] = []
        self._number = 0
        command = command or place(Slice("i-1", 2.0), Slice("i-2", 1.0))
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

    def hear(self, instance: str, rank: int, body: messages.Body) -> list[Event]:
        """Give the events that a message brings about."""
        self._number += 1
        number, before = self._number, len(self.events)
        message = messages.Message(number, "t00.1", rank, body)
        self.session.hear(instance, message, lambda: self.settled.append(number))
        return self.events[before:]

    @property
    def stopped(self) -> set[str]:
        return {call[0] for call in self.calls if call[1] == "stop"}


def test_ranks_follow_the_placement() -> None:
    sharded = dataclasses.replace(place(Slice("i-2", 2.0), Slice("i-1", 1.0)), parallel="fsdp")
    parts = split_session(sharded, keep_from=3)
    assert {(part.command.parallel, part.keep_from) for part in parts.values()} == {("fsdp", 3)}
    ranks = [(name, [slot.rank for slot in part.slots]) for name, part in parts.items()]
    assert ranks == [("i-2", [0, 1]), ("i-1", [2])]
    assert [slot.local_rank for slot in parts["i-2"].slots] == [0, 1]
    assert {(s.world_size, s.nodes) for part in parts.values() for s in part.slots} == {(3, 2)}
    packed = split_session(place(Slice("i-1", 0.5, 3)), keep_from=0)["i-1"]
    assert packed.piece == Slice("i-1", 0.5, 3)
    assert [slot.share for slot in packed.slots] == [0.5]


def test_the_first_node_says_where_the_workers_meet() -> None:
    played = Played()
    played.session.start()
    calls = [(call[0], call[1], call[3]) for call in played.calls]
    assert calls == [("i-1", "start", ""), ("i-2", "start", "answer of i-1")]


def test_it_has_started_when_all_ranks_are_ready() -> None:
    played = Played()
    assert played.hear("i-1", 1, messages.Ready()) == []
    assert played.hear("i-2", 2, messages.Ready()) == []
    assert played.settled == [], "a controller that dies now must hear of them again"
    assert played.hear("i-1", 0, messages.Ready()) == [TrialStarted(0.0, "t00.1")]
    assert played.settled == [1, 2, 3]
    assert played.hear("i-1", 0, messages.Epoch(SAVED)) == [
        EpochDone(0.0, "t00.1", 1, {"loss": 0.5}, "s/1", 2.0, None, 0.1)
    ]


def test_session_stops_with_all_nodes() -> None:
    played = Played()
    played.session.stop()
    assert played.stopped == {"i-1", "i-2"}
    [late] = played.hear("i-1", 0, messages.Epoch(SAVED))
    assert isinstance(late, EpochDone), "it isn't waited for, but a result is a result"
    assert played.hear("i-1", 0, messages.Gone()) == []
    assert played.hear("i-2", 2, messages.Gone()) == [TrialStopped(0.0, "t00.1")]
    assert played.settled == [1, 2, 3]


def test_node_error_ends_session_everywhere() -> None:
    played = Played()
    assert played.hear("i-2", 2, CLOSED) == []
    assert played.hear("i-1", 0, BOOM) == []
    assert played.stopped == {"i-1", "i-2"}
    played.hear("i-1", 0, messages.Gone())
    assert played.hear("i-2", 2, messages.Gone()) == [
        TrialFailed(0.0, "t00.1", "ValueError: boom", "Traceback …")
    ]


def test_lost_node_loses_the_session() -> None:
    played = Played()
    played.session.note_lost("i-3", "not of it")
    assert not played.stopped
    played.session.note_lost("i-2", "its node is gone")
    assert played.stopped == {"i-1"}
    assert played.hear("i-1", 0, messages.Gone()) == [TrialLost(0.0, "t00.1", "its node is gone")]


def test_without_an_agent_it_is_lost() -> None:
    played = Played(place(Slice("i-1", 1.0)), agents=())
    played.session.start()
    assert played.events == [TrialLost(0.0, "t00.1", "i-1 has no agent")]


def test_adopted_session_follows_its_agents() -> None:
    played = Played()
    played.session.adopt(ready=[0, 1], alive=["i-1", "i-2"])
    assert played.events == []
    assert played.hear("i-2", 2, messages.Ready()) == [TrialStarted(0.0, "t00.1")]
    gone = Played()
    gone.session.adopt(ready=[0, 1, 2], alive=["i-1"])
    assert gone.events == [TrialStarted(0.0, "t00.1")]
    assert gone.stopped == {"i-1"}
    (lost,) = gone.hear("i-1", 0, messages.Gone())
    assert isinstance(lost, TrialLost)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([CLOSED, BOOM], BOOM),
        ([CLOSED, messages.Lost("killed"), BOOM], messages.Lost("killed")),
        ([CLOSED, CLOSED], messages.Lost(f"a worker lost the others: {CLOSED.error}")),
        ([BOOM, messages.Lost("killed")], BOOM),
    ],
)
def test_first_failure_is_the_cause(ends: list[messages.Body], expected: messages.Body) -> None:
    assert cause(ends) == expected


def test_a_function_that_returns_early_has_finished() -> None:
    played = Played()
    played.hear("i-2", 2, messages.Done())
    assert not played.stopped, "rank 0 may have a report left"
    assert played.hear("i-1", 0, messages.Epoch(SAVED))
    played.hear("i-1", 0, messages.Done())
    assert played.stopped == {"i-1", "i-2"}
    played.hear("i-1", 0, messages.Gone())
    assert played.hear("i-2", 2, messages.Gone()) == [TrialStopped(0.0, "t00.1", by_itself=True)]


def test_too_little_memory_is_reported() -> None:
    played = Played(place(Slice("i-1", 0.5)))
    played.hear("i-1", 0, messages.Failure("OutOfMemoryError: …", "", out_of_memory=True))
    (failed,) = played.hear("i-1", 0, messages.Gone())
    assert isinstance(failed, TrialFailed)
    assert failed.out_of_memory
