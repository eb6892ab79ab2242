"""A script that is measured by both strategies, and a trial that goes from one to the other."""

from pathlib import Path

import pytest

from cloudtune.engine.ledger import read_entries
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone
from tests.bench import Bench
from tests.builders.experiments import write_experiment

pytestmark = [pytest.mark.cluster, pytest.mark.walk("both strategies are measured at three widths")]

# Sharded, it is faster at two workers and slower at four.
SCRIPT = """
import tempfile, time
from pathlib import Path
import torch
import cloudtune

def train(config):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    net = cloudtune.prepare_model(model, parallel_strategy="auto")
    way = type(net).__name__
    workers = cloudtune.get_context().get_world_size()
    slower = 1.8 if way == {1: "", 2: "DataParallel", 4: "FSDPSequential"}[workers] else 1.0
    print("trains", way, "on", workers, flush=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config["lr"])
    if checkpoint := cloudtune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    for epoch in cloudtune.epochs():
        time.sleep(2.4 * slower / workers)
        loss = (net(points) - points.sum(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / "state.pt")
            saved = cloudtune.Checkpoint.from_directory(folder)
            cloudtune.report({"loss": float(loss.detach())}, saved)
"""
EXPERIMENT = """
name: small
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0.001, 0.01]}}
trials: 4
epochs: {min: 4, max: 16}
eta: 2
limits: {deadline: 20m}
cloud: {provider: local, slots: 4}
strategy: {name: halving, allocator: static-fluid}
"""


@pytest.fixture
def experiment(bench: Bench) -> Path:
    bench.environment["CUDA_VISIBLE_DEVICES"] = ""
    return write_experiment(bench.folder, EXPERIMENT, SCRIPT)


def test_trial_changes_ddp_to_fsdp(bench: Bench, experiment: Path) -> None:
    bench("profile", experiment, "--parallel", "ddp,fsdp", "--epochs", 2).succeeded()
    planned = bench.here("plan", experiment, "-v")
    assert "local-4x-cpu: trials on 2 GPUs by fsdp, 4 GPUs by ddp" in planned.out

    bench("run", experiment).succeeded()
    report = bench.last_report()
    entries = list(read_entries(bench.home / "runs" / report["run"] / "ledger.jsonl"))
    best = report["best"]["trial"]
    starts = [
        command
        for entry in entries
        for command in entry.commands
        if isinstance(command, StartTrial) and command.trial == best
    ]
    ways = [(1.0, "ddp"), (2.0, "fsdp"), (4.0, "ddp")]
    assert [(start.width, start.parallel) for start in starts] == ways
    printed = bench.here("logs", report["run"], best).out
    said = [line.partition("trains ")[2] for line in printed.split("\n") if "trains " in line]
    assert list(dict.fromkeys(said)) == [
        "Sequential on 1",
        "FSDPSequential on 2",
        "DataParallel on 4",
    ]

    events = [entry.event for entry in entries]
    epochs = [e for e in events if isinstance(e, EpochDone) and e.session.startswith(f"{best}.")]
    assert [event.epoch for event in epochs] == list(range(1, 17)), "none is trained twice"
    losses = [event.metrics["loss"] for event in epochs]
    assert losses == sorted(losses, reverse=True), "it goes on with model and optimizer"
