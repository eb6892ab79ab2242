"""Runs whose process is killed in the middle, and `cloudtune resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.fault_runs import one_run, outcome
from benchmarks.fault_runs_mischief import Case, Step
from cloudtune.events import RunResumed
from cloudtune.ledger import read_entries
from tests.e2e.conftest import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Bench, Done

pytestmark = pytest.mark.cluster
KILL = Case(
    "controller", 120.0, 1.0, steps=(Step("training", 1.0, "kill -9 controller", lasts=1.0),)
)


def test_a_killed_run_goes_on_to_the_same_winner(tmp_path: Path) -> None:
    """Of the emulator's own records: nothing left, nothing bought twice, both limits kept."""
    undisturbed = Case("undisturbed", 120.0, 1.0)
    plain, expected = one_run(tmp_path / "a", undisturbed, None)
    assert (plain.code, plain.wrong) == (0, [])
    row, told = one_run(tmp_path / "b", KILL, expected)
    assert row.wrong == []
    assert (row.code, row.resumed, row.instances, row.bought) == (0, 1, 2, 1)
    assert (row.left, row.processes, row.lost) == (0, 0, 0)
    assert (row.over, row.past) == (0.0, 0.0)
    assert row.differs is False
    assert told["best"]["trial"] == expected["best"]["trial"]
    assert outcome(told) == outcome(expected)
    (ledger,) = (tmp_path / "b").glob("h/runs/*/ledger.jsonl")
    heard = [entry.event for entry in read_entries(ledger)]
    assert sum(isinstance(event, RunResumed) for event in heard) == 1


def test_only_a_run_that_died_can_be_resumed(bench: Bench) -> None:
    check_refused(bench("resume"), "no run yet")
    path = bench.experiment(trials=2, first=2, last=4)
    bench.profile()
    process = bench.start("run", path, "--no-pace")
    wait_for(lambda: bool(bench.alive()))
    (folder,) = bench.home.glob("runs/*")
    check_refused(bench("resume", folder.name), f"is driven by process {process.pid}")
    check_refused(bench("resume", "nosuchrun"), "no run nosuchrun")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    check_refused(bench("resume"), f"run {folder.name} has ended", "cloudtune report")


def check_refused(done: Done, *words: str) -> None:
    """Look for one clear message and nothing else."""
    assert done.code == 2, done.out + done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert len(done.err.strip().splitlines()) == 1
    for word in words:
        assert word in done.err
