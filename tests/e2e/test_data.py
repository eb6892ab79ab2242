"""Data beside the script, of this machine or of S3, on every instance before it starts."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from cloudtune.infra.emulator.service import stop_emulator
from tests.aws_stand_in.account import found_by_boto3, start
from tests.bench import Bench
from tests.builders.experiments import write_experiment

SCRIPT = """
import os
from pathlib import Path
import cloudtune

AT_IMPORT = Path("numbers/a.txt").read_text()
BESIDE = Path(__file__).resolve().parent / "numbers" / "deep" / "b.txt"

def train(config):
    for _ in cloudtune.epochs():
        print("writable:", bool(os.stat("numbers/a.txt").st_mode & 0o222))
        cloudtune.report({"loss": config["lr"] * float(AT_IMPORT) * float(BESIDE.read_text())})
"""
COMMAND = """
import sys
for epoch in (1, 2):
    print("loss", float(sys.argv[1]) * float(open("numbers/deep/b.txt").read()), flush=True)
"""
EXPERIMENT = """
name: small
train: train.py:train
metric: {{name: loss, mode: min}}
search: {{lr: {{grid: [0.1, 0.2]}}}}
strategy: asha
trials: 2
epochs: {{min: 2, max: 2}}
data: {{numbers: "{source}"}}
limits: {{deadline: 12m}}
cloud: {cloud}
"""
LOCAL = "{provider: local, slots: 1}"
EMULATED = "{provider: emulated, instances: [g7.12xlarge], max_instances: 1}"


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("2")
    (folder / "deep" / "b.txt").write_text("3")
    return folder


@pytest.fixture
def bucket(numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same files in a bucket, as in AWS."""
    found_by_boto3(start(tmp_path / "aws").access, monkeypatch)
    s3 = boto3.client("s3", "us-east-1")
    s3.create_bucket(Bucket="theirs")
    for path in filter(Path.is_file, numbers.rglob("*")):
        s3.upload_file(str(path), "theirs", f"sets/one/{path.relative_to(numbers)}")
    yield "s3://theirs/sets/one"
    stop_emulator(tmp_path / "aws", only_if_idle=False)


def written(bench: Bench, source: object, cloud: str = LOCAL, script: str = SCRIPT) -> Path:
    return write_experiment(bench.folder, EXPERIMENT.format(source=source, cloud=cloud), script)


def best(bench: Bench) -> float:
    return float(bench.last_report()["best"]["value"])


@pytest.mark.cluster
def test_a_folder_is_uploaded_once_by_content(bench: Bench, numbers: Path) -> None:
    path = written(bench, numbers, EMULATED)
    path.write_text(path.read_text().replace("12m", "12m, budget: $2"))
    first = bench("run", path, "--yes", "--no-pace").succeeded()
    assert "data.numbers: 0 MB uploaded to " in first.err
    assert best(bench) == pytest.approx(0.1 * 2 * 3)
    assert len(list((bench.home / "storage" / "data").glob("*.json"))) == 1
    assert "writable: False" in bench.here("logs").out
    (numbers / "a.txt").write_text("4")
    bench.here("try", path).succeeded("one trial reported after ")
    assert (bench.folder / "numbers").exists() is False


@pytest.mark.cluster
@pytest.mark.usefixtures("leaves_nothing")
def test_bucket_data_arrives_before_the_script(bench: Bench, bucket: str) -> None:
    ran = bench("run", written(bench, bucket)).succeeded()
    assert "it lacks data.numbers, which `cloudtune try` copies" in ran.err
    assert best(bench) == pytest.approx(0.1 * 2 * 3)
    assert "writable: False" in bench.here("logs").out
    path = written(bench, bucket, script=COMMAND)
    text = path.read_text().replace("train.py:train", "python train.py {lr}")
    path.write_text(f"{text}reports: {{printed: 'loss {{loss}}'}}\n")
    bench.here("try", path).succeeded("one trial reported after ")
    bench("run", path).succeeded()
    assert best(bench) == pytest.approx(0.1 * 3)
    assert not list(Path(bench.folder).rglob("*.txt")), "nothing is put into the user's folder"


def test_missing_data_is_refused_before_renting(bench: Bench, numbers: Path) -> None:
    bench.here("run", written(bench, "none")).refused("data.numbers:", "x/none is no folder")
    (bench.folder / "numbers").mkdir()
    bench.here("run", written(bench, numbers)).refused("numbers is there already")
    (bench.folder / "numbers" / "a.txt").write_text("2")
    beside = written(bench, "numbers", EMULATED)
    bench.here("try", beside).refused("would be sent with the script too: name numbers/ in")
    assert bench.nothing_launched()


def test_data_beside_the_script_needs_no_copy(bench: Bench, numbers: Path) -> None:
    numbers.rename(bench.folder / "numbers")
    (bench.folder / ".cloudtuneignore").write_text("numbers/\n")
    for cloud in (LOCAL, EMULATED):
        bench.here("try", written(bench, "numbers", cloud)).succeeded("one trial reported after ")
