"""Commands that write their numbers into files: CSV, JSON, TensorBoard's events, W&B's runs."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtune.errors import UsageError
from cloudtune.train.programs.metric_files import MetricFiles
from cloudtune.train.programs.running import CommandFailedError
from tests.train.test_programs import Trial

HEAD = """
import argparse, csv, json, pathlib, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
rows = []
def report_read():
    signal.sigwait([signal.SIGCONT])  # an epoch is long: it is seen, before the next has ended
"""
CSV = """
file = open("log.csv", "w", buffering=1)
file.write("epoch,step,train_loss,val_loss,note\\n")
for epoch in range(3):
    file.write(f"{epoch},{epoch}0,1.5,,\\n")
    file.write(f"{epoch},{epoch}9,,{args.lr / (epoch + 1)},good\\n")
    report_read()
"""
# As pandas' to_csv and Lightning's CSVLogger do, the latter with a column more.
WRITTEN_ANEW = """
pathlib.Path("logs/version_0").mkdir(parents=True)
for epoch in range(3):
    rows.append({"epoch": epoch, **({"lr": 1} if epoch else {}), "val_loss": args.lr / (epoch + 1)})
    with open("logs/version_0/metrics.csv", "w") as file:
        writer = csv.DictWriter(file, list(rows[-1]))
        writer.writeheader()
        writer.writerows(rows)
    report_read()
"""
TRAINER = """
for epoch in range(1, 4):
    rows += [{"epoch": epoch, "loss": 2.0, "step": 7 * epoch}]
    rows += [{"epoch": epoch, "val_loss": args.lr / epoch, "step": 7 * epoch}]
    folder = pathlib.Path(f"out/checkpoint-{7 * epoch}")
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    report_read()
"""
KERAS = """
for epoch in range(1, 4):
    rows.append(args.lr / epoch)
    pathlib.Path("history.json").write_text(json.dumps({"loss": [1.0] * epoch, "val_loss": rows}))
    report_read()
"""
RESULT = """
for epoch in range(1, 4):
    result = {"epoch": epoch, "val": {"loss": args.lr / epoch}, "val_loss": args.lr / epoch}
    pathlib.Path("results.json").write_text(json.dumps(result))
    report_read()
"""
EVENTS = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter()
for epoch in range(3):
    for batch in range(10):
        writer.add_scalar("train_loss", 1.5, 10 * epoch + batch)
    writer.add_scalar("val_loss", args.lr / (epoch + 1), epoch)
    writer.add_text("note", "good", epoch)
    writer.flush()
    report_read()
"""


@pytest.fixture
def trial(tmp_path: Path) -> Callable[[str, str], Trial]:
    def make(script: str, pattern: str) -> Trial:
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "main.py").write_text(HEAD + script)
        place = {"metric_name": "val_loss"}
        return Trial(tmp_path, "python main.py --lr {lr}", {"file": pattern}, place=place)

    return make


@pytest.mark.parametrize(
    ("script", "pattern"),
    [
        (CSV, "log.csv"),
        (CSV, "*.csv"),
        (WRITTEN_ANEW, "logs/*/metrics.csv"),
        (TRAINER, "out/checkpoint-*/trainer_state.json"),
        (KERAS, "history.json"),
        (RESULT, "results.json"),
        (EVENTS, "runs/**/*tfevents*"),
    ],
    ids=["CSV", "pattern", "written anew", "Trainer", "Keras", "one", "TensorBoard"],
)
def test_reports_are_read_from_files(
    trial: Callable[[str, str], Trial], script: str, pattern: str
) -> None:
    run = trial(script, pattern)
    run.run()
    assert run.epochs == [1, 2, 3]
    values = [report.metrics["val_loss"] for report in run.reports]
    assert values == pytest.approx([0.5, 0.25, 0.5 / 3])


WANDB = """
import wandb
wandb.init(project="p", settings=wandb.Settings(silent=True))
for epoch in range(3):
    wandb.log({"train_loss": 1.5})
    wandb.log({"epoch": epoch, "val_loss": args.lr / (epoch + 1), "note": "x" * 20000})
wandb.finish()
"""


def test_reports_are_read_from_an_offline_run_of_wandb(trial: Callable[[str, str], Trial]) -> None:
    """Its records span the blocks of its file."""
    run = trial(WANDB, "wandb/*/*.wandb")
    run.run()
    assert run.epochs == [1, 2, 3]
    assert [report.metrics["val_loss"] for report in run.reports][:2] == [0.5, 0.25]


