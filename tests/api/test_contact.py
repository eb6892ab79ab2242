"""Following a run of a head while this machine's network and credentials come and go."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import CleanupError, CloudtuneError
from cloudtune.infra.heads.launch import Remote
from cloudtune.infra.heads.store import BOOT, HeadStore, State
from cloudtune.lifecycle import remote
from cloudtune.lifecycle.outcomes import HeadRun
from cloudtune.lifecycle.remote import follow
from cloudtune.lifecycle.reporter import Reporter


class _NoNetworkError(Exception):
    """What the cloud's client raises without a network."""


@dataclass
class _Cloud:
    """A cloud with one head, which is out of reach during some calls."""

    unreachable: int = 0
    terminated: list[str] = field(default_factory=list)
    errors = (_NoNetworkError,)

    def ours(self, run: str, *, ended: bool = True) -> list[Any]:
        del run, ended
        if self.unreachable > 0:
            self.unreachable -= 1
            raise _NoNetworkError("Could not connect to the endpoint URL")
        return []

    def terminate(self, ids: list[str]) -> None:
        self.terminated += ids


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Cloud:
    made = _Cloud()
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remote, "_calls", lambda _remote: made)
    monkeypatch.setattr(remote, "_LOOK_SECONDS", 0.0)
    return made


@pytest.fixture
def head_run(tmp_path: Path) -> HeadRun:
    folder = tmp_path / "runs" / "small-1"
    folder.mkdir(parents=True)
    place = Remote(
        storage=f"{tmp_path}/storage/small-1",
        provider="aws",
        region="us-east-1",
        until=time.time() + 3600,
        asked_at=time.time(),
        usd_per_hour=0.1,
    )
    return HeadRun(folder, place, "i-1")


class Printed(Reporter):
    """What a head's command prints to standard output."""

    def __init__(self) -> None:
        self.text = ""

    def on_head_output(self, text: str) -> None:
        self.text += text


def follow_in_steps(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Take one step each time that the follower waits."""
    left = list(steps)

    def wait(_seconds: float) -> None:
        if left:
            left.pop(0)()

    monkeypatch.setattr("cloudtune.lifecycle.remote.time.sleep", wait)


def test_following_survives_storage_and_cloud_outages(
    head_run: HeadRun,
    cloud: _Cloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = HeadStore(head_run.remote.storage)
    storage, away = tmp_path / "storage", tmp_path / "away"
    printed = Printed()

    def begin() -> None:
        store.write("record/run/output.log@000000000000", b"epoch 1\n")
        store.tell(State(time.time(), "i-1", attempt=1))

    def lose() -> None:
        storage.rename(away)
        storage.write_text("no folder any more")

    def find_again() -> None:
        storage.unlink()
        away.rename(storage)
        store.write("record/run/output.log@000000000000", b"epoch 1\nepoch 2\n")

    def end() -> None:
        cloud.unreachable = 2
        store.tell(State(time.time(), "i-1", attempt=1, code=0))

    follow_in_steps(monkeypatch, begin, lose, lambda: None, find_again, end)
    assert follow(head_run, printed) == 0
    assert printed.text == "epoch 1\nepoch 2\n"
    said = capsys.readouterr().err.splitlines()
    lost = [line for line in said if "lost contact with run small-1" in line]
    assert len(lost) == 2, said
    assert "Could not connect to the endpoint URL" in lost[1]
    continues = [line for line in said if "The run continues without this machine" in line]
    assert "within its limits" in continues[0]
    assert "aws sso login" in continues[0]
    assert sum("contact with run small-1 again, after" in line for line in said) == 2


def test_a_boot_reported_once(
    head_run: HeadRun,
    cloud: _Cloud,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = HeadStore(head_run.remote.storage)
    first = b"apt: x\ncloudtune-head: installing Python\n"
    follow_in_steps(
        monkeypatch,
        lambda: store.write(BOOT, first + b"cloudtune-no"),
        lambda: store.write(BOOT, first + b"cloudtune-node: fetched in 8 s\n"),
        lambda: None,
        lambda: store.tell(State(time.time(), "i-1", attempt=1, code=0)),
    )
    assert follow(head_run, Reporter()) == 0
    assert capsys.readouterr().err == "head: installing Python\nhead: fetched in 8 s\n"


def test_a_head_that_died(
    head_run: HeadRun, cloud: _Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    HeadStore(head_run.remote.storage).write(BOOT, b"cloudtune-head: no uv from its index\n")
    monkeypatch.setattr(remote, "_DEAD_SECONDS", 0.0)
    monkeypatch.setattr(remote, "_BOOT_SECONDS", 0.0)
    said = r"head i-1 of run small-1 is gone; its last output:\n  cloudtune-head: no uv from its"
    with pytest.raises(CloudtuneError, match=said):
        follow(head_run, Reporter())


def test_a_head_out_of_reach(
    head_run: HeadRun, cloud: _Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    HeadStore(head_run.remote.storage).tell(State(time.time(), "i-1", attempt=1, code=0))
    cloud.unreachable = 10**6
    begin = time.time()
    follow_in_steps(monkeypatch)
    monkeypatch.setattr(
        "cloudtune.lifecycle.remote.time.time",
        lambda: begin if cloud.unreachable > 10**6 - 5 else begin + 7200,
    )
    with pytest.raises(CleanupError, match=r"did not confirm that head i-1.*its lease has ended"):
        follow(head_run, Reporter())
