"""Trials on one GPU of a node train as one batched model, and each is a trial like any other."""

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtune.infra.node.messages import Body, Epoch, Failure, Gone, Lost, Ready, Training
from cloudtune.train.checkpoint import Checkpoint
from tests.bench import wait_for
from tests.guard import watched
from tests.one_node import Node, node_in, part_of

TRAIN = """
import time
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, default_collate
from cloudtune import fused

def model(config):
    hidden = config.get("hidden", 8)
    first = nn.Linear(6, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()
    return nn.Sequential(*first, fused.dropout(config.get("drop", 0.0)), nn.Linear(hidden, 3))

def loss(net, batch):
    inputs, targets = batch
    return functional.cross_entropy(net(inputs), targets)

def optimizer(config, epoch):
    if config.get("trouble") == epoch:
        raise ValueError("bad luck")
    return fused.Adam(lr=config["lr"] * 0.9**epoch)

def samples(count, seed):
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=chance)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))

def slow(found):
    with open("batches", "a") as file:
        file.write("one\\n")
    time.sleep(0.15)
    return default_collate(found)

def data(config):
    how = {"collate_fn": slow} if config.get("slow") else {}
    return DataLoader(samples(100, 1), batch_size=32, shuffle=True, **how)

def test_data(config):
    return DataLoader(samples(50, 2), batch_size=30)

def metrics(net, batch):
    inputs, targets = batch
    found = net(inputs)
    right = found.argmax(1) == targets
    told = {"test_loss": functional.cross_entropy(found, targets)}
    return {**told, "accuracy": right.double().mean()}

def train(config):
    numbers = {"loss": loss, "optimizer": optimizer, "metrics": metrics}
    fused.train(config, model=model, data=data, test_data=test_data, **numbers)
"""


HOSTS = "fused: this process trains for all that join it"


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """Workers and zygotes end with their node."""
    yield from watched()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    told = Training("train.py:train", "loss", "min", 9, str(folder / "store"), 0, fused=True)
    with node_in(folder, TRAIN, told, spares=False) as node:
        yield node


def start(node: Node, session: str, width: float, until: int, **more: Any) -> None:
    node.agent.start(part_of(session, width, until, gpu=7 if width < 1 else -1, **more))


class Heard:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.bodies: dict[str, list[Any]] = defaultdict(list)

    def until(self, session: str, kind: type[Body], count: int = 1) -> list[Any]:
        """Wait for so many messages of a kind from a session, and give all that there are."""
        while True:
            found = [each for each in self.bodies[session] if isinstance(each, kind)]
            if len(found) >= count:
                return found
            told = self.node.agent.messages(self.node.last, self.node.last, 60.0)
            assert told, f"{session} tells no more after {self.bodies[session]}"
            for message in told:
                self.node.last = message.number
                self.bodies[message.session].append(message.body)

    def reports(self, session: str, count: int) -> list[dict[str, Any]]:
        """Wait for so many epochs of a session, and give their reports."""
        return [vars(each.report) for each in self.until(session, Epoch, count)]

    def stop(self, *sessions: str) -> None:
        """Stop sessions, and wait until nothing is left of them."""
        for session in sessions:
            self.node.agent.stop(session)
        for session in sessions:
            self.until(session, Gone)


