"""Shares of a GPU, measured on the emulated cloud and planned with, through the command line."""

from pathlib import Path

import pytest

from cloudtune.engine.ledger import read_entries
from cloudtune.profiles.store import read
from tests.bench import Bench

pytestmark = [pytest.mark.cluster, pytest.mark.walk("it measures a script in every width")]


def test_packed_trials_are_measured_and_planned(bench: Bench) -> None:
    path = bench.experiment("import time; time.sleep(0.6)", trials=2, first=2, last=4)
    done = bench("profile", path, "--pack", "auto", "--epochs", "2", "--no-pace").succeeded(
        "trains 4 trials, 1/2 GPU each", "epoch on 1/2 GPU", "measured on emulated cloud"
    )
    (kept,) = bench.home.glob("profiles/*.json")
    (profile,) = read(kept)
    assert profile.widths[-3:] == (0.5, 1.0, 2.0)
    assert profile.epoch[0.25].n == 0, "two that sleep beside each other say that four can"
    assert "predicted, not measured" in done.out
    assert profile.memory == {}, "an emulated machine has no GPU memory to speak of"
    assert max_at_once(bench.home) == 4, "two GPUs had four trials in training"

    planned = bench.here("plan", path, "-o", "json", "--instances", "g7.12xlarge").succeeded()
    assert planned.json["feasible"] is True


def max_at_once(home: Path) -> int:
    """Return the most sessions that were set up, and not yet stopped, at once."""
    (path,) = home.glob("runs/*/measure.jsonl")
    live: set[str] = set()
    most = 0
    for entry in read_entries(path):
        kind = type(entry.event).__name__
        if kind == "TrialStarted":
            live.add(entry.event.session)  # type: ignore[union-attr]
        if kind == "TrialStopped":
            live.discard(entry.event.session)  # type: ignore[union-attr]
        most = max(most, len(live))
    return most
