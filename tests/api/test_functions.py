"""Training functions that stand in no file: sent to workers with what they use, or refused."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cloudtune
from cloudtune.api.experiments import with_named_function
from cloudtune.errors import UsageError
from cloudtune.lifecycle import runner
from cloudtune.profiles.store import write
from cloudtune.runs import home
from cloudtune.runs.job import Job
from cloudtune.train.user_script import load_function
from tests.bench import python, script_profile
from tests.builders.experiments import FIELDS

# A program that is in no file, as a notebook's cells.
CELLS = """
import json, sys
import helper
import cloudtune
from cloudtune.api.experiments import with_named_function

STEP = {step}

class Net:
    def __init__(self, lr):
        self.lr = lr

def rate(config):
    return Net(config["lr"]).lr * STEP

def train(config):
    names = {{"a", "b", "c"}}
    return sum([rate(config) for _ in "a"]) + helper.OFFSET + len([n for n in names])

print(json.dumps(with_named_function({{"train": train}})))
"""
WORKER = """
import sys
from pathlib import Path
from cloudtune.train.user_script import load_function
for name in sys.argv[2:]:
    print(load_function(Path(sys.argv[1]), name)({"lr": 2.0}))
"""


def test_notebook_function_trains_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("OFFSET = 100\n")
    elsewhere = tmp_path / "node"
    result = [eval(python(CELLS.format(step=step), cwd=tmp_path).stdout) for step in (3, 3, 4)]
    assert result[0] == result[1], "the same is the same file: its measured speed is known again"
    assert result[2]["train"] != result[0]["train"]
    assert {item["directory"] for item in result} == {str(tmp_path)}
    elsewhere.mkdir()
    for path in [
        *tmp_path.glob("*.py"),
        *tmp_path.glob("*.pkl"),
    ]:  # as the folder is copied to an instance
        path.rename(elsewhere / path.name)
    names = [item["train"] for item in result[1:]]
    assert python(WORKER, str(elsewhere), *names, cwd=tmp_path).stdout == "109.0\n111.0\n"


def send(function: Callable[..., object], folder: Path) -> Any:
    fields = with_named_function({"train": function, "directory": str(folder)})
    return load_function(folder, fields["train"])


def test_closures_lambdas_and_partials_are_sent(tmp_path: Path) -> None:
    factor = 3

    def within(config: dict[str, Any]) -> float:
        return float(config["lr"] * factor)

    assert send(within, tmp_path)({"lr": 2.0}) == 6.0
    assert send(lambda config: config["lr"] + factor, tmp_path)({"lr": 2.0}) == 5.0
    assert send(partial(within), tmp_path)({"lr": 1.0}) == 3.0


def test_a_saved_plan_puts_its_module_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "mine"
    folder.mkdir()
    trained: list[float] = []
    endings: list[type[BaseException]] = [RuntimeError, KeyboardInterrupt]

    def train(config: dict[str, Any]) -> float:
        return float(config["lr"])

    def carry_out(job: Job, _reporter: object) -> None:
        with home.with_module(job.experiment):  # another run of the same function
            pass
        trained.append(load_function(folder, job.experiment.train)({"lr": 2.0}))  # type: ignore[arg-type]
        raise endings[len(trained) - 1]

    monkeypatch.setattr(runner, "run_job", carry_out)
    own = {"train": train, "directory": str(folder), "strategy": "sha"}
    fields = {**FIELDS, **own, "epochs": {"max": 4}, "cloud": {"instances": ["g4dn.12xlarge"]}}
    module = folder / with_named_function(fields)["train"].partition(":")[0]
    write(tmp_path / "profile.json", [script_profile(module)])
    known = str(tmp_path / "profile.json")
    plan = cloudtune.plan(fields, deadline="10m", profile=known)
    sources: list[Any] = [plan, tmp_path / "plan.json"]
    for source, ending in zip(sources, endings, strict=True):
        assert list(folder.iterdir()) == []
        assert "Plan of x" in str(plan)
        with pytest.raises(ending):
            cloudtune.run(source, progress=False)
        assert list(folder.iterdir()) == []
        plan.save(tmp_path / "plan.json")
    assert trained == [2.0, 2.0]


def test_unpicklable_values_are_named(tmp_path: Path) -> None:
    lock, data = threading.Lock(), bytes(20 * 2**20)

    def locks() -> None:
        with lock:
            pass

    def indirectly(config: dict[str, Any]) -> None:
        locks()

    def takes_data(config: dict[str, Any]) -> int:
        return len(data)

    for function, result in (
        (indirectly, "uses lock, a lock, which can't be sent to a worker; create it within"),
        (takes_data, "captures 20 MiB of data, most of it in data; load it from a file"),
        (len, "train: len isn't a training function"),
    ):
        with pytest.raises(UsageError, match=result):
            cloudtune.plan({"train": function, "directory": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="isn't defined in a file, and cloudtune can't write"):
        send(lambda config: None, tmp_path / "nowhere")
