"""accelerate as docs/scripts.md has it: its place by the environment, the batch kept."""

import textwrap
from pathlib import Path

import pytest

from cloudtune.infra.node.messages import Epoch, Training
from tests.one_node import Node, make_part, reports

pytestmark = pytest.mark.usefixtures("leaves_nothing")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scripts.md"
BEFORE = """
import tempfile
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset
import cloudtune

def train(config):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
"""
STEPS = """
sizes = []
for inputs, wanted in loader:
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
    sizes.append(len(inputs))
print("batches", sizes, "of", accelerator.num_processes, flush=True)
accuracy = -float(accelerator.reduce(loss.detach(), "mean"))
"""


@pytest.mark.walk("accelerate takes seconds to import, in every worker")
def test_the_recipe_trains_at_each_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = PAGE.read_text("utf-8").partition("## accelerate")[2].split("```")[1]
    body = recipe.removeprefix("python\n").replace("    ...\n", textwrap.indent(STEPS, "    "))
    (tmp_path / "train.py").write_text(BEFORE + textwrap.indent(body, "    "))
    monkeypatch.chdir(tmp_path)
    store = str(tmp_path / "store")
    result = Training("train.py:train", "val_accuracy", "max", 3, store, 0)
    node = Node(tmp_path, result, spares=False)
    try:
        node.agent.start(make_part("a.1", 1.0, until=2))
        first, second = (reports(node.hear("a.1", Epoch, 240.0))[0] for _ in range(2))
        node.agent.stop("a.1")
        node.hear("a.1")
        node.agent.start(make_part("a.2", 2.0, until=2, checkpoint=first["checkpoint"]))
        (wider,) = reports(node.hear("a.2", Epoch, 240.0))
        node.agent.stop("a.2")
        node.hear("a.2")
    finally:
        node.agent.close()
    assert (wider["epoch"], wider["in_sync"]) == (2, True)
    assert second["metrics"]["val_accuracy"] > first["metrics"]["val_accuracy"]
    assert "batches [16, 16, 16, 16] of 1" in node.log("a.1")
    assert "batches [8, 8, 8, 8] of 2" in node.log("a.2")
