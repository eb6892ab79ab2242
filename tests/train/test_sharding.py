"""Models sharded over the workers of a trial: real workers, by gloo on this machine's CPU."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import cloudtune
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem
from cloudtune.infra.node.messages import Epoch, Gone
from cloudtune.infra.node.this_machine import this_machine
from cloudtune.model.commands import StartTrial
from cloudtune.model.plans import Limits
from cloudtune.model.trial import Parallel
from cloudtune.runs.report import simulate
from tests.builders import profile
from tests.builders.experiments import small_experiment
from tests.one_node import Node, failure, make_part, node_fixture

pytestmark = pytest.mark.usefixtures("leaves_nothing")

# Of rows that no width divides; batches of 10 are shared out unevenly among four.
SCRIPT = """
import tempfile, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cloudtune

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2))
        self.blocks.append(nn.Linear(5, 7))
        self.blocks[2].weight = self.first.weight
        self.last = nn.Linear(7, 3)

    def forward(self, inputs):
        hidden = self.first(inputs) + self.blocks[2](inputs)
        return self.last(self.blocks[1](self.blocks[0](hidden)))

def held(model):
    parts = (item.to_local() if hasattr(item, "to_local") else item for item in model.parameters())
    return sum(part.numel() for part in parts)

def train(config):
    torch.manual_seed(1)
    points = torch.randn(60, 5)
    labels = (points.sum(dim=1) > 0).long() + (points[:, 0] > 1).long()
    rank = cloudtune.get_context().get_world_rank()
    if rank > 0:
        torch.manual_seed(2)  # all get rank 0's parameters
    model = Net()
    whole = held(model)
    if config.get("trouble") == "optimizer first":
        early = torch.optim.AdamW(model.parameters(), lr=0.02)
    strategy = config["strategy"]
    options = {"ddp": {"bucket_cap_mb": 1}, "fsdp": {"reshard_after_forward": False}}
    own = options if strategy == "auto" else options[strategy]
    net = cloudtune.prepare_model(
        model, parallel_strategy=strategy, parallel_strategy_kwargs=own
    )
    blocks = [type(block).__name__ for block in model.blocks]
    print("holds", held(model) / whole, "in", *blocks, flush=True)
    if held(model) > config.get("room", 1.0) * whole:
        raise torch.OutOfMemoryError("the slot is full")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    loader = cloudtune.prepare_data_loader(
        DataLoader(TensorDataset(points, labels), batch_size=10, shuffle=True)
    )
    if checkpoint := cloudtune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in cloudtune.epochs():
        if config.get("trouble") == "waits" and epoch == 2:
            time.sleep(1.1)
            print("due", cloudtune.save_due(), flush=True)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(net(points), labels)
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0 or config.get("trouble") != "rank 0 saves":
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, Path(folder) / "state.pt")
            saved = cloudtune.Checkpoint.from_directory(folder)
            cloudtune.report({"loss": loss.item()}, saved)
