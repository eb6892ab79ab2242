"""Which checkpoints a real run keeps, while a trial may have to go on from them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cloudtune.commands import StartTrial
from cloudtune.events import EpochDone, TrialFailed, TrialLost, TrialStopped
from cloudtune.infra import ray_world
from cloudtune.infra.ray_world import CloudWorld

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from cloudtune.events import Event


class Deaf:
    """A session that notes what it is told may go."""

    def __init__(self, *_: Any) -> None:
        self.kept: list[int] = []

    def start(self) -> None:
        pass

    def acknowledge(self, epoch: int) -> None:
        self.kept.append(epoch)


def cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CloudWorld:
    """Return a world in which a trial trains, and its clone starts from its fifth epoch."""
    monkeypatch.setattr(ray_world, "TrialSession", Deaf)
    head, none = cast("Any", SimpleNamespace(alive=lambda: True)), cast("Any", None)
    world = CloudWorld(head, none, none, tmp_path, 0.0)
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
