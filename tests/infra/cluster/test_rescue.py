"""Files that the storage didn't take are fetched from their node: the best epoch's alone."""

import threading
from pathlib import Path
from typing import Any

import pytest

from cloudtune.infra.cluster import rescue
from cloudtune.infra.cluster.rescue import Rescue
from cloudtune.infra.node.agent import Agent
from cloudtune.infra.node.messages import Training
from cloudtune.model.events import EpochReport
from cloudtune.train.checkpoint import load


class Node:
    """Calls an agent's methods on held files, without an agent; None once it is gone."""

    def __init__(self) -> None:
        self.gone = False
        self.calls: list[str] = []

    def __call__(self, _instance: str, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        return None if self.gone else (getattr(Agent, method)(None, *arguments) or "done")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def fetch(tmp_path: Path, node: Node, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Rescue:
    monkeypatch.setattr("ray.get", lambda answer, timeout: answer)
    monkeypatch.setattr(rescue, "_CHUNK_BYTES", 1000)
    training = Training("train.py:train", "loss", "min", 9, "s", 0)
    return Rescue(tmp_path / "run", training, node, said.append)


def hold_epoch(folder: Path, epoch: int, loss: float) -> EpochReport:
    """Return an epoch's report whose files lie in a folder of the node."""
    place = folder / f"held-{epoch}"
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "state").write_bytes(bytes([epoch]) * 2500)
    return EpochReport(epoch, {"loss": loss}, None, 1.0, unsaved="full", held=str(place))


def test_only_the_best_are_kept(tmp_path: Path, node: Node, fetch: Rescue, said: list[str]) -> None:
    for epoch, loss in ((1, 0.5), (2, 0.3), (3, 0.4), (4, float("nan"))):
        fetch.hear("i-1", "t01", hold_epoch(tmp_path, epoch, loss))
    assert node.calls.count("held_files") == 2
    assert not list(tmp_path.glob("held-*")), "the node's disk would fill up"
    (kept,) = (tmp_path / "run" / "rescued").glob("*/*")
    assert kept.name == "epoch-00002"
    loaded = tmp_path / "loaded"
    assert load(str(kept), loaded).metrics == {"loss": 0.3}
    assert (loaded / "deep" / "state").read_bytes() == b"\2" * 2500
    assert said[-1] == f"the files of t01, epoch 2, are kept on this machine: {kept}"


def test_slow_fetch_keeps_better_epoch(
    tmp_path: Path, fetch: Rescue, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = threading.Thread(
        target=fetch.hear, args=("i-2", "t02", hold_epoch(tmp_path, 2, 0.2)), daemon=True
    )
    ask = fetch._ask

    def slow(*given: Any) -> Any:
        if better.ident is None:
            better.start()
            better.join(1.0)
        return ask(*given)

    monkeypatch.setattr(fetch, "_ask", slow)
    fetch.hear("i-1", "t01", hold_epoch(tmp_path, 1, 0.3))
    better.join()
    assert [path.parent.name for path in (tmp_path / "run" / "rescued").glob("*/*")] == ["t02"]


def test_a_worse_epoch_is_not_fetched(tmp_path: Path, node: Node, fetch: Rescue) -> None:
    fetch.hear("i-1", "t00", EpochReport(1, {"loss": 0.1}, "s/t00/epoch-00001", 1.0))
    fetch.hear("i-1", "t01", hold_epoch(tmp_path, 1, 0.2))
    assert node.calls == ["drop_held"]


def test_files_on_gone_node_are_lost(
    tmp_path: Path, node: Node, fetch: Rescue, said: list[str]
) -> None:
    node.gone = True
    fetch.hear("i-1", "t01", hold_epoch(tmp_path, 1, 0.2))
    assert said == ["the files of t01, epoch 1, can't be fetched: i-1 is gone"]
