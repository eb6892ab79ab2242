"""Runs whose strategy decides as results come in, on the emulated cloud, with real training."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtune.engine.ledger import Entry, read_entries
from cloudtune.infra.aws.pricing import catalog
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone, TrialFailed, TrialLost
from cloudtune.train.checkpoint import load
from tests.bench import Bench
from tests.e2e.test_run import check_replay, check_who_launched

pytestmark = pytest.mark.cluster

DEADLINE, BUDGET = 120.0, 1.2


def test_a_run_that_decides_as_it_goes(bench: Bench, tmp_path: Path) -> None:
    path = bench.experiment(trials=5, first=3, last=12)
    bench.profile(epoch=0.4, start=4.0)
    limits = ("--deadline", f"{DEADLINE}s", "--budget", f"${BUDGET}")
    done = bench("run", path, "--strategy", "seer", *limits)
    assert done.code == 0, done.out + done.err
    for words in ("forecast / actual", "forecast p5", "0 instances left (checked "):
        assert words in done.out
    told = bench.last_report()
    check_told(told)
    check_limits(told)
    check_best(told, tmp_path / "best")
    check_who_launched(told)
    check_replay(bench.home / "runs" / told["run"])
    [listed] = json.loads(bench.here("runs", path, "-o", "json").out)
    assert (listed["run"], listed["ended"]) == (told["run"], "done")
    assert 1 <= listed["trials"] <= told["figures"]["trials"], "what was learned is kept"
    assert bench.machines() == [], "an idle emulator ends with the run"


def check_told(told: dict[str, Any]) -> None:
    assert (told["strategy"], told["ended"], told["stages"]) == ("seer", "done", [])
    started = told["figures"]["trials"]
    assert 2 <= started == len(told["trials"]) <= 5, "fewer on a slow machine: time is short"
    assert told["seconds"]["planned"] == told["forecast"]["seconds"]["p50"]
    assert 0 < told["figures"]["gpu_hours"] < 2 * 2 * DEADLINE / 3600
    reached = [rung["trials"] for rung in told["rungs"]]
    assert reached == sorted(reached, reverse=True)
    assert 1 <= reached[-1] <= reached[0] <= started


def check_limits(told: dict[str, Any]) -> None:
    """By the emulator's own record of its machines, not by our books."""
    offer = catalog("us-east-1", ("on-demand",)).offer("g7.12xlarge", "on-demand")
    lives = [(each["launched_at"], each["ended_at"]) for each in told["instances"]]
    bill = sum(offer.charge(ended - launched) for launched, ended in lives)
    assert 0 < bill <= BUDGET
    assert bill == pytest.approx(told["dollars"]["actual"], rel=0.1)
    assert max(ended for _, ended in lives) - min(begun for begun, _ in lives) < DEADLINE
    assert max(size["instances"] for size in told["fleet"]) <= 2


def check_best(told: dict[str, Any], folder: Path) -> None:
    best = told["best"]
    values = [value for trial in told["trials"] for value in trial["history"].values()]
    assert best["value"] == min(values)
    assert load(best["checkpoint"], folder).epoch == best["epoch"]
    assert set(torch.load(folder / "state.pt")) == {"weight", "bias"}


def test_sessions_as_only_such_a_run_asks_for_them(bench: Bench) -> None:
    """Stopped in mid-training, gone on elsewhere and wider, cloned, packed, extended on the way."""
    path = bench.experiment()
    bench.profile(epoch=0.2)
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.probe", str(path)],
        env={**os.environ, **bench.environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (bench.home / "runs").iterdir()
    entries = list(read_entries(folder / "ledger.jsonl"))
    starts = [c for entry in entries for c in entry.commands if isinstance(c, StartTrial)]
    assert [c.session for c in starts] == ["t00.1", "t00.2", "c00.1"]
    assert [c.width for c in starts] == [1.0, 2.0, 0.5]
    _, again, clone = starts
    assert (again.start_epoch, Path(again.checkpoint or "").parts[-2:]) == (
        3,
        ("t00", "epoch-00003"),
    )
    assert clone.start_epoch >= 10
    assert Path(clone.checkpoint or "").parts[-2] == "t00"
    for start in starts:
        epochs = epochs_of(entries, start.session)
        assert epochs == list(range(start.start_epoch + 1, start.start_epoch + 1 + len(epochs)))
    assert starts[0].until_epoch > 3, "it was stopped in mid-training"
    assert epochs_of(entries, "t00.1")[-1] >= 3
    assert len(epochs_of(entries, "c00.1")) >= 10
    assert not [e for e in entries if isinstance(e.event, TrialFailed | TrialLost)]


def epochs_of(entries: list[Entry], session: str) -> list[int]:
    events = [entry.event for entry in entries if isinstance(entry.event, EpochDone)]
    return [event.epoch for event in events if event.session == session]