def metrics_of(reports: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [each["metrics"] for each in reports]


def test_trials_of_one_gpu_train_as_one_and_each_as_alone(node: Node) -> None:
    heard = Heard(node)
    rates = {"a": 0.05, "b": 0.01, "c": 0.1}
    for name, lr in rates.items():
        start(node, f"{name}.1", 1 / 3, until=2, lr=lr)
    together = {name: heard.reports(f"{name}.1", 2) for name in rates}
    heard.stop(*(f"{name}.1" for name in rates))
    for name in rates:
        assert "trains as one model with 2 others from epoch 1 on" in node.log(f"{name}.1")
    # Each goes on with a GPU of its own, from its own checkpoint; and one has never been there.
    for name in ("a", "b"):
        kept = together[name][-1]["checkpoint"]
        start(node, f"{name}.2", 1.0, until=3, checkpoint=kept, lr=rates[name])
        together[name] += heard.reports(f"{name}.2", 1)
        heard.stop(f"{name}.2")
        start(node, f"{name}.3", 1.0, until=3, lr=rates[name])
        apart = heard.reports(f"{name}.3", 3)
        heard.stop(f"{name}.3")
        for one, other in zip(metrics_of(together[name]), metrics_of(apart), strict=True):
            assert one == pytest.approx(other, rel=1e-3)
    assert "as one model" not in node.log("a.3")


def pid_of(node: Node, session: str) -> int:
    found = node.agent._forks.pid_of(node.agent._locals[session].workers[0].name)
    assert found is not None
    return found


def test_others_go_on_if_a_trial_fails_waits_or_dies(node: Node) -> None:
    heard = Heard(node)
    start(node, "d.1", 1 / 4, until=9, lr=0.01, trouble=3)
    heard.until("d.1", Ready)
    wait_for(lambda: HOSTS in node.log("d.1"))
    for name, until in {"e": 4, "f": 4, "g": 2}.items():
        start(node, f"{name}.1", 1 / 4, until=until, lr=0.02)
    (failure,) = heard.until("d.1", Failure)
    assert failure.error == "ValueError: bad luck"
    assert len(heard.reports("d.1", 2)) == 2
    for name in ("e", "f"):
        assert [each["epoch"] for each in heard.reports(f"{name}.1", 4)] == [1, 2, 3, 4]
    assert len(heard.reports("g.1", 2)) == 2, "it waits for its strategy, and nobody for it"

    hosts = [name for name in "defg" if HOSTS in node.log(f"{name}.1")]
    assert len(hosts) == 2
    os.kill(pid_of(node, f"{hosts[1]}.1"), signal.SIGKILL)
    heard.until(f"{hosts[1]}.1", Lost)
    others = sorted(set("efg") - set(hosts))
    for name in others:
        node.agent.grant(f"{name}.1", 5)
    for name in others:
        assert [each["epoch"] for each in heard.reports(f"{name}.1", 5)] == [1, 2, 3, 4, 5]
    heard.stop(*(f"{name}.1" for name in others))


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_in_mid_epoch_too_no_epoch_is_lost_with_who_computes(node: Node, way: str) -> None:
    heard, batches = Heard(node), node.folder / "batches"
    batches.write_text("")
    names = [f"{way}-{name}" for name in "kl"]
    for number, name in enumerate(names, 1):
        start(node, f"{name}.1", 1 / 3, until=1, lr=0.02 * number, slow=True)
    for name in names:
        heard.reports(f"{name}.1", 1)
    (host,) = (name for name in names if HOSTS in node.log(f"{name}.1"))
    (other,) = set(names) - {host}
    before = len(batches.read_text())
    for name in names:
        node.agent.grant(f"{name}.1", 2)
    wait_for(lambda: len(batches.read_text()) > before + 4)  # the second batch of four
    if way == "killed":
        os.kill(pid_of(node, f"{host}.1"), signal.SIGKILL)
        heard.until(f"{host}.1", Lost)
    else:
        heard.stop(f"{host}.1")
    found = heard.reports(f"{other}.1", 2)
    assert [each["epoch"] for each in found] == [1, 2]
    # One that is stopped ends the epoch for all that have joined it: the other may come later.
    if way == "killed":
        assert HOSTS in node.log(f"{other}.1")
    heard.stop(f"{other}.1")
    start(node, f"{other}.2", 1.0, until=2, lr=0.02 * (1 + names.index(other)))
    apart = heard.reports(f"{other}.2", 2)
    heard.stop(f"{other}.2")
    for one, alone in zip(metrics_of(found), metrics_of(apart), strict=True):
        assert one == pytest.approx(alone, rel=1e-3)


def test_other_shapes_train_beside_and_other_numbers_within(node: Node) -> None:
    heard = Heard(node)
    configs: dict[str, dict[str, Any]] = {
        "h": {"lr": 0.01},
        "i": {"lr": 0.02, "drop": 0.5},
        "j": {"lr": 0.01, "hidden": 16},
    }
    for name, config in configs.items():
        start(node, f"{name}.1", 1 / 3, until=1, **config)
    for name in configs:
        heard.reports(f"{name}.1", 1)
    heard.stop(*(f"{name}.1" for name in configs))
    logs = {name: node.log(f"{name}.1") for name in configs}
    assert "with 1 other from epoch 1" in logs["h"]
    assert "with 1 other from epoch 1" in logs["i"]
    assert "with 0 others from epoch 1" in logs["j"]
    with Checkpoint(heard.reports("i.1", 1)[0]["checkpoint"], 1).as_directory() as folder:
        kept = torch.load(Path(folder) / "state.pt")
    assert set(kept) == {"model", "optimizer"}
    assert list(kept["model"])[-2:] == ["4.weight", "4.bias"]
    assert kept["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.02 * 0.9)
