"""Which checkpoints a real run keeps, and what the next controller hears of its sessions."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtune.engine.resume import InFlight, OpenSession
from cloudtune.infra.cluster import world as ray_world
from cloudtune.infra.cluster.world import CloudWorld
from cloudtune.infra.node.messages import (
    Body,
    Described,
    Done,
    Epoch,
    Gone,
    Lost,
    Message,
    Ready,
    Training,
)
from cloudtune.model.commands import Launch, StartTrial
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
    """A session that notes what it is told may go."""

    def __init__(self, *_: Any) -> None:
        self.kept: list[int] = []

    def start(self) -> None:
        """Begin nothing."""

    def acknowledge(self, epoch: int) -> None:
        self.kept.append(epoch)


def world_in(folder: Path) -> CloudWorld:
    """Return a world that is not entered: no cluster, no thread."""
    rental = SimpleNamespace(run="a-run")
    head = cast(
        "Any", SimpleNamespace(alive=lambda: True, running=True, rental=rental, folder=folder)
    )
    training = Training("train.py:train", "loss", "min", 9, str(folder), 0)
    return CloudWorld(head, cast("Any", None), training, folder, 0.0)


def cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CloudWorld:
    """Return a world in which a trial trains, and its clone starts from its fifth epoch."""
    monkeypatch.setattr(ray_world, "TrialSession", Deaf)
    world = world_in(tmp_path)
    world.apply(StartTrial("parent.1", "parent", {}, 1.0, (), None, 0, 9))
    world.apply(StartTrial("clone.1", "clone", {}, 1.0, (), "s/parent/epoch-00005", 5, 9))
    return world


def kept(world: CloudWorld, *events: Event) -> int:
    """Return from which epoch on the parent's checkpoints stay after its eighth."""
    saved = EpochDone(1.0, "parent.1", 8, {}, "s/parent/epoch-00008", 1.0)
    for event in (*events, saved):
        world.emit(lambda _at, event=event: event)  # type: ignore[misc]
        world.next_event()
    world._acknowledge()
    return cast("Deaf", world._sessions["parent.1"]).kept[-1]


def test_a_clone_that_is_lost_finds_its_parents_checkpoint_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for event in (TrialLost(0.0, "clone.1", "gone"), TrialStopped(0.0, "clone.1")):
        assert kept(cloned(tmp_path, monkeypatch), event) == 5
    unsaved = EpochDone(0.0, "clone.1", 6, {}, None, 1.0)
    assert kept(cloned(tmp_path, monkeypatch), unsaved) == 5


def test_a_clone_with_a_checkpoint_of_its_own_needs_its_parents_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = EpochDone(0.0, "clone.1", 6, {}, "s/clone/epoch-00006", 1.0)
    for event in (saved, TrialFailed(0.0, "clone.1", "boom", "")):
        assert kept(cloned(tmp_path, monkeypatch), event) == 8


START = StartTrial("t00.1", "t00", {}, 1.0, (Slice("i-1", 1.0),), None, 0, 2)
REPORT = EpochReport(1, {"loss": 0.5}, None, 2.0)


class Left:
    """A world in which another controller has left a session, and its agent's calls."""

    def __init__(self, folder: Path, *ready: int) -> None:
        self.world = world_in(folder)
        self.calls: list[tuple[object, ...]] = []
        self.settled: list[int] = []
        self.world._agents = cast("Any", SimpleNamespace(call=self._call))
        self.world._left = {"i-1": {"t00.1": Described(frozenset(ready), 1, gone=False)}}

    def _call(self, *arguments: object) -> str:
        self.calls.append(arguments)
        return ""

    def hear(self, number: int, body: Body) -> None:
        message = Message(number, "t00.1", 0, body)
        self.world._hear("i-1", message, lambda: self.settled.append(number))

    def events(self, count: int) -> list[Event | None]:
        return [self.world.next_event() for _ in range(count)]


def test_news_wait_for_their_session_to_be_adopted(tmp_path: Path) -> None:
    left = Left(tmp_path)
    left.hear(1, Ready())
    left.hear(2, Epoch(REPORT))
    left.world.adopt(START)
    started, done = left.events(2)
    assert isinstance(started, TrialStarted)
    assert isinstance(done, EpochDone)
    assert left.settled == [1], "the second event isn't dealt with yet"
    left.hear(3, Lost("killed"))
    left.hear(4, Gone())
    (lost,) = left.events(1)
    assert isinstance(lost, TrialLost)
    assert left.settled == [1, 2]
    left.world._acknowledge()
    assert left.settled == [1, 2, 3, 4]


def test_a_session_that_was_to_stop_and_has_ended_since_did_not_fail(tmp_path: Path) -> None:
    left = Left(tmp_path, 0)
    left.hear(1, Epoch(REPORT))
    left.hear(2, Done())
    left.hear(3, Gone())
    left.world._take_over_session("t00.1", OpenSession(START, stopping=True))
    assert [type(event) for event in left.events(3)] == [TrialStarted, EpochDone, TrialStopped]


def test_what_was_acknowledged_by_the_last_controller_is_known_from_the_agent(
    tmp_path: Path,
) -> None:
    left = Left(tmp_path, 0)
    left.world.adopt(START)
    assert isinstance(left.events(1)[0], TrialStarted)
    left.hear(4, Epoch(REPORT))
    assert isinstance(left.events(1)[0], EpochDone)


def test_a_session_that_nobody_knows_is_lost_and_nobody_is_to_blame(tmp_path: Path) -> None:
    left = Left(tmp_path)
    left.world._left = {"i-1": {}}
    left.world.adopt(START)
    (lost,) = left.events(1)
    assert isinstance(lost, TrialLost)
    assert lost.blameless
    assert left.calls == []


def test_a_session_that_nobody_wants_is_ended(tmp_path: Path) -> None:
    left = Left(tmp_path, 0)
    assert set(left.world.sessions_alive()) == {"t00.1"}
    left.world.disown("t00.1")
    assert left.calls == [("i-1", "stop", "t00.1")]


@pytest.mark.parametrize(
    ("lived_on", "why"), [(False, "it had joined a cluster whose head died"), (True, "it was gone")]
)
def test_what_was_saved_is_told_before_its_instance_is_lost(
    tmp_path: Path, lived_on: bool, why: str
) -> None:
    """The head has died, or only an instance, before another controller took over."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "state").write_text("of any epoch")
    store = CheckpointStore(str(tmp_path))
    for epoch in (1, 2, 3):
        store.save("t00", epoch, {"loss": 0.5}, tmp_path / "files")
    start = dataclasses.replace(START, start_epoch=1, until_epoch=4)
    other = dataclasses.replace(START, session="t01.1", trial="t01")
    left = InFlight(
        launches={"i000": Launch("i000", "g7.2xlarge", "spot", "")},
        instances={"i000": "i-1"},
        joined={"i000"},
        released=set(),
        sessions={"t00.1": OpenSession(start), "t01.1": OpenSession(other, stopping=True)},
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
    told = [world.next_event() for _ in range(6)]
    assert [type(event) for event in told] == [
        RunResumed,
        EpochDone,
        EpochDone,
        NodeLost,
        TrialLost,
        TrialStopped,
    ]
    assert [event.epoch for event in told if isinstance(event, EpochDone)] == [2, 3]
    assert next(event for event in told if isinstance(event, NodeLost)).reason.startswith(why)
