"""What the controller is told of a launch that the cloud refused."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cloudtune.events import LaunchFailed, NodeLost, RefusalKind
from cloudtune.infra.aws.errors import SortedErrors
from cloudtune.infra.cluster import watcher as watching
from cloudtune.infra.cluster.node_provider import Journal, Note
from cloudtune.infra.cluster.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cloudtune.events import Event


def told_of(note: Note, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Return what a controller hears that waits for i000, and finds that note in the journal."""
    watcher, told = waiting(note, folder, monkeypatch)
    watcher._look()
    return told


def waiting(
    note: Note, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Watcher, list[Event]]:
    """Return who waits for i000, with that note in the journal, and what will be told."""
    journal = Journal(folder / "provider.jsonl")
    journal.write(dataclasses.replace(note, intent="i000"))
    head = SimpleNamespace(
        journal=journal, give_back=lambda _: None, rental=SimpleNamespace(run="a-run")
    )
    ec2 = SimpleNamespace(
        ours=lambda _: [],
        terminate=lambda _: None,
        errors=SortedErrors.errors,
        refusal_kind=SortedErrors.refusal_kind,
        is_permanent=SortedErrors.is_permanent,
    )
    told: list[Event] = []

    def emit(make: Callable[[float], Event], settled: object = ()) -> None:
        told.append(make(5.0))

    monkeypatch.setattr(watching, "ray", SimpleNamespace(nodes=list))
    watcher = Watcher(cast("Any", ec2), cast("Any", head), 0.0, emit, lambda *_, **__: False)
    watcher.expect("i000")
    return watcher, told


def test_a_node_that_is_of_no_use_is_told_once_though_it_never_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, told = waiting(Note(1.0, "asked", ""), tmp_path, monkeypatch)
    watcher.expect("i001", "i-1")
    watcher.note_lost("i-1", "its agent is gone")
    assert told == [], "another agent may take its place"
    for _ in range(2):
        watcher.refuse("i-1", "i-1 shows 3 of its 4 GPUs: of no use")
    assert told == [NodeLost(5.0, "i001", "i-1 shows 3 of its 4 GPUs: of no use")]


@pytest.mark.parametrize(
    ("code", "kind", "permanent"),
    [
        ("InsufficientInstanceCapacity", "capacity", False),
        ("VcpuLimitExceeded", "quota", False),
        ("RequestLimitExceeded", "busy", False),
        ("UnauthorizedOperation", "denied", True),
        ("InvalidAMIID.NotFound", "unknown", True),
        ("IntentSpent", "unknown", False),
    ],
)
def test_a_refusal_is_told_with_its_kind(
    code: str,
    kind: RefusalKind,
    permanent: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = Note(1.0, "refused", "", code=code, message="no")
    refused = LaunchFailed(5.0, "i000", code, "no", permanent, kind)
    assert told_of(note, tmp_path, monkeypatch) == [refused]


def test_an_answer_that_was_lost_is_never_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Note(1.0, "lost", "", code="UnauthorizedOperation", message="no")
    (refused,) = told_of(note, tmp_path, monkeypatch)
    assert refused == LaunchFailed(5.0, "i000", note.code, "no", kind="denied")
