"""What is reported of a run at its end, whatever went wrong on the way; nothing is rented."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtune.cli.reporters import QuietReporter
from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.infra import sweep
from cloudtune.infra.cluster.head import JOURNAL
from cloudtune.infra.cluster.node_provider import Journal, Note
from cloudtune.infra.node.variables import Variables
from cloudtune.lifecycle import runner as running
from cloudtune.lifecycle.flow import conclude
from cloudtune.lifecycle.outcomes import Swept
from cloudtune.lifecycle.runner import Ended, Runner
from cloudtune.model.events import Event, RunStarted, TrialFailed
from tests.builders import play, write_ledger
from tests.builders.proposals import MIXED, SETTING

LEFT = "the cloud did not confirm the end of i-1, i-2; they may still bill."


class OneEvent:
    """A world that tells of one event, or breaks; and a policy that does nothing."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error
        self._events: list[Event] = [RunStarted(0.0)]

    def __enter__(self) -> OneEvent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def next_event(self) -> Event | None:
        if self._error is not None:
            raise self._error
        return self._events.pop() if self._events else None

    def handle(self, event: Event) -> tuple[()]:
        return ()


def no_clouds() -> None:
    raise CloudtuneError("the emulator doesn't end")


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A runner whose cloud says that i-1 and i-2 are left, and can't even be closed."""
    instances = [SimpleNamespace(id="i-1"), SimpleNamespace(id="i-2")]
    monkeypatch.setattr(running, "calls_to", lambda _: SimpleNamespace(errors=(OSError,)))
    monkeypatch.setattr(sweep, "sweep", lambda *_: instances)
    cloud = SimpleNamespace(endpoint=None, close=no_clouds)
    made: Any = cast("Any", Runner)
    return cast("Runner", made(tmp_path, None, (), cloud, time.time(), 0.0, 0.0, 0.0, 1))


def go(runner: Runner, world: OneEvent, monkeypatch: pytest.MonkeyPatch, watch: Any) -> Swept:
    monkeypatch.setattr(Runner, "_world", lambda *_, **__: world)
    return runner.go(cast("Any", world), runner.folder / "ledger.jsonl", {}, watch)


@pytest.mark.parametrize("error", [CloudtuneError("the head is gone"), OSError(28, "disk full")])
def test_errors_hide_no_bill(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with pytest.raises(CleanupError, match=LEFT) as raised:
        go(runner, OneEvent(error), monkeypatch, lambda *_: None)
    assert raised.value.instance_ids == ("i-1", "i-2")
    assert str(error) in str(raised.value) or repr(error) in str(raised.value)
    assert raised.value.exit_code == 7


def test_a_broken_sweep_names_instances(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    Journal(runner.folder / JOURNAL).write(Note(1.0, "launched", "i000", "i-7"))

    def broken(*_: object) -> None:
        raise KeyError("unplanned")

    monkeypatch.setattr(sweep, "sweep", broken)
    swept = go(runner, OneEvent(), monkeypatch, lambda *_: None)
    assert swept.unconfirmed is not None
    assert swept.unconfirmed.instance_ids == ("i-7",)


def test_a_screen_that_breaks_ends_no_run(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a table of no columns")

    swept = go(runner, OneEvent(), monkeypatch, broken)
    assert "i-1, i-2" in str(swept.unconfirmed)
    assert "a table of no columns" in (runner.folder / running.SCREEN_LOG).read_text()


def test_a_result_is_shown_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, entries = SETTING.job(MIXED), play(SETTING, MIXED).entries
    write_ledger(tmp_path, job.to_json(), entries)
    policy = job.policy()
    for entry in entries:
        policy.handle(entry.event)
    left = CleanupError(LEFT, ("i-1", "i-2"))
    with pytest.raises(CleanupError, match=LEFT):
        conclude(Ended(tmp_path, policy, Swept(0.0, left)), QuietReporter())
    out = capsys.readouterr().out
    assert "Best: " in out
    assert "0 instances left" not in out


def test_a_failed_run_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = [
        TrialFailed(60.0 + n, f"t{n:02d}.1", f"KeyError: '{letter}'", f"Traceback of {letter}")
        for n, letter in enumerate(ascii_lowercase[: SETTING.trials])
    ]
    job, entries = SETTING.job(MIXED), play(SETTING.but(trouble=failed), MIXED).entries
    write_ledger(tmp_path, job.to_json(), entries)
    policy = job.policy()
    for entry in entries:
        policy.handle(entry.event)
    assert conclude(Ended(tmp_path, policy, Swept(0.0)), QuietReporter()).exit_code == 1
    printed = capsys.readouterr()
    assert "error: every trial failed; the first: t00: KeyError: 'a'\n" in printed.err
    assert "Traceback of a\n" in printed.err
    assert "0 instances left (checked " in printed.out


@pytest.mark.parametrize(("market", "losses"), [("spot", 0.3), ("on-demand", 0.0)])
def test_workers_know_how_often_spot_is_lost(tmp_path: Path, market: Any, losses: float) -> None:
    job = SETTING.job(MIXED)
    one = replace(SETTING.offer, market=market, interruptions_per_hour=losses)
    rented = replace(job, rentables=(replace(job.rentables[0], offer=one),), standins=())
    made = running.make_runner(rented, tmp_path, cast("Any", SimpleNamespace()), Variables())
    assert made._training().losses_per_hour == losses


def test_an_unusable_storage_is_found_before_renting() -> None:
    experiment = SimpleNamespace(
        storage="/proc/nowhere", cloud=SimpleNamespace(instance_profile=None)
    )
    with pytest.raises(UsageError, match=r"storage /proc/nowhere: can't be used: .*nothing was"):
        running.check_storage(cast("Any", experiment))
