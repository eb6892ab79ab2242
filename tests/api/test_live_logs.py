"""Trials that are logged while they train: what each library has written, read by itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloudtune.api import live_logs
from cloudtune.api.results import load_run
from cloudtune.runs.job import Job
from tests.bench import Bench
from tests.builders.wandb_files import wandb_history

pytestmark = pytest.mark.usefixtures("at_home", "simulated")
Epochs = dict[str, dict[int, float]]


@pytest.fixture
def path(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an experiment whose runs are simulated, in the folder that libraries write to."""
    monkeypatch.chdir(bench.folder)
    return bench.ready()


def losses() -> Epochs:
    """Return the loss of each epoch, by trial, as the last run's ledger has them."""
    policy = load_run().report.policy
    return {trial.id: dict(trial.history) for trial in policy.trials.values() if trial.history}


def test_tensorboard(bench: Bench, path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = bench.here("run", path, "--log-to", "tensorboard").succeeded()
    assert "Logging to tensorboard: tensorboard --logdir" in done.err
    [folder] = (bench.folder / "tensorboard").iterdir()
    assert folder.name == load_run().name
    read: Epochs = {}
    for trial in folder.iterdir():
        events = EventAccumulator(str(trial)).Reload()
        read[trial.name] = {it.step: it.value for it in events.Scalars("loss")}
        assert "config/text_summary" in events.Tags()["tensors"]
    actual = losses()
    assert read.keys() == actual.keys()
    for name, values in actual.items():
        assert read[name] == pytest.approx(values)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # sqlalchemy's, of mlflow's use of it
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_mlflow(bench: Bench, path: Path) -> None:
    path.write_text(f"{path.read_text()}log_to: [mlflow]\n")
    done = bench.here("run", path).succeeded()
    from mlflow.tracking import MlflowClient

    assert "Logging to mlflow" in done.err
    client = MlflowClient(f"sqlite:///{bench.folder}/mlflow.db")
    experiment = client.get_experiment_by_name(f"small/{load_run().name}")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    read = {
        run.info.run_name: {
            it.step: it.value for it in client.get_metric_history(run.info.run_id, "loss")
        }
        for run in runs
    }
    assert read == losses()
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(set(run.data.params) == {"lr", "n"} for run in runs)


def test_wandb(bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = bench.here("run", path, "--log-to", "wandb").succeeded()
    assert "offline: wandb sync" in done.err
    read: Epochs = {}
    for file in bench.folder.glob("wandb/offline-run-*/*.wandb"):
        trial = file.stem.rpartition("-")[2]
        read[trial] = {epoch: it["loss"] for epoch, it in wandb_history(file).items()}
    assert read == losses()


def test_following_machine_logs_the_run(bench: Bench, path: Path) -> None:
    """A head's run comes as its ledger; the head itself has no such library."""
    from cloudtune.api.experiments import load_experiment
    from cloudtune.lifecycle.following import EventReports
    from cloudtune.lifecycle.remote import _written

    experiment = load_experiment(path, {"log_to": "tensorboard"})
    assert experiment.log_to == ("tensorboard",)
    assert json.loads(_written(experiment))["log_to"] == []
    folder = bench.ran()
    [log] = live_logs.make_live_logs(experiment.log_to)
    EventReports(folder, log).report_new()
    log.on_run_end()
    trials = {it.name for it in (bench.folder / "tensorboard" / folder.name).iterdir()}
    assert trials == losses().keys()


def test_a_library_that_fails_costs_a_warning(
    bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(live_logs._Tensorboard):
        def log(self, trial: str, epoch: int, metrics: Mapping[str, float], at: float) -> None:
            raise OSError("disk full")

    monkeypatch.setitem(live_logs._LOGS, "tensorboard", Broken)
    done = bench.here("run", path, "--log-to", "tensorboard").succeeded()
    assert "warning: logging to tensorboard has ended (OSError: disk full)" in done.err
    assert f"cloudtune export {load_run().name} --to tensorboard" in done.err
    assert losses()


def test_a_library_that_hangs_is_left(
    bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from threading import Event

    answers = Event()

    class Slow(live_logs._Tensorboard):
        def begin(self, trial: str, config: Mapping[str, Any]) -> None:
            answers.wait(100)
            super().begin(trial, config)

    monkeypatch.setitem(live_logs._LOGS, "tensorboard", Slow)
    monkeypatch.setattr(live_logs, "_LAST_SECONDS", 0.2)
    done = bench.here("run", path, "--log-to", "tensorboard").succeeded()
    answers.set()
    assert "not everything was logged within" in done.err


def test_a_missing_library_is_refused_before_anything_starts(
    bench: Bench, path: Path, simulated: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtune.errors.find_spec", lambda _name: None)
    done = bench.here("run", path, "--log-to", "wandb")
    done.refused("log_to: [wandb] needs wandb", "pip install 'cloudtune[wandb]'")
    assert not simulated
    bench.here("run", path, "--log-to", "nowhere").refused("--log-to", "'wandb', 'mlflow'")
