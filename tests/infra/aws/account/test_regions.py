"""`cloud.regions`: the region of the best plan is taken, and the next where that has no room."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cloudtune
from cloudtune.infra.aws import price_refresh
from cloudtune.infra.aws.price_checks import Quotes
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.provider import Endpoint
from cloudtune.lifecycle import remote, start
from cloudtune.lifecycle.regions import after
from cloudtune.model.events import EpochDone
from cloudtune.model.trial import EndReason
from cloudtune.profiles import store
from cloudtune.profiles.store import script_hash
from cloudtune.runs import home
from tests.aws_stand_in.account import found_by_boto3, set_up_account
from tests.bench import called
from tests.builders.experiments import write_experiment
from tests.builders.machines import profile

PRICES = {"us-east-1": 0.526, "us-east-2": 0.2, "eu-west-1": 0.1}
EXPERIMENT = """\
name: small
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1]}}
trials: 4
epochs: {min: 1, max: 4}
limits: {deadline: 2h, budget: $5}
cloud:
  provider: aws
  instances: [g4dn.xlarge]
"""


@pytest.fixture(scope="module")
def account(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """An account that is set up in two regions."""
    home = tmp_path_factory.mktemp("account")
    with set_up_account(home, "us-east-1", "us-east-2") as emulator:
        yield emulator.access


@pytest.fixture(autouse=True)
def _used(account: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That account, with prices of three regions."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    found_by_boto3(account, monkeypatch)

    def quoted(endpoint: Endpoint, *_: object) -> Quotes:
        prices = {"g4dn.xlarge": PRICES[endpoint.region], "m7i.large": 0.1}
        return Quotes(endpoint.region, "", time.time(), prices, {}, {})

    monkeypatch.setattr(price_refresh, "latest_quotes", quoted)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """An experiment of several regions, and the profile of its script."""
    script = tmp_path / "train.py"
    script.write_text("def train(config, epochs):\n    yield {'loss': 0.0}\n")
    speeds = replace(profile({1: 20.0}, name="g4dn.xlarge"), script_hash=script_hash(script))
    store.write(tmp_path / "speeds.json", [speeds])
    return write_experiment(tmp_path, f"{EXPERIMENT}  regions: [us-east-1, us-east-2, eu-west-1]\n")


def test_a_plan_is_made_in_the_cheapest_region(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (experiment, "--profile", tmp_path / "speeds.json", "--objective", "cost")
    planned = called(capsys, "plan", *words, "-o", "json").succeeded()
    assert planned.json["storage"] == "s3://cloudtune-123456789012-us-east-2-an/cloudtune"
    said = r"Region us-east-2 \((.*)\); next us-east-1 \((.*)\)\n"
    (figures,) = re.findall(said, planned.err)
    cheaper, dearer = (float(text.rpartition("$")[2]) for text in figures)
    assert cheaper == pytest.approx(planned.json["plan"]["estimate"]["dollars"], abs=0.01)
    assert cheaper < dearer
    assert "  not eu-west-1: storage: instances on AWS need a shared one" in planned.err
    assert "`cloudtune aws setup --region REGION`" in planned.err


def test_cross_region_data_counts(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (experiment, "--profile", tmp_path / "speeds.json", "--objective", "cost", "-o", "json")
    alone = called(capsys, "plan", *words).json["plan"]["estimate"]["dollars"]
    text = experiment.read_text()
    data = "charges: {data: {region: us-east-1, gb: %s}}\n"
    experiment.write_text(text + data % "0.25")
    little = called(capsys, "plan", *words)
    assert little.err.startswith("Region us-east-2 (")
    dollars = little.json["plan"]["estimate"]["dollars"]
    assert dollars == pytest.approx(alone + 0.005, abs=0.001), "one instance loads it"
    experiment.write_text(text + data % "10")
    much = called(capsys, "plan", *words)
    figures = re.findall(r"\$([0-9.]+)\)", much.err)
    assert much.err.startswith("Region us-east-1 (")
    assert float(figures[1]) == pytest.approx(alone + 0.2, abs=0.01)
    assert much.json["plan"]["estimate"]["dollars"] < 0.05, "where the data is nothing is added"


def test_infeasible_regions_say_why(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (experiment, "--profile", tmp_path / "speeds.json", "--objective", "cost")
    planned = called(capsys, "plan", *words, "--budget", "$0.005", "-o", "json")
    assert (planned.code, planned.json["feasible"]) == (3, False)
    unfit = "no plan meets the limits"
    assert f"Region us-east-1 ({unfit}); next us-east-2 ({unfit})" in planned.err


def test_any_means_enabled_regions(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.write_text(f"{EXPERIMENT}  regions: any\n")
    planned = called(capsys, "plan", experiment, "--profile", tmp_path / "speeds.json").succeeded()
    assert planned.err.startswith("Region us-east-2 (")
    assert re.search(r"\n  not af-south-1, ap-\S+, ap-\S+ and \d+ more: storage: ", planned.err)


def test_one_regions_own_is_refused(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = experiment.read_text()
    for line in ("region: us-east-1", "image: ami-1", "zones: [us-east-1a]"):
        experiment.write_text(f"{text}  {line}\n")
        refused = called(capsys, "plan", experiment).refused()
        name = line.partition(":")[0]
        assert f"cloud.{name}: is of one region; leave it out, or leave regions out" in refused.err


def without_room(wanted: Any, *, trained: bool = False) -> Any:
    """Return the report of a run that had no instance, after 10 minutes for $0.02."""
    events = [SimpleNamespace(event=EpochDone(9.0, "t00.1", 1, {}, None, 9.0))] * trained
    job = SimpleNamespace(experiment=wanted)
    ended = EndReason.NO_CAPACITY
    report = {"job": job, "entries": events, "ended": ended, "exit_code": ended.exit_code}
    return SimpleNamespace(**report, seconds=600.0, dollars=0.02)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("way", ["command", "python"])
def test_full_region_yields_to_next(
    experiment: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    trained: bool,
) -> None:
    """Heads are stand-ins."""
    sent: list[Any] = []

    def send(wanted: Any, *_: object) -> Any:
        sent.append(wanted)
        folder = tmp_path / wanted.cloud.region
        folder.mkdir()
        (folder / home.LEDGER).touch()
        return SimpleNamespace(folder=folder, remote=SimpleNamespace(storage=""), head="i-1")

    def load(folder: Path) -> Any:
        if folder.name == "us-east-2":
            return without_room(sent[-1], trained=trained)
        return SimpleNamespace(exit_code=0, ended=EndReason.DONE, entries=[])

    codes = {"us-east-2": 6, "us-east-1": 0}
    monkeypatch.setattr(remote, "send", send)
    monkeypatch.setattr(remote, "follow", lambda run, *_, **__: codes[run.folder.name])
    monkeypatch.setattr(start, "load", load)
    speeds = str(tmp_path / "speeds.json")
    if way == "command":
        words = (experiment, "--profile", speeds, "--objective", "cost", "--yes")
        done = called(capsys, "run", *words)
        code: int | None = done.code
        said = done.err
    else:
        result = cloudtune.run(experiment, profile=speeds, objective="cost", yes=True)
        code = result.exit_code
        said = capsys.readouterr().err
    regions = [wanted.cloud.region for wanted in sent]
    if trained:
        assert (code, regions) == (6, ["us-east-2"]), "what it trained is worth resuming"
        return
    assert (code, regions) == (0, ["us-east-2", "us-east-1"]), said
    little = sent[1].limits.model_copy(update={"deadline": 500.0})
    late = sent[1].model_copy(update={"limits": little})
    assert after(without_room(sent[0]), late) is None
    assert "No room in us-east-2: the run goes to us-east-1." in said
    assert sent[1].storage == "s3://cloudtune-123456789012-us-east-1-an/cloudtune"
    assert (sent[1].limits.deadline, sent[1].limits.budget) == (7200.0 - 600.0, 5.0 - 0.02)
