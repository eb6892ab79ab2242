"""`profile --parallel`: a width is trained by the strategy that was measured to be faster."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cloudtune.engine.ledger import read_entries
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone, Event, TrialFailed
from cloudtune.profiles import store
from tests.bench import Bench
from tests.builders import profile
from tests.builders.experiments import write_experiment
from tests.builders.worlds import measure_in

MACHINE = "local-4x-cpu"
EXPERIMENT = """
name: small
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0.01, 0.1]}}
trials: 4
epochs: {min: 4, max: 16}
eta: 2
limits: {deadline: 10m}
cloud: {provider: local, slots: 4}
strategy: {name: halving, allocator: static-fluid}
"""

# What an epoch takes in seconds, by width and strategy; the others run out of memory.
Seconds: TypeAlias = Mapping[tuple[float, str], float]
SECONDS = {(1.0, "ddp"): 8, (2.0, "ddp"): 5, (2.0, "fsdp"): 6, (4.0, "ddp"): 4, (4.0, "fsdp"): 3}


class Trains(SimWorld):
    """Trials of a script that takes those seconds, and leaves the strategy to the run or not."""

    seconds: Seconds = SECONDS
    leaves = True

    def schedule(self, event: Event) -> None:
        if isinstance(event, EpochDone):
            seconds = self.seconds.get((self.sessions[event.session].command.width, event.parallel))
            if seconds is None:
                event = TrialFailed(self.now + 1, event.session, "out of memory", "", True)
            else:
                chosen = event.parallel if self.leaves else ""
                event = replace(event, at=self.now + seconds, seconds=seconds, parallel=chosen)
        super().schedule(event)


@pytest.fixture
def experiment(bench: Bench, simulated: list[Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment on this machine, whose script is measured and trained in virtual time."""
    truth = profile({1.0: 1.0, 2.0: 1.0, 4.0: 1.0}, start=0.3, name=MACHINE)
    loss = synthetic_metric("min", 0)
    measure_in(monkeypatch, lambda it: Trains((it,), "loss", loss), truth)
    return write_experiment(bench.folder, EXPERIMENT, "def train(config): ...\n")


def ways(bench: Bench) -> set[tuple[float, str]]:
    """Return how wide the trials of the last run were, and how they shared their models."""
    [ledger] = (bench.home / "runs").glob("small-*/ledger.jsonl")
    commands = [command for entry in read_entries(ledger) for command in entry.commands]
    return {(it.width, it.parallel) for it in commands if isinstance(it, StartTrial)}


def test_each_width_is_trained_by_the_faster_strategy(bench: Bench, experiment: Path) -> None:
    saved = bench.folder / "saved.json"
    done = bench.here("profile", experiment, "--parallel", "ddp,fsdp", "--save", saved).succeeded()
    assert "note: 4 GPUs by fsdp: 3 s an epoch (ddp: 4 s)" in done.out
    assert "epoch on 4 GPUs by fsdp (x2.67)" in done.out
    [kept] = store.read(saved)
    assert {width: kept.epoch_seconds(width) for width in kept.widths} == {1: 8, 2: 5, 4: 3}
    assert kept.parallel == {1: "ddp", 2: "ddp", 4: "fsdp"}
    data = json.loads(saved.read_text())
    del data["profiles"][0]["parallel"]
    saved.write_text(json.dumps(data))
    [old] = store.read(saved)
    assert old == replace(kept, parallel={}), "one from before says nothing, which is ddp"

    planned = bench.here("plan", experiment, "-v")
    assert f"{MACHINE}: trials on 2 GPUs by ddp, 4 GPUs by fsdp" in planned.out
    assert bench.here("run", experiment).code == 0
    assert ways(bench) == {(1, "ddp"), (2, "ddp"), (4, "fsdp")}


def test_what_runs_out_of_memory_makes_a_least_width(
    bench: Bench, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {(2.0, "fsdp"): 6, (4.0, "ddp"): 4, (4.0, "fsdp"): 5}
    monkeypatch.setattr(Trains, "seconds", seconds)
    done = bench.here("profile", experiment, "--parallel", "ddp,fsdp").succeeded()
    said = " ".join(done.out.split())
    assert "1 GPU left out: t11 (" in said
    assert "failed on 2 GPUs by ddp: out of memory" in said
    assert bench.here("run", experiment).code == 0
    assert ways(bench) == {(2, "fsdp"), (4, "ddp")}


def test_a_script_that_chooses_itself_is_not_measured_twice(
    bench: Bench, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trains, "leaves", False)
    done = bench.here("profile", experiment, "--parallel", "ddp,fsdp")
    assert done.code == 1
    assert 'prepare_model(model, parallel_strategy="auto")' in done.err
    assert not list((bench.home / "profiles").glob("*"))
