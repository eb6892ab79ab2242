"""What `make demo` promises, without a run: a cheaper plan, and test images that are new."""

import importlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from cloudtune.cli import main
from cloudtune.forecast import prediction
from cloudtune.model.plans import Limits
from cloudtune.train.best import keep_best
from cloudtune.train.checkpoint import CheckpointStore
from cloudtune.train.user_script import load_function
from tests.builders import NODE_BOUNDARY, Setting, keep_run, play, profile
from tests.builders.live import elastic_job, report_of

Called = Callable[..., str]

FOLDER = Path(__file__).parents[2] / "examples/smudged"
SETTING = Setting(12, 2, 18, 3, profile=profile(NODE_BOUNDARY), max_instances=3)
PLAN = SETTING.plan(limits=Limits(deadline=105.0))
"""12 trials on 3 instances, 4 on 2 at twice the width, and 1 on 1 at four times."""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    """Return what a command line prints, on a machine that knows nothing yet."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))

    def call(*arguments: str) -> str:
        shown = CliRunner().invoke(main.cli, arguments, standalone_mode=False)
        assert shown.exception is None, shown.exception
        return shown.output

    return call


def test_its_plan_keeps_both_limits(demo: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 10_000)  # 50,000 take a while
    plan = json.loads(demo("plan", str(FOLDER / "experiment.yaml"), "-o", "json"))
    assert plan["strategy"] == "best"
    assert plan["plan"]["forecast"]["within"] == 1.0
    others = {item["name"]: item["plan"]["forecast"] for item in plan["alternatives"]}
    ours, half = plan["plan"]["forecast"], others["half the budget"]
    assert ours["epochs"]["p50"] == 54
    assert half["trials"]["p50"] < 0.8 * ours["trials"]["p50"]


def test_demo_beats_a_fixed_cluster(demo: Called) -> None:
    fixed = ("plan", str(FOLDER / "experiment.yaml"), "--objective", "cost", "--trials", "18")
    plan = json.loads(demo(*fixed, "-o", "json"))
    assert cost_ratios(plan)["best static cluster"] > 1.1
    plan = json.loads(demo(*fixed, "--deadline", "1h", "-o", "json"))
    assert cost_ratios(plan)["best static cluster"] == pytest.approx(1.0)


def cost_ratios(plan: dict[str, Any]) -> dict[str, float]:
    mine = plan["plan"]["estimate"]["dollars"]
    estimates = {item["name"]: item["plan"]["estimate"] for item in plan["alternatives"]}
    return {name: estimate["dollars"] / mine for name, estimate in estimates.items()}


def test_training_sees_no_test_image(monkeypatch: pytest.MonkeyPatch) -> None:
    train = load_function(FOLDER, "train.py:train")
    script = train.__globals__
    asked: list[str] = []
    load = script["load"]

    def noted(part: str) -> Any:
        asked.append(part)
        return load(part)

    monkeypatch.setitem(script, "load", noted)
    monkeypatch.setattr("cloudtune.epochs", lambda: iter(()))
    config = {"batch_size": 64, "channels": 2, "hidden": 2, "dropout": 0.0}
    train({**config, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "label_smoothing": 0.0})
    assert sorted(asked) == ["train", "validation"]
    monkeypatch.setitem(script, "smudge", lambda images, *_: images)
    parts = [
        {tuple(image.flatten().tolist()) for image in load(part).tensors[0]}
        for part in ("train", "validation", "test")
    ]
    assert [len(part) for part in parts] == [1079, 359, 359]
    assert len(set.union(*parts)) == 1797


def test_the_winner_s_files_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run leaves them: in best/, with the script's own names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("score", "train"):
        monkeypatch.setitem(sys.modules, name, None)  # so that what is imported here goes again
        del sys.modules[name]
    score: Any = importlib.import_module("score")
    config = {"channels": 2, "hidden": 2, "dropout": 0.0}
    network = score.script.build_network(config)
    made, storage = tmp_path / "made", CheckpointStore(str(tmp_path / "s"))
    made.mkdir()
    torch.save({"network": network.state_dict()}, made / "state.pt")
    best = keep_best(str(tmp_path / "s"), storage.save("t00", 4, {}, made), {})
    result = score.winner(SimpleNamespace(config=config, checkpoint=best, epoch=4))
    assert result == score.script.accuracy(network, score.script.load("test"), torch.device("cpu"))


def test_demo_compares_other_costs(demo: Called, tmp_path: Path) -> None:
    job, entries = SETTING.job(PLAN), play(SETTING, PLAN).entries
    job = replace(job, limits=Limits(deadline=126.0))  # some of it is for setting up and returning
    keep_run(tmp_path, replace(job, run="mine"), entries)
    data = json.loads(demo("report", "mine", "--against", "-o", "json"))
    dollars = {name: item["dollars"] for name, item in data["others"].items()}
    assert data["others"]["naive elastic"]["keeps_limits"]
    assert data["plan"]["dollars"] == pytest.approx(PLAN.estimate.dollars)
    assert dollars["best static cluster"] >= dollars["naive elastic"] >= PLAN.estimate.dollars
    random = data["random_search"]
    assert 1 <= random["trials"] < 12  # as many as stopping early lets be tried
    assert random["dollars"] <= PLAN.estimate.dollars
    shown = demo("report", "mine", "--against")
    assert "best static cluster, simulated" in " ".join(shown.split())
    assert f"trains {random['trials']} configuration" in shown


def test_a_search_is_shown_against_a_fixed_fleet(demo: Called, tmp_path: Path) -> None:
    """Its bill alone says little: a fixed fleet may cost less as it tries fewer configurations."""
    report = report_of(elastic_job("best"))
    keep_run(tmp_path, replace(report.job, run="search"), report.entries)
    others = json.loads(demo("report", "search", "--against", "-o", "json"))["others"]
    fixed = others["the same on a fixed fleet"]
    lines = demo("report", "search", "--against").splitlines()
    heading = next(line for line in lines if "trials" in line)
    assert "against the bill" in heading
    mine, other = (
        next(line for line in lines if line.startswith(name)) for name in (" this run", " the same")
    )
    best = report.policy.best
    assert best is not None
    own = (len(report.policy.trials), report.policy.trials[best.trial].epoch)
    for line, counts in ((mine, own), (other, (fixed["trials"], fixed["epochs"]))):
        assert "  ".join(f"{count:.0f}" for count in counts) in re.sub(" +", "  ", line)
