"""A run whose strategy decides as results come in, on the emulated cloud, with real training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtune.engine.ledger import Entry, read_entries
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone, TrialFailed, TrialLost
from tests.bench import Bench

pytestmark = [pytest.mark.cluster, pytest.mark.walk("a run of a strategy that no user has")]


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
        timeout=600,
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
