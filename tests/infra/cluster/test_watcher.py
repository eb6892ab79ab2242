"""What the controller hears of a launch that the cloud refused."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.errors import SortedErrors
from cloudtune.infra.cluster import watcher as watching
from cloudtune.infra.cluster.node_provider import Journal, Note
from cloudtune.infra.cluster.watcher import Watcher
from cloudtune.infra.node.messages import AtRisk, Interruption
from cloudtune.infra.provider import Endpoint
from cloudtune.model.events import (
    Event,
    InstanceBooting,
    InstanceGone,
    InstanceLaunched,
    InterruptionNotice,
    LaunchFailed,
    NodeLost,
    RebalanceRecommended,
    RefusalKind,
)

ALWAYS = Endpoint("us-east-1", look_seconds=0.0)


def journal_in(folder: Path) -> Journal:
    return Journal(folder / "provider.jsonl")


def make_watcher(
    folder: Path,
    events: list[Event],
    ours: Callable[[str], list[Any]] = lambda _: [],
    endpoint: Endpoint = ALWAYS,
) -> Watcher:
    head = SimpleNamespace(
        journal=journal_in(folder),
        give_back=lambda _: None,
        answers=lambda: True,
        nodes=list,
        rental=SimpleNamespace(
            run="a-run", endpoint=endpoint, boot_log=lambda intent: f"{folder}/boot/{intent}.log"
        ),
        folder=folder,
    )
    ec2 = SimpleNamespace(
        ours=ours,
        terminate=lambda _: None,
        errors=SortedErrors.errors,
        refusal_kind=SortedErrors.refusal_kind,
        is_permanent=SortedErrors.is_permanent,
    )

    def emit(make: Callable[[float], Event], settled: object = ()) -> None:
        events.append(make(5.0))

    watcher = Watcher(cast("Any", ec2), cast("Any", head), 0.0, emit, lambda *_, **__: False)
    watcher.expect("i000")
    return watcher


def test_ec2_is_asked_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def ours(_: str) -> list[Any]:
        asked.append(now)
        return []

    watcher = make_watcher(tmp_path, [], ours, Endpoint("us-east-1"))
    for _ in range(2 * 3600):  # it looks at everything else twice a second
        monkeypatch.setattr(watcher, "_idle_looks", 0)
        watcher._look()
        now += 0.5
    # DescribeInstances with a filter: 20 a second (EC2's page on throttling). The controller and
    # Ray's monitor both ask, so each has half of a twentieth of that.
    assert len(asked) <= 3600 * 20 * 0.05 / 2
    assert max(b - a for a, b in itertools.pairwise(asked)) <= 3.0


def test_expired_credentials_end_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, expired = 100.0, ClientError({"Error": {"Code": "ExpiredToken"}}, "DescribeInstances")
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def ours(_: str) -> list[Any]:
        raise expired

    watcher = make_watcher(tmp_path, [], ours)
    for _ in range(20):
        now += 1.0
        watcher._look()
    now += 800.0
    watcher._look()
    now += 100.0
    with pytest.raises(ClientError):  # for good: the run isn't blind for ever
        watcher._look()


def instance(**changes: Any) -> SimpleNamespace:
    given = {"id": "i-1", "intent": "i000", "launched_at": 1.0, "billing": True, "state": "running"}
    return SimpleNamespace(**given | changes)


def test_a_nodes_warnings_become_events_in_order(tmp_path: Path) -> None:
    said: list[Event] = []
    watcher = make_watcher(tmp_path, said, lambda _: [instance()])
    cast("Any", watcher._head).nodes = lambda: [SimpleNamespace(instance="i-1", lost="")]
    watcher.note_warning("i-1", AtRisk(), lambda: None)
    watcher.note_warning("i-1", Interruption(150.0), lambda: None)
    watcher._look()
    assert said[1:] == [RebalanceRecommended(5.0, "i000"), InterruptionNotice(5.0, "i000", 150.0)]


def test_the_first_instances_boot_is_reported_once(tmp_path: Path) -> None:
    said: list[Event] = []
    there = [instance(), instance(id="i-2", intent="i001")]
    watcher = make_watcher(tmp_path, said, lambda _: there)
    watcher.expect("i001")
    watcher._look()
    logs = tmp_path / "boot"
    logs.mkdir()
    fetches = "Get:1 http://archive\ncloudtune-node: fetches environment e1\n"

    def booting() -> list[tuple[str, str]]:
        watcher._boot_lines.look()
        return [(it.intent, it.line) for it in said if isinstance(it, InstanceBooting)]

    assert booting() == [], "it has uploaded nothing yet"
    for intent in ("i000", "i001"):
        (logs / f"{intent}.log").write_text(f"{fetches}cloudtune-node: fetched in 8 s\ncloudt")
    assert booting() == [("i000", "fetches environment e1"), ("i000", "fetched in 8 s")]
    watcher._boot_lines.end("i000")
    with (logs / "i001.log").open("a") as log:
        log.write("une-node: it ended with 1\n")
    assert booting()[2:] == [("i001", "it ended with 1")], "the rest the other has said"
    there[1] = instance(id="i-2", intent="i001", billing=False, ended_at=4.0, reason="")
    watcher._look()
    with (logs / "i001.log").open("a") as log:
        log.write("cloudtune-node: never read\n")
    assert len(booting()) == 3


def test_unwatched_instance_bills_from_launch(tmp_path: Path) -> None:
    events: list[Event] = []
    began = instance(intent="i001", launched_at=3.0)
    watcher = make_watcher(tmp_path, events, lambda _: [began])
    watcher.expect("i001", asked_at=2.0)
    watcher._look()
    assert events == [InstanceLaunched(5.0, "i001", "i-1", 3.0)]


@pytest.mark.parametrize("jump", [-60.0, 3600.0])
def test_a_clock_that_is_set(jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 rounds down to whole seconds; the controller's own time counts where that is later."""
    result: list[Event] = []
    launched = instance(launched_at=unix_time() - 1)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    watcher = make_watcher(tmp_path, result, lambda _: [launched])
    monkeypatch.setattr(watcher, "_began", unix_time() - 2)
    watcher._look()
    (event,) = result
    assert isinstance(event, InstanceLaunched)
    assert event.launched_at == pytest.approx(2.0, abs=0.9)