"""
EPOCHS = 4


node = node_fixture(SCRIPT, gpus=4, losses_per_hour=1e9)  # saves are due each second


@pytest.fixture(scope="module")
def curve(node: Node) -> list[float]:
    """The losses at one worker."""
    return train_until(node, "t.1", 1, EPOCHS)[0]


def train_until(
    node: Node,
    session: str,
    width: int,
    until: int,
    strategy: str = "fsdp",
    checkpoint: str | None = None,
    **config: Any,
) -> tuple[list[float], str]:
    """Train through an epoch; return the losses and the last checkpoint."""
    node.agent.start(make_part(session, width, until, checkpoint, strategy=strategy, **config))
    losses: list[float] = []
    while True:
        reported = node.hear(session, Epoch | Gone)
        assert isinstance(reported[-1], Epoch), reported
        report = vars(reported[-1].report)
        losses.append(report["metrics"]["loss"])
        assert report["parallel"] == "", "the script has named it"
        if report["epoch"] == until:
            node.stop(session)
            return losses, report["checkpoint"]


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_it_learns_at_any_width(node: Node, curve: list[float], strategy: str, width: int) -> None:
    session = f"t.{strategy}{width}"
    losses, _ = train_until(node, session, width, EPOCHS, strategy)
    assert losses == pytest.approx(curve, abs=1e-3)
    assert losses[-1] < 0.95 * losses[0]
    _, share, _, *blocks = node.printed(session)
    if strategy == "fsdp" and width > 1:
        assert float(share) < 1 / width + 0.1, "a worker holds its part alone"
        # The last one shares a parameter with the model around it.
        assert blocks == ["FSDPSequential", "FSDPSequential", "Linear"]


@pytest.mark.parametrize("chosen", ["", "ddp", "fsdp"])
def test_the_run_has_the_strategy(node: Node, curve: list[float], chosen: Parallel) -> None:
    session = f"t.auto{chosen}"
    part = make_part(session, 2, EPOCHS, strategy="auto")
    command = dataclasses.replace(part.command, parallel=chosen)
    node.agent.start(dataclasses.replace(part, command=command))
    losses: list[float] = []
    while len(losses) < EPOCHS:
        last = node.hear(session, Epoch | Gone)[-1]
        assert isinstance(last, Epoch), last
        losses.append(last.report.metrics["loss"])
        assert last.report.parallel == (chosen or "ddp")
    node.stop(session)
    assert losses == pytest.approx(curve, abs=1e-3)
    is_sharded = "FSDPSequential" in node.printed(session)
    assert is_sharded is (chosen == "fsdp")


def test_a_checkpoint_opens_at_any_width_sharded_or_not(node: Node, curve: list[float]) -> None:
    checkpoint = None
    losses = []
    path = [("fsdp", 2), ("fsdp", 4), ("ddp", 2), ("fsdp", 1)]
    for epoch, (strategy, width) in enumerate(path, start=1):
        session = f"t.resized{epoch}"
        (loss,), checkpoint = train_until(node, session, width, epoch, strategy, checkpoint)
        losses.append(loss)
        with cloudtune.Checkpoint.from_storage(checkpoint).as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")  # of plain tensors alone: weights_only
        assert state["model"]["blocks.0.0.weight"].shape == (7, 7)
        assert state["optimizer"]["state"][0]["exp_avg"].shape == (7, 5)
    assert losses == pytest.approx(curve, abs=1e-3)


def test_optimizer_of_other_parameters_is_refused(node: Node) -> None:
    for width in (1, 2):
        session = f"early.{width}"
        node.agent.start(make_part(session, width, 1, strategy="fsdp", trouble="optimizer first"))
        why = failure(node.hear(session, Epoch | Gone)).error
        assert "replaces the parameters of the model; create the optimizer after it" in why


def test_a_state_one_rank_asks_for_is_an_error(node: Node) -> None:
    node.agent.start(make_part("alone.1", 2, 1, strategy="fsdp", trouble="rank 0 saves"))
    failed = failure(node.hear("alone.1", seconds=20.0))
    assert "reported epoch 1 without a state_dict() that rank 0 asks for" in failed.error


@pytest.mark.parametrize(("strategy", "due"), [("ddp", "True"), ("fsdp", "False")])
def test_rank_0_saves_in_mid_epoch_what_is_whole(node: Node, strategy: str, due: str) -> None:
    session = f"due.{strategy}"
    train_until(node, session, 2, 2, strategy, trouble="waits")
    assert node.printed(session, line=1) == ["due", due]


def test_a_model_too_large_for_one_gpu_gets_two(node: Node, tmp_path: Path) -> None:
    node.agent.start(make_part("large.1", 1, 1, strategy="fsdp", room=0.6))
    assert failure(node.hear("large.1", Epoch | Gone)).out_of_memory

    experiment = small_experiment(
        tmp_path,
        trials=4,
        trial={"gpus": {"min": 2}},
        limits={"deadline": "10m"},
        cloud={"provider": "local", "slots": 4},
    )
    measured = profile({1.0: 1.0, 2.0: 0.7, 4.0: 0.5}, name=this_machine(4).name)
    job = make_job(
        make_plan(build_problem(experiment, [measured]), Limits(600.0)), 0.0, paced=False
    )
    commands = [command for entry in simulate(job).entries for command in entry.commands]
    assert min(command.width for command in commands if isinstance(command, StartTrial)) == 2.0

    losses, _ = train_until(node, "large.2", 2, 2, room=0.6)
    assert losses[1] < losses[0]