def test_a_resumed_command_reports_only_what_it_adds(tmp_path: Path) -> None:
    """Earlier rows were restored with the checkpoint."""
    table, lines = tmp_path / "log.csv", tmp_path / "log.jsonl"
    state = tmp_path / "checkpoint-1" / "trainer_state.json"
    state.parent.mkdir()
    table.write_text("epoch,loss\n1,0.5\n")
    lines.write_text('{"epoch": 1, "loss": 0.5}\n')
    state.write_text(json.dumps({"log_history": [{"epoch": 1, "loss": 0.5}]}))
    patterns = ("log.csv", "log.jsonl", "*/trainer_state.json")
    files = [MetricFiles(tmp_path, pattern, "loss", first=1) for pattern in patterns]
    with table.open("a") as file:
        file.write("2,0.25\n3,0.1")  # the last row isn't whole
    with lines.open("a") as file:
        file.write('{"epoch": 2, "loss": 0.25}\n')
    state = tmp_path / "checkpoint-2" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"log_history": [{"loss": 0.5}, {"epoch": 2, "loss": 0.25}]}))
    for it in files:
        deadline = time.monotonic() + 10
        readings = list(it.more())
        while not readings and time.monotonic() < deadline:
            readings = list(it.more())
        assert [(reading.epoch, reading.metrics["loss"]) for reading in readings] == [(2, 0.25)]
    assert [reading.metrics["loss"] for reading in files[0].more(ended=True)] == [0.1]


def test_a_resumed_command_may_begin_another_table(tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    table.write_text("epoch,loss\n1,0.5\n2,0.4\n")
    readings = MetricFiles(tmp_path, "log.csv", "loss", first=2)
    for rows in ("3,0.3\n", "3,0.3\n4,0.2\n"):
        table.write_text(f"epoch,loss\n{rows}")
        (reading,) = readings.more()
        assert reading.epoch == 2 + rows.count("\n")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("# 2026-11-29\nepoch,loss\n1,0.5\n", [0.5]),
        ("# epoch loss\n1 0.5\n2 2.5e-1\n", [0.5, 0.25]),
        ("epoch\tloss\n1\tnan\n2\t1.5\n", [pytest.approx(float("nan"), nan_ok=True), 1.5]),
        ("epoch;loss\n1;0,5\n2;1.234,5\n", [0.5, 1234.5]),
        ('"epoch","loss","why"\n1,0.5,"a, b"\n', [0.5]),
        ("\ufeffepoch,loss\r\n1,0.5\r\n", [0.5]),
    ],
)
def test_tables_of_all_kinds(tmp_path: Path, text: str, values: list[float]) -> None:
    readings = MetricFiles(tmp_path, "log.csv", "loss")
    (tmp_path / "log.csv").write_bytes(text.encode())
    assert [reading.metrics["loss"] for reading in readings.more(ended=True)] == values


@pytest.mark.parametrize("text", ['{"epoch": 1, "loss": 0.5}\n', "epoch\tloss\n1\t0.5\n"])
def test_a_text_file_is_of_json_or_a_table(tmp_path: Path, text: str) -> None:
    readings = MetricFiles(tmp_path, "log.txt", "loss")
    assert list(readings.more()) == []
    (tmp_path / "log.txt").write_text(text)
    assert [reading.metrics["loss"] for reading in readings.more()] == [0.5]


def test_a_table_without_names_is_refused(tmp_path: Path) -> None:
    readings = MetricFiles(tmp_path, "log.csv", "loss")
    (tmp_path / "log.csv").write_text("1,0.5\n")
    with pytest.raises(UsageError, match=r"log\.csv has no line with the names of its columns"):
        list(readings.more())


@pytest.mark.parametrize(
    ("steps", "epochs"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([1, 2, 3], [1, 2, 3]),
        ([390, 780], [None, None]),
        ([0, 390, 391], [0, None, None]),
    ],
)
def test_consecutive_steps_are_epochs(
    tmp_path: Path, steps: list[int], epochs: list[float | None]
) -> None:
    readings = MetricFiles(tmp_path, "log.jsonl", "loss")
    rows = [json.dumps({"step": step, "loss": 1.0}) for step in steps]
    (tmp_path / "log.jsonl").write_text("\n".join(rows) + "\n")
    assert [reading.epoch for reading in readings.more()] == epochs


def test_unwritten_file_names_others(
    trial: Callable[[str, str], Trial],
) -> None:
    run = trial(CSV.replace("report_read()", "pass"), "logs/*.csv")
    with pytest.raises(
        CommandFailedError, match=r"no file logs/\*\.csv.* its new files are log.csv"
    ):
        run.run()


@pytest.mark.parametrize("text", ["3.5e-05", "1,234.5", "-1", "97%", "nan"])
def test_numbers_of_json_may_be_texts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.jsonl"
    readings = MetricFiles(tmp_path, path.name, "a")
    path.write_text(json.dumps({"a": text, "b": f"about {text}"}) + "\n")
    ((metrics, _, texts, _),) = readings.more()
    assert set(metrics) == {"a"}
    assert texts == {"b": f"about {text}"}
    assert repr(metrics["a"]) == repr(float(text.replace(",", "").rstrip("%")))
