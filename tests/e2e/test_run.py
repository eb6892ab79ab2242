"""One run from an experiment to a model, and everything that is promised of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtune.engine.ledger import read_entries, read_header
from cloudtune.engine.resume import replay
from cloudtune.infra.aws.pricing import catalog
from cloudtune.runs.job import Job
from tests.bench import Bench

pytestmark = pytest.mark.cluster

DEADLINE, BUDGET = 180.0, 1.5


def test_a_run_from_experiment_to_model(bench: Bench) -> None:
    path = bench.experiment(trials=4, first=15, last=60)
    bench.profile(epoch=0.4, start=4.0)
    limits = ("--deadline", f"{DEADLINE}s", "--budget", f"${BUDGET}")
    done = bench("run", path, "--objective", "time", *limits).succeeded()
    assert "0 instances left (checked " in done.out
    report = bench.last_report()
    check_outcome(report)
    assert f"checkpoint: {report['best']['folder']}" in done.out
    check_limits(report)
    check_elasticity(report)
    check_launchers(report)
    check_replay(bench.home / "runs" / report["run"])
    assert bench.machines() == [], "an idle emulator ends with the run"


def check_outcome(report: dict[str, Any]) -> None:
    assert report["ended"] == "done"
    assert report["best"]["value"] == min(
        value for trial in report["trials"] for value in trial["history"].values()
    )
    assert (Path(report["best"]["checkpoint"]) / "manifest.json").exists()
    best = Path(report["best"]["folder"])
    assert best == Path(report["best"]["checkpoint"]).parents[1] / "best"
    assert set(torch.load(best / "state.pt")) == {"weight", "bias"}, "as the script wrote it"
    noted = json.loads((best / "cloudtune.json").read_text())
    assert (noted["trial"], noted["config"]) == (
        report["best"]["trial"],
        report["best"]["config"],
    )
    assert [trial["epoch"] for trial in report["trials"]] == [60, 30, 15, 15]


def check_limits(report: dict[str, Any]) -> None:
    """By the emulator's own record of its machines, not by our books."""
    offer = catalog("us-east-1", ("on-demand",)).offer("g7.12xlarge", "on-demand")
    lives = [(item["launched_at"], item["ended_at"]) for item in report["instances"]]
    bill = sum(offer.charge(ended - launched) for launched, ended in lives)
    assert 0 < bill <= BUDGET
    assert bill == pytest.approx(report["dollars"]["actual"], rel=0.1)
    assert max(ended for _, ended in lives) - min(begun for begun, _ in lives) < DEADLINE


def check_elasticity(report: dict[str, Any]) -> None:
    assert [size["instances"] for size in report["fleet"]][-1] == 0
    assert {size["instances"] for size in report["fleet"]} == {0, 1, 2}
    assert report["width_changes"], "somebody grew"
    for change in report["width_changes"]:
        assert change["next_epoch"] == change["last_epoch"] + 1
        assert (change["before"], change["after"]) == (1.0, 2.0)
    for checked in report["parameters_equal"].values():
        assert checked["equal"] == checked["epochs"] > 0


def check_launchers(report: dict[str, Any]) -> None:
    """Ray's autoscaler decided it, our provider asked for it, EC2 had it: the same instances."""
    added = [e["message"] for e in report["autoscaler_events"] if "Adding" in e["message"]]
    launched = {
        c["intent"]: c["instance"] for c in report["provider_calls"] if c["what"] == "launched"
    }
    assert {f"Adding 1 node(s) of type {intent}." for intent in launched} == set(added)
    assert {i["id"] for i in report["instances"]} == set(launched.values())
    assert {i["state"] for i in report["instances"]} == {"terminated"}


def check_replay(folder: Path) -> None:
    """The recorded events, fed to a fresh policy, give equal commands."""
    ledger = folder / "ledger.jsonl"
    job = Job.from_json(json.loads(json.dumps(read_header(ledger))))
    entries = list(read_entries(ledger))
    policy = job.policy()
    replay(policy, entries)
    assert policy.ended
