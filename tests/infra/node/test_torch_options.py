"""How torch is set up in real workers: how models are wrapped, and its threads."""

from pathlib import Path
from typing import Any

import pytest

from cloudtune.infra.node.boot import Join, node_environment
from cloudtune.infra.node.gpu_sharing import NodeGpus
from cloudtune.infra.node.messages import Epoch
from cloudtune.infra.node.this_machine import physical_cores
from tests.infra.mps_stand_in import write_smi
from tests.one_node import Node, failure, make_part, node_fixture, reports, training_in

pytestmark = pytest.mark.usefixtures("leaves_nothing")

TRAIN = """
import os, tempfile
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
import cloudtune

class Halves(torch.nn.Module):
    '''Of which a step uses one half or the other, or one half twice.'''

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, inputs, number, kind):
        if kind == "twice":
            once = torch.utils.checkpoint.checkpoint(self.first, inputs, use_reentrant=True)
            again = torch.utils.checkpoint.checkpoint(self.first, inputs, use_reentrant=True)
            return once + again + self.second(inputs)
        return self.first(inputs) if number % 2 else self.second(inputs)

def train(config):
    print("pid", os.getpid(), "threads", torch.get_num_threads(), flush=True)
    torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    print("run", len(os.listdir("/proc/self/task")), flush=True)
    model = Halves()
    net = cloudtune.prepare_model(model, **config["options"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
    inputs = torch.linspace(-1, 1, 64).reshape(16, 4)
    loader = cloudtune.prepare_data_loader(DataLoader(TensorDataset(inputs), batch_size=4))
    for epoch in cloudtune.epochs():
        for number, (batch,) in enumerate(loader):
            batch.requires_grad_(config["kind"] == "twice")
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config["kind"] == "amp"):
                loss = net(batch, number, config["kind"]).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        with tempfile.TemporaryDirectory() as folder:
            parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
            state = {name: each.state_dict() for name, each in parts.items()}
            torch.save(state, Path(folder) / "state.pt")
            weight = sum(float(each.detach().sum()) for each in model.parameters())
            cloudtune.report(
                {"loss": loss.item(), "scale": scaler.get_scale(), "weight": weight},
                cloudtune.Checkpoint.from_directory(folder),
            )
"""


node = node_fixture(TRAIN, spares=False)


@pytest.mark.parametrize(
    ("kind", "option"), [("halves", "find_unused_parameters"), ("twice", "static_graph")]
)
def test_steps_may_skip_or_reuse_names(node: Node, kind: str, option: str) -> None:
    node.agent.start(make_part(f"{kind}.1", 2.0, until=2, kind=kind, options={option: True}))
    result = [*node.hear(f"{kind}.1", Epoch), *node.hear(f"{kind}.1", Epoch)]
    assert [report["in_sync"] for report in reports(result)] == [True, True]
    node.stop(f"{kind}.1")


@pytest.mark.parametrize(
    ("kind", "wrong", "option"),
    [
        ("halves", {}, "find_unused_parameters"),
        ("twice", {"find_unused_parameters": True}, "static_graph"),
    ],
)
def test_missing_torch_option_gets_advice(
    node: Node, kind: str, wrong: dict[str, bool], option: str
) -> None:
    node.agent.start(make_part(f"wrong-{kind}.1", 2.0, until=2, kind=kind, options=wrong))
    failed = failure(node.hear(f"wrong-{kind}.1"))
    assert f"prepare_model(model, {option}=True)" in failed.error
    assert not failed.peer


def test_mixed_precision_scale_survives_resizing(node: Node) -> None:
    """The scale doubles after three steps without an overflow, of four in an epoch."""
    given: dict[str, Any] = {"kind": "amp", "options": {"find_unused_parameters": True}}
    node.agent.start(make_part("alone.1", 1.0, until=3, **given))
    alone = [reports(node.hear("alone.1", Epoch))[0] for _ in range(3)]
    assert [item["metrics"]["scale"] for item in alone] == [8.0, 16.0, 64.0]
    node.stop("alone.1")
    first = str(alone[0]["checkpoint"])
    node.agent.start(make_part("alone.2", 2.0, until=3, checkpoint=first, **given))
    wider = [reports(node.hear("alone.2", Epoch))[0] for _ in range(2)]
    assert [item["metrics"]["scale"] for item in wider] == [16.0, 64.0]
    assert all(item["in_sync"] for item in wider)
    for one, other in zip(alone[1:], wider, strict=True):
        assert one["metrics"]["weight"] == pytest.approx(other["metrics"]["weight"], abs=0.02)
    node.stop("alone.2")


def test_a_worker_has_a_share_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray has it
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    node = Node(tmp_path, training_in(tmp_path), spares=False, gpus=1)
    try:
        for session, said in (("said.1", "3"), ("share.1", "")):
            monkeypatch.setenv("CLOUDTUNE_THREADS", said)
            node.agent.start(make_part(session, 1.0, until=1, kind="", options={}))
            node.hear(session, Epoch)
            node.stop(session)
    finally:
        node.agent.close()
    assert node.printed("said.1")[3] == "3"
    assert int(node.printed("said.1", line=1)[1]) >= 3 + 1, "its own, and who hears orders"
    assert node.printed("share.1")[3] == str(physical_cores())


def test_a_nodes_gpus_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtune.infra.node.gpu_sharing.physical_cores", lambda: 16)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [NodeGpus(gpus).threads(1.0) for gpus in (1, 2, 8, 32)] == [16, 8, 2, 1]
    assert [NodeGpus(2).threads(share) for share in (0.5, 0.25, 0.125, 0.1)] == [4, 2, 1, 1]
    write_smi(tmp_path, "0, GPU-0, cloudtune stand-in, 0\n")
    assert NodeGpus(1).threads(1.0) == 1, "an emulated machine"


def test_node_thread_count_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t")
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    join = Join("10.0.0.1:1", "intent", 1)
    assert node_environment(join, "i-1", "10.0.0.2")["CLOUDTUNE_THREADS"] == "6"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert node_environment(join, "i-1", "10.0.0.2")["CLOUDTUNE_THREADS"] == ""
