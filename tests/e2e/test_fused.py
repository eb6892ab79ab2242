"""A whole run whose packed trials train as one model: dropped, promoted, and alone in the end."""

from pathlib import Path
from typing import Any

import pytest

from cloudtune.engine.ledger import read_entries
from cloudtune.model.commands import ExtendTrial, StartTrial, StopTrial
from cloudtune.model.events import EpochDone, EpochReport, TrialStopped
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.profiles.store import script_hash, write
from cloudtune.train.checkpoint import CheckpointStore
from cloudtune.train.session import Session
from cloudtune.train.user_script import load_function
from tests.bench import Bench
from tests.train.fused.test_training import TRAIN

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: fused
train: train.py:train
metric: {name: test_loss, mode: min}
search: {lr: {loguniform: [0.001, 0.3]}}
trials: 4
epochs: {min: 1, max: 4}
eta: 2
strategy: rubberband
limits: {deadline: 40m, budget: $5}
cloud: {provider: local, slots: 1, price: $3.60/h, billing: function}
"""


@pytest.fixture
def experiment(bench: Bench) -> Path:
    """Four trials on one slot, where four take hardly longer than one."""
    bench.environment["CUDA_VISIBLE_DEVICES"] = ""
    (bench.folder / "train.py").write_text(TRAIN)
    path = bench.folder / "experiment.yaml"
    path.write_text(EXPERIMENT)
    second = Measurement(1.0)
    profile = ScalingProfile(
        instance_type="local-1x-cpu",
        epoch={share: Measurement(1.0 + 0.01 / share) for share in (0.25, 0.5, 1.0)},
        launch=second,
        boot=Measurement(3.0),
        start=second,
        resize=second,
        release=second,
        script_hash=script_hash(bench.folder / "train.py"),
        measured_at="2026-11-20T00:00:00Z",
        source="a test",
    )
    write(bench.folder / "profile.json", [profile])
    return path


def alone(folder: Path, trial: str, config: dict[str, Any], epochs: int) -> list[float]:
    """Return what a trial that trains by itself has in each epoch."""
    told: list[EpochReport] = []
    store = CheckpointStore(str(folder / "alone"))
    session = Session(trial, told.append, "test_loss", "min", epochs, store=store)
    session.grant(epochs + 1)
    session.run(load_function(folder, "train.py:train"), config)
    return [each.metrics["test_loss"] for each in told]


def test_trials_that_are_dropped_and_promoted_were_one_model(
    bench: Bench, experiment: Path
) -> None:
    done = bench("run", experiment)
    assert done.code == 0, done.out + done.err
    report = bench.last_report()
    assert report["strategy"] == "rubberband"
    assert "our reconstruction of RubberBand's planner" in " ".join(done.out.split())
    reached = sorted(len(trial["history"]) for trial in report["trials"])
    assert reached == [1, 1, 2, 4]
    logs = {
        trial["trial"]: bench.here("logs", report["run"], trial["trial"]).out
        for trial in report["trials"]
    }
    assert all("fused: trains as one model with " in log for log in logs.values())
    assert report["best"]["epoch"] == 4, "the last two by itself, on all of the slot"
    best = next(each for each in report["trials"] if each["trial"] == report["best"]["trial"])
    wanted = alone(bench.folder, best["trial"], best["config"], 4)
    assert list(best["history"].values()) == pytest.approx(wanted, rel=1e-3)

    used = gpu_seconds(bench.home / "runs" / report["run"] / "ledger.jsonl")
    assert report["dollars"]["actual"] == pytest.approx(used * 3.6 / 3600, rel=1e-6)
    told = " ".join(bench.here("plan", experiment).out.split())
    assert "by the GPU-second that trials use" in told


def gpu_seconds(ledger: Path) -> float:
    """Return what trials used by hand: their share of a GPU, but for waiting at rungs."""
    began: dict[str, float] = {}
    until: dict[str, int] = {}
    width: dict[str, float] = {}
    total = 0.0
    for entry in read_entries(ledger):
        event = entry.event
        if isinstance(event, TrialStopped) or (
            isinstance(event, EpochDone) and event.epoch == until[event.session]
        ):
            total += width[event.session] * (event.at - began.pop(event.session))
        for command in entry.commands:
            match command:
                case StartTrial(session=session):
                    width[session] = command.width
                    began[session], until[session] = event.at, command.until_epoch
                case ExtendTrial(session=session, until_epoch=epoch):
                    began.setdefault(session, event.at)  # it may not have rested yet
                    until[session] = epoch
                case StopTrial(session=session):
                    began.setdefault(session, event.at)
    assert not began, "each is gone"
    return total
