"""The digits example, which every user copies: it learns, at any width, from any checkpoint."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtune.experiment import Experiment
from cloudtune.experiment.spaces import sample
from cloudtune.model.events import EpochReport
from cloudtune.train.checkpoint import CheckpointStore, read_manifest
from cloudtune.train.user_script import load_function
from tests.train.sessions import run_to_grant

pytestmark = pytest.mark.usefixtures("as_a_worker")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "digits"
CONFIG = {
    "lr": 0.03,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "batch_size": 32,
    "channels": 20,
    "hidden": 64,
    "dropout": 0.2,
    "label_smoothing": 0.05,
    "shift": 1,
}
# Without random draws in it, training takes the same steps at any width. A small learning rate
# keeps what rounding makes of them small as well.
PLAIN_CONFIG = {**CONFIG, "channels": 12, "dropout": 0.0, "shift": 0, "lr": 0.01}

# One rank of a trial, as a worker process runs it; its reports go to standard output.
WORKER = """
import json, sys
from pathlib import Path
import torch
from cloudtune.infra.node.worker import leave
from cloudtune.train.checkpoint import CheckpointStore
from cloudtune.train.sync_check import Ranks
from cloudtune.train.session import Session
from cloudtune.train.user_script import load_function

example, folder, rank, config = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
store = torch.distributed.FileStore(f"{folder}/meeting", 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
session = Session(
    "t1", lambda report: print(json.dumps(vars(report))), "val_accuracy", "max", 2,
    rank=rank, local_rank=rank, world_size=2, store=CheckpointStore(f"{folder}/store"),
    ranks=Ranks(torch.distributed.PrefixStore("t1", store), rank, 2),
)
session.grant(3)
function = load_function(example, "train.py:train")
session.run(function, json.loads(config))
torch.distributed.destroy_process_group()
leave()
"""


def train(config: dict[str, Any], epochs: int, **options: Any) -> list[EpochReport]:
    given = {"metric_name": "val_accuracy", "max_epoch": epochs, **options}
    return run_to_grant(load_function(EXAMPLE, "train.py:train"), config=config, **given)


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **more,
    }


def train_on_two(folder: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Train two epochs in two processes; give the reports of rank 0."""
    arguments = [str(EXAMPLE), str(folder)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments, str(rank), json.dumps(config)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [worker.communicate(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert outputs[1][0] == "", "only rank 0 delivers"
    return [json.loads(line) for line in outputs[0][0].splitlines()]


def test_it_learns() -> None:
    reports = train(CONFIG, 6)
    assert set(reports[0].metrics) == {"val_accuracy", "val_loss", "train_loss"}
    assert reports[0].metrics["val_accuracy"] < reports[-1].metrics["val_accuracy"]
    assert reports[-1].metrics["val_accuracy"] > 0.9


def test_divergence_is_reported_and_no_crash() -> None:
    last = train({**CONFIG, "lr": 1.0, "momentum": 0.95, "batch_size": 16}, 2)[-1].metrics
    assert math.isnan(last["val_loss"])
    assert last["val_accuracy"] < 0.2


def test_two_workers_train_as_one_and_one_continues(tmp_path: Path) -> None:
    alone = train(PLAIN_CONFIG, 2)
    together = train_on_two(tmp_path, PLAIN_CONFIG)

    assert [report["epoch"] for report in together] == [1, 2]
    assert [report["in_sync"] for report in together] == [True, True]
    for one, two in zip(alone, together, strict=True):
        assert two["metrics"]["val_loss"] == pytest.approx(one.metrics["val_loss"], rel=1e-4)

    path = together[-1]["checkpoint"]
    store = CheckpointStore(str(tmp_path / "store"))
    assert path == store.latest("t1")
    assert read_manifest(path).epoch == 2
    onward = train(PLAIN_CONFIG, 4, restore=path, store=store)
    assert [report.epoch for report in onward] == [3, 4]
    straight = train(PLAIN_CONFIG, 4)
    assert onward[-1].metrics["val_loss"] == pytest.approx(
        straight[-1].metrics["val_loss"], rel=1e-2
    )


def test_the_experiments_search_space_is_what_the_script_takes() -> None:
    experiment = Experiment.load(EXAMPLE / "experiment.yaml")
    experiment.check_train()
    assert set(experiment.space) == set(CONFIG)
    first, *others = sample(experiment.space, experiment.fixed_trials, experiment.seed)
    assert len(others) == experiment.fixed_trials - 1
    assert experiment.metric.name in train(dict(first), 1)[0].metrics
