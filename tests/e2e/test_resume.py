"""Runs whose process is killed in the middle, and `cloudtune resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.fault_runs import one_run
from benchmarks.fault_runs_mischief import Case, Step
from cloudtune.engine.ledger import read_entries, read_header
from cloudtune.model.commands import PlanAnew, StartTrial
from cloudtune.model.events import EpochDone, RunContinued, RunResumed
from cloudtune.runs.job import Job, trials
from tests.bench import interrupt, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench import Bench, Done

pytestmark = pytest.mark.cluster
KILL = Case(
    "controller", 120.0, 1.0, steps=(Step("training", 1.0, "kill -9 controller", lasts=1.0),)
)


def test_a_killed_run_goes_on_to_the_same_winner(tmp_path: Path) -> None:
    row, told = one_run(tmp_path, KILL, None)
    # By the emulator's own records: nothing is left or bought twice, and both limits are kept.
    assert row.wrong == []
    assert (row.code, row.resumed, row.instances, row.bought) == (0, 1, 2, 1)
    assert (row.left, row.processes, row.lost) == (0, 0, 0)
    assert (row.over, row.past) == (0.0, 0.0)
    best = told["best"]
    assert (best["trial"], best["epoch"]) == (winner(tmp_path), 32)
    assert sorted(trial["epoch"] for trial in told["trials"]) == [8, 8, 16, 32]
    (ledger,) = tmp_path.glob("h/runs/*/ledger.jsonl")
    heard = [entry.event for entry in read_entries(ledger)]
    assert sum(isinstance(event, RunResumed) for event in heard) == 1


def winner(folder: Path) -> str:
    """Halve the trials by what the script's formula says of their configurations."""
    (ledger,) = folder.glob("h/runs/*/ledger.jsonl")
    job = Job.from_json(read_header(ledger))
    left = {trial.id: trial.config for trial in trials(job.experiment)}

    def loss(trial: str, epoch: int) -> float:
        x, y = left[trial]["x"], left[trial]["y"]
        assert isinstance(x, float)
        assert isinstance(y, float)
        return float((x - 0.4) ** 2 + y / epoch)

    better_half = sorted(left, key=lambda trial: loss(trial, 8))[:2]
    return min(better_half, key=lambda trial: loss(trial, 16))


def test_a_saved_plan_ends_by_ctrl_c_and_goes_on_from_its_checkpoints(bench: Bench) -> None:
    check_refused(bench.here("resume"), "no run yet")
    path = bench.experiment(trials=2, first=200, last=400)
    bench.profile()
    assert bench.here("plan", path, "--save", "plan.json").code == 0
    process = bench.start("run", "plan.json")
    wait_for(lambda: bool(bench.alive()))
    (folder,) = bench.home.glob("runs/*")
    ledger = folder / "ledger.jsonl"
    wait_for(lambda: epochs(ledger) > 0)
    check_refused(bench.here("resume", folder.name), f"is driven by process {process.pid}")
    check_refused(bench.here("resume", "nosuchrun"), "no run nosuchrun")
    interrupt(process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "0 instances left (checked " in out
    assert "Traceback" not in err
    check_refused(bench.here("resume", "--deadline", "2s"), "its deadline leaves no time", "+1h")
    told = epochs(ledger)
    check_refused(bench.here("resume", "--trials", "3"), "as in --trials +16")
    process = bench.start("resume", "--deadline", "+1h", "--trials", "+1")
    wait_for(lambda: epochs(ledger) > told)
    entries = list(read_entries(ledger))
    [begins] = [n for n, entry in enumerate(entries) if isinstance(entry.event, RunContinued)]
    starts = [c for e in entries[begins:] for c in e.commands if isinstance(c, StartTrial)]
    assert any(start.checkpoint for start in starts), "it trains on from what was saved"
    begin = entries[begins].event
    assert isinstance(begin, RunContinued)
    assert begin.trials == 1
    told_of = [c.why for c in entries[begins].commands if isinstance(c, PlanAnew)]
    assert told_of == ["1 more trial"], "which begins when it is its turn"
    interrupt(process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Continue: cloudtune resume" in out
    assert bench.alive() == []


def epochs(ledger: Path) -> int:
    return sum(isinstance(entry.event, EpochDone) for entry in read_entries(ledger))


def check_refused(done: Done, *words: str) -> None:
    """Look for one clear message and nothing else."""
    assert done.code == 2, done.out + done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert len(done.err.strip().splitlines()) == 1
    for word in words:
        assert word in done.err