def test_its_console_says_why_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = instance(ended_at=3.0, reason="User", billing=False, state="terminated")
    result: list[Event] = []
    watcher = make_watcher(tmp_path, result, lambda _: [ended])
    said = (
        "[ 1.0] Linux\n\n[ 9.1] cloud-init[812]: exec: python3: not found\n"
        "[  OK  ] Stopped target Basic System.\nReached target Power-Off\n"
    )
    monkeypatch.setattr(watcher._calls, "console", lambda _: said, raising=False)
    watcher._look()
    (gone,) = (event for event in result if isinstance(event, InstanceGone))
    path = tmp_path / "console-i000.log"
    assert path.read_text() == said
    assert gone.console == f"exec: python3: not found (all of it: {path})"

    uploaded = tmp_path / "boot" / "i000.log"
    uploaded.parent.mkdir()
    uploaded.write_text("cloudtune-node: setup.commands failed: false\n")
    assert watcher._console("i000", "i-1").startswith("cloudtune-node: setup.commands failed"), (
        "EC2 may have no console"
    )
    assert path.read_text() == uploaded.read_text()


def test_useless_node_is_reported_once(tmp_path: Path) -> None:
    result: list[Event] = []
    journal_in(tmp_path).write(Note(1.0, "asked", "i000"))
    watcher = make_watcher(tmp_path, result)
    watcher.expect("i001", "i-1")
    watcher.note_lost("i-1", "its agent is gone")
    assert result == [], "another agent may take its place"
    for _ in range(2):
        watcher.refuse("i-1", "i-1 shows 3 of its 4 GPUs: of no use")
    assert result == [NodeLost(5.0, "i001", "i-1 shows 3 of its 4 GPUs: of no use")]


@pytest.mark.parametrize(
    ("what", "code", "kind", "permanent"),
    [
        ("refused", "InsufficientInstanceCapacity", "capacity", False),
        ("refused", "VcpuLimitExceeded", "quota", False),
        ("refused", "RequestLimitExceeded", "busy", False),
        ("refused", "UnauthorizedOperation", "denied", True),
        ("refused", "InvalidAMIID.NotFound", "unknown", True),
        ("refused", "IntentSpent", "unknown", False),
        ("lost", "UnauthorizedOperation", "denied", False),  # the instance may be there
        ("broken", "UnicodeEncodeError", "unknown", True),  # no error of the cloud's
    ],
)
def test_a_refusal_s_kind(
    what: str, code: str, kind: RefusalKind, permanent: bool, tmp_path: Path
) -> None:
    journal_in(tmp_path).write(Note(1.0, what, "i000", code=code, message="no"))
    result: list[Event] = []
    make_watcher(tmp_path, result)._look()
    assert result == [LaunchFailed(5.0, "i000", code, "no", permanent, kind)]


def test_an_idle_autoscaler_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journal_in(tmp_path)
    monkeypatch.setattr(watching, "_IDLE_LOOKS", 5)
    watcher = make_watcher(tmp_path, [])
    watcher.expect("i001")
    for _ in range(5):
        watcher._look()
    journal.write(Note(1.0, "asking", "i001"))  # that one is under way, so it waits on for i000
    for _ in range(5):
        watcher._look()
    journal.write(Note(1.0, "broken", "", code="ValueError", message="what is this?"))
    for _ in range(6):
        watcher._look()
    with pytest.raises(CloudtuneError, match=r"not asked for i000 in .*: ValueError: what is this"):
        watcher._look()
