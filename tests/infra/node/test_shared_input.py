"""Trials on one node read what one process loads, whichever GPU each has, or what part of one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtune.infra.node.messages import Epoch, Failure
from tests.guard import watched
from tests.one_node import Node, make_part, node_in, training_in

TRAIN = """
import os, time
import torch
import cloudtune
from torch.utils.data import DataLoader, Dataset

class Points(Dataset):
    def __init__(self, turn): self.turn = turn
    def __len__(self): return 40
    def __getitem__(self, index):
        file = os.open("loaded", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"%d %d\\n" % (index, os.getpid()))
        os.close(file)
        return torch.rand(4) * self.turn

def train(config):
    model = cloudtune.prepare_model(torch.nn.Linear(4, 1))
    points = DataLoader(Points(config.get("turn", 1)), 4, shuffle=True)
    loader = cloudtune.prepare_data_loader(points, shared=True)
    for epoch in cloudtune.epochs():
        total = 0.0
        for batch in loader:
            total += model(batch).mean().item() * 0 + batch.sum().item()
            time.sleep(0.01)
        cloudtune.report({"loss": total})
"""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Spare workers are started whenever the node likes: see when it has closed."""
    yield from watched()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with node_in(tmp_path, TRAIN, training_in(tmp_path), spares=False) as node:
        yield node


def losses(node: Node, names: list[str]) -> dict[str, float]:
    """Wait until each of these trials has reported an epoch; returns their losses."""
    result: dict[str, float] = {}
    while set(result) != set(names):
        for message in node.agent.messages(node.last, node.last, 100.0):
            node.last = message.number
            assert not isinstance(message.body, Failure), message.body
            if isinstance(message.body, Epoch):
                result[message.session] = message.body.report.metrics["loss"]
    return result


def test_shared_and_whole_gpus_load_once(node: Node) -> None:
    names = ["a.1", "b.1", "c.1"]
    for name, width, gpu in zip(names, (0.5, 0.5, 1.0), (0, 0, 1), strict=True):
        node.agent.start(make_part(name, width, until=1, gpu=gpu))
    assert len(set(losses(node, names).values())) == 1, "the same chance in all of them"
    loaded = [line.split() for line in (node.folder / "loaded").read_text().splitlines()]
    assert Counter(index for index, _ in loaded) == {str(index): 1 for index in range(40)}
    assert sum("by another trial's" in node.log(name) for name in names) == 2
    (first,) = (name for name in names if "by this trial's" in node.log(name))

    # Who began it is stopped, and the others go on.
    node.stop(first)
    others = [name for name in names if name != first]
    for name in others:
        node.agent.grant(name, 2)
    assert len(set(losses(node, others).values())) == 1
    assert sum("epoch 2 is read from batch 1 on by" in node.log(name) for name in others) == 2
    node.stop(*others)
