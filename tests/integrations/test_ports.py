"""Scripts of other people's manner, ported: lines changed, and what real workers make of them."""

import difflib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.infra.node.messages import Epoch, Training
from tests.one_node import Node, make_part, reports

pytestmark = pytest.mark.usefixtures("leaves_nothing")

ROOT = Path(__file__).resolve().parents[2]
PORTS = ROOT / "examples" / "ports"
CONFIGS: dict[str, dict[str, Any]] = {
    "mnist": {"lr": 1.0, "gamma": 0.7, "batch_size": 64},
    "fashion_mnist": {"lr": 0.01, "batch_size": 64},
    "lightning": {"lr": 0.01, "hidden": 16, "batch_size": 32},
    "huggingface": {"lr": 0.005, "schedule": "linear", "batch_size": 16},
    "nanogpt": {"learning_rate": 0.003, "batch_size": 16},
}
SAME_AT_ANY_WIDTH = {"lightning", "huggingface"}
"""Those without random draws of a worker's own, such as dropout."""


def experiment(name: str) -> Experiment:
    return Experiment.load(PORTS / name / "experiment.yaml")


def count_changes(name: str) -> tuple[int, int]:
    """Count the lines that a port adds and takes away."""
    before, after = (
        (PORTS / name / f"{which}.py").read_text().splitlines() for which in ("before", "after")
    )
    changes = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return sum(change[0] == "+" for change in changes), sum(change[0] == "-" for change in changes)


def test_every_port_is_tested() -> None:
    assert {path.name for path in PORTS.iterdir() if path.is_dir()} == set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_page_counts_changed_lines(name: str) -> None:
    page = (ROOT / "docs" / "scripts.md").read_text("utf-8")
    added, removed = count_changes(name)
    assert re.search(rf"\(\.\./examples/ports/{name}/.*\| \+{added} −{removed} \|", page)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_port_passes_the_look_at_its_names(name: str) -> None:
    assert set(CONFIGS[name]) == set(experiment(name).search)
    experiment(name).check_train()


def test_ray_loop_is_refused() -> None:
    asked = {"train": "before.py:train_func_per_worker"}
    old = Experiment.load(PORTS / "fashion_mnist" / "experiment.yaml", asked)
    with pytest.raises(ExperimentError) as caught:
        old.check_train()
    result = [line.partition("before.py:")[2] for line in str(caught.value).splitlines()]
    assert [line.partition(";")[2] for line in result if "is Ray's" in line] == [
        f" write cloudtune.{name}"
        for name in (
            *("enable_reproducibility", "prepare_data_loader", "prepare_data_loader"),
            *("prepare_model", "get_context", "report"),
        )
    ]


@pytest.fixture
def node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Node]:
    asked = experiment(request.param)
    shutil.copy(PORTS / request.param / "after.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path))
    metric = asked.metric
    store = str(tmp_path / "store")
    made = Node(
        tmp_path, Training(asked.train, metric.name, metric.mode, 3, store, 0), spares=False
    )
    yield made
    made.agent.close()


def read_epoch(node: Node, session: str) -> dict[str, Any]:
    reported = node.hear(session, Epoch, 240.0)  # Lightning is 10 s of imports on a free core
    assert reported, node.log(session)
    (report,) = reports(reported)
    return report


@pytest.mark.walk("the libraries of the ports take half a minute to import")
@pytest.mark.parametrize(
    ("node", "name"), [(name, name) for name in CONFIGS], indirect=["node"], ids=list(CONFIGS)
)
def test_ports_resume_wider(node: Node, name: str) -> None:
    metric = experiment(name).metric.name
    node.agent.start(make_part("a.1", 1.0, until=1, **CONFIGS[name]))
    first = read_epoch(node, "a.1")
    node.agent.grant("a.1", 2)
    second = read_epoch(node, "a.1")
    assert [first["epoch"], second["epoch"]] == [1, 2]
    assert first["checkpoint"] is not None
    node.agent.stop("a.1")
    node.hear("a.1")

    node.agent.start(
        make_part("a.2", 2.0, until=2, checkpoint=first["checkpoint"], **CONFIGS[name])
    )
    wider = read_epoch(node, "a.2")
    assert (wider["epoch"], wider["in_sync"]) == (2, True)
    assert wider["checkpoint"] is not None
    if name in SAME_AT_ANY_WIDTH:
        assert wider["metrics"] == pytest.approx(second["metrics"], rel=1e-3)
    assert metric in wider["metrics"]
    for file in Path(wider["checkpoint"]).rglob("*.pt"):
        names = torch.load(file).get("model", {})
        assert not [item for item in names if item.startswith("module.")], "names of one width"
    node.agent.grant("a.2", 3)
    assert read_epoch(node, "a.2")["epoch"] == 3
    node.agent.stop("a.2")
    node.hear("a.2")
    logs = node.log("a.1") + node.log("a.2") + node.log("a.2", 1)
    assert "Traceback" not in logs
