"""`cloudtune export`: a run's folder in a home, to what other programs read by their libraries."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtune import errors, load_run
from cloudtune.engine.ledger import Entry
from cloudtune.model.events import EpochDone, TrialFailed
from tests.bench import called
from tests.builders import Setting, keep_run, play
from tests.builders.ledgers import drop_checksums
from tests.builders.wandb_files import wandb_history

SETTING = Setting(4, 1, 4, 2)


def more(entry: Entry) -> Entry:
    """Return an entry whose epoch, if it is one, reports a second metric."""
    if not isinstance(entry.event, EpochDone):
        return entry
    result = {**entry.event.metrics, "loss": 1.0 / entry.event.epoch}
    return replace(entry, event=replace(entry.event, metrics=result))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the commands are given; in its home there is one run, in which a trial fails."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    job = replace(SETTING.job(), run="digits-1", began=1_700_000_000.0)
    trouble = (TrialFailed(40.0, "t02.1", "ValueError: lr", "Traceback …"),)
    entries = play(SETTING.but(trouble=trouble), job.policy()).entries
    keep_run(tmp_path / "home", job, map(more, entries))
    yield tmp_path
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "out", "digits-1-csv"}


@pytest.fixture
def epochs(folder: Path) -> dict[str, dict[int, dict[str, float]]]:
    """What was reported: of each trial and epoch every metric."""
    result: dict[str, dict[int, dict[str, float]]] = {}
    for row in load_run("digits-1").history.to_dict("records"):
        metrics = {name: float(row[name]) for name in ("score", "loss")}
        result.setdefault(str(row["trial"]), {})[int(row["epoch"])] = metrics
    assert len(result) >= 3
    return result


def read_rows(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / "digits-1-csv" / f"{table}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_rows(folder: Path, epochs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    said = called(capsys, "export", "--to", "csv")
    wrote = "Wrote trials.csv, history.csv, gpus.csv and summary.csv to digits-1-csv\n"
    assert (said.code, said.out) == (0, wrote)
    rows = read_rows(folder, "trials")
    trials = load_run().trials
    assert [row["trial"] for row in rows] == list(trials["trial"])
    assert [row["config/x"] for row in rows] == [str(x) for x in trials["config/x"]]
    assert {row["trial"]: row["error"] for row in rows}["t02"] == "ValueError: lr"
    history = read_rows(folder, "history")
    result = [(row["trial"], int(row["epoch"]), float(row["loss"])) for row in history]
    assert len(result) == sum(map(len, epochs.values()))
    assert all(epochs[trial][epoch]["loss"] == loss for trial, epoch, loss in result)


def test_a_csv_has_text_for_formulas(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = folder / "home" / "runs" / "digits-1" / "ledger.jsonl"
    text = drop_checksums(ledger)
    assert '"ValueError: lr"' in text
    ledger.write_text(
        text.replace('"ValueError: lr"', '"=cmd|\\ud800 \\u001b]0;x\\u0007\\u202ecalc"').replace(
            '"loss"', '"@x"'
        )
    )
    assert called(capsys, "export", "--to", "csv").code == 0
    errors = {row["trial"]: row["error"] for row in read_rows(folder, "trials")}
    assert errors["t02"] == "'=cmd|? calc"
    assert "'@x" in read_rows(folder, "history")[0]


def test_long_texts_are_cut(folder: Path) -> None:
    ledger = folder / "home" / "runs" / "digits-1" / "ledger.jsonl"
    text = drop_checksums(ledger)
    ledger.write_text(text.replace('"ValueError: lr"', f'"{"x" * 2_000_000}"'))
    trials = load_run("digits-1").trials.set_index("trial")
    error = str(trials["error"]["t02"])
    assert len(error) < 66_000
    assert error.endswith("[cloudtune: 1934464 characters are left out here]")


def test_parquet_has_the_same_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    assert called(capsys, "export", "digits", "--to", "parquet", "--out", "out").code == 0
    result = load_run()
    for name in ("trials", "history", "gpus", "summary"):
        actual, frame = pd.read_parquet(folder / "out" / f"{name}.parquet"), getattr(result, name)
        assert list(actual.columns) == list(frame.columns)
        assert len(actual) == len(frame) > 0
        if "trial" in frame:
            assert list(actual["trial"]) == list(frame["trial"])


def test_h21_csv(folder: Path, epochs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "export", "--to", "csv").code == 0
    (row,) = read_rows(folder, "summary")
    result = load_run()
    assert result.best is not None
    assert (row["best_trial"], int(row["best_epoch"])) == (result.best.trial, result.best.epoch)
    assert int(row["trials"]) == len(result.trials)
    assert int(row["epochs"]) == sum(max(epoch) for epoch in epochs.values())
    assert float(row["dollars"]) == result.report.dollars
    assert row["target"] == ""


def test_f17_gpu_series_add_up(folder: Path) -> None:
    result = load_run()
    used = result.gpus
    assert set(used["use"]) >= {"training", "start-up"}
    seconds = (used["end"] - used["begin"]) * used["share"]
    trained = float(seconds[used["use"] == "training"].sum())
    assert trained == pytest.approx(result.report.accounting.amounts["training"].gpu_seconds)
    for _, one in used[used["share"] == 1].groupby(["instance", "gpu"]):
        assert (one["begin"].to_numpy()[1:] >= one["end"].to_numpy()[:-1] - 1e-6).all()


def test_parameters_of_several_kinds_are_text_in_parquet(folder: Path) -> None:
    import pandas as pd

    from cloudtune.api.exports import export_run

    result = load_run()
    odd: list[Any] = [None, "none", 3, 0.5]
    for trial, value in zip(result.report.policy.trials.values(), odd, strict=True):
        trial.trial = replace(trial.trial, config={"decay": value})
    export_run(result, "parquet", "out")
    actual = pd.read_parquet(folder / "out" / "trials.parquet")
    assert set(actual["config/decay"].dropna()) == {"none", "3", "0.5"}


def test_tensorboard_shows_metrics_and_configurations(
    folder: Path, epochs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # twice is as once
        said = called(capsys, "export", "--to", "tensorboard", "--out", "out")
        assert (said.code, said.out) == (0, "Wrote 4 trials: tensorboard --logdir out\n")
    for trial, own in epochs.items():
        actual = EventAccumulator(str(folder / "out" / trial)).Reload()
        for name in ("score", "loss"):
            result = {Scalar.step: Scalar.value for Scalar in actual.Scalars(name)}
            assert result == pytest.approx({epoch: own[epoch][name] for epoch in own})
        assert actual.Scalars("score")[0].wall_time > 1_700_000_000.0
        assert "_hparams_/session_start_info" in actual.PluginTagToContent("hparams")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # sqlalchemy's, of mlflow's use of it
@pytest.mark.walk("mlflow takes seconds to import")
def test_mlflow(folder: Path, epochs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    said = called(capsys, "export", "--to", "mlflow", "--out", "out").succeeded()
    store = f"sqlite:///{folder}/out/mlflow.db"
    assert said.out == f"Wrote 4 trials: mlflow ui --backend-store-uri {store}\n"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("digits-1")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    configs = load_run().trials.set_index("trial")["config/x"]
    assert {n: run.data.params["x"] for n, run in runs.items()} == configs.astype(str).to_dict()
    for trial, own in epochs.items():
        for name in ("score", "loss"):
            result = client.get_metric_history(runs[trial].info.run_id, name)
            assert {item.step: item.value for item in result} == {e: own[e][name] for e in own}
    assert runs["t02"].info.status == "FAILED"
    assert runs["t02"].data.tags["error"] == "ValueError: lr"
    again = called(capsys, "export", "--to", "mlflow", "--out", "out")
    assert again.code == 2
    assert "--out out already has an export of digits-1" in again.err


@pytest.mark.walk("wandb takes seconds to start")
def test_in_wandb(folder: Path, epochs: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """Its service, a process, has ended: the guard of all tests sees to that."""
    said = called(capfd, "export", "--to", "wandb", "--out", "out").succeeded()
    assert "Wrote 4 trials, offline: wandb sync out/wandb/offline-run-*" in said.out
    result = {
        path.parent.name[-3:]: path for path in folder.glob("out/wandb/offline-run-*/*.wandb")
    }
    assert sorted(result) == ["t00", "t01", "t02", "t03"]
    for trial, own in epochs.items():
        assert wandb_history(result[trial]) == {
            epoch: {name: pytest.approx(value) for name, value in metrics.items()}
            for epoch, metrics in own.items()
        }


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_missing_package_names_its_extra(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    called(capsys, "export", "--to", kind, "--out", "out").refused(
        f"--to {kind} needs {kind}", f"pip install 'cloudtune[{kind}]'"
    )
    assert not (folder / "out").exists()


def test_a_folder_can_not_be_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out").write_text("a file")
    said = called(capsys, "export", "--to", "csv", "--out", "out")
    assert said.code == 2
    assert "can't write to --out out (" in said.err
    said = called(capsys, "export", "--to", "csv", "--out", "s3://b/x")
    assert "--out s3://b/x must be a folder; only mlflow accepts a URI" in said.err
