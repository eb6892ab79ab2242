"""Variables of a person's environment reach the trials, and no record of a run has their values."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudtune
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.runs.job import Job
from tests.bench import Bench
from tests.builders.experiments import write_experiment

KEY = "sk-7f3e9a1c-of-nobody"
TOKEN = "hf_4dc1-of-nobody"
SCRIPT = """
import os
import cloudtune

MODE = os.environ["WANDB_MODE"]  # read at import, as libraries do
KEY = os.environ["WANDB_API_KEY"]

def train(config):
    print("the key is", KEY, "and the token", os.environ["HF_TOKEN"], flush=True)
    if config["lr"] == 0.3:
        raise RuntimeError(f"the server refuses {KEY}")
    for _ in cloudtune.epochs():
        loss = len(KEY) * config["lr"] if MODE == "offline" else 0.0
        cloudtune.report({"loss": loss})
"""
COMMAND = """
import os, sys
for epoch in (1, 2):
    print("epoch", epoch, "loss", len(os.environ["WANDB_API_KEY"]) * float(sys.argv[1]), flush=True)
"""
EXPERIMENT = """
name: small
train: {train}
metric: {{name: loss, mode: min}}
search: {{lr: {{grid: [0.1, 0.2, 0.3]}}}}
strategy: asha
trials: 3
epochs: {{min: 2, max: 2}}
env: {{WANDB_MODE: offline, WANDB_API_KEY: }}
secrets: {{HF_TOKEN: "file:{token}"}}
limits: {{deadline: 12m}}
cloud: {{provider: local, slots: 1}}
"""


@pytest.fixture
def experiment(bench: Bench) -> Path:
    (bench.folder / "token").write_text(f"{TOKEN}\n")
    text = EXPERIMENT.format(train="train.py:train", token="token")
    return write_experiment(bench.folder, text, SCRIPT)


def with_text(folder: Path, *texts: str) -> Iterator[Path]:
    """Yield the files of a folder that have one of these texts."""
    for path in folder.rglob("*"):
        if path.is_file() and any(text.encode() in path.read_bytes() for text in texts):
            yield path


@pytest.mark.cluster
def test_values_reach_trials_and_no_record(bench: Bench, experiment: Path) -> None:
    bench.environment["WANDB_API_KEY"] = KEY
    bench("run", experiment).succeeded()
    bench.here("report", "--html", bench.folder / "page.html").succeeded()
    report = bench.last_report()
    assert report["best"]["value"] == pytest.approx(len(KEY) * 0.1)
    failed = [trial for trial in report["trials"] if trial["status"] == "failed"]
    assert [trial["config"]["lr"] for trial in failed] == [0.3]
    assert "the server refuses [WANDB_API_KEY]" in bench.here("logs").out
    assert "the key is [WANDB_API_KEY] and the token [HF_TOKEN]" in bench.here("logs").out
    (bench.folder / "token").unlink()
    kept = set(with_text(bench.home.parent, KEY, TOKEN))
    its_output = set((bench.home / "local" / "instances").rglob("*.log"))  # the script's own words
    assert not kept - its_output


@pytest.mark.parametrize("command", ["run", "profile", "try"])
def test_missing_variable_is_refused_before_renting(
    bench: Bench, experiment: Path, command: str
) -> None:
    missing = bench.here(command, experiment).refused("env: WANDB_API_KEY isn't set in this")
    assert len(missing.err.splitlines()) == 1
    bench.environment["WANDB_API_KEY"] = KEY
    (bench.folder / "token").unlink()
    bench.here(command, experiment).refused("secrets.HF_TOKEN:", "can't be read: No such file")
    assert bench.nothing_launched()


def test_a_script_is_tried_with_them(bench: Bench, experiment: Path) -> None:
    bench.environment["WANDB_API_KEY"] = KEY
    bench.here("try", experiment).succeeded("one trial reported after ")
    text = experiment.read_text().replace("train.py:train", "python main.py {lr}")
    experiment.write_text(f"{text}reports: {{printed: 'loss {{loss}}'}}\n")
    (bench.folder / "main.py").write_text(COMMAND)
    bench.here("try", experiment).succeeded("one trial reported after ")


def test_a_resumed_run_takes_them_again(bench: Bench, simulated: list[Job]) -> None:
    path = bench.ready()
    with path.open("a") as file:
        file.write("env: [WANDB_API_KEY]\n")
    bench.environment["WANDB_API_KEY"] = KEY
    bench.here("run", path, "-q").succeeded()
    del bench.environment["WANDB_API_KEY"]
    bench.here("resume", "--trials", "+2").refused("env: WANDB_API_KEY isn't set in this")
    assert bench.recorded("WANDB_API_KEY")
    assert not bench.recorded(KEY)


@pytest.mark.usefixtures("at_home", "simulated")
def test_from_python_it_is_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {**Experiment.load(bench.ready()).to_json(), "env": ["WANDB_API_KEY"]}
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UsageError, match="env: WANDB_API_KEY isn't set in this environment"):
        cloudtune.run(fields, progress=False)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert cloudtune.run(fields, progress=False).best is not None


def test_plans_need_none(bench: Bench, experiment: Path) -> None:
    bench.here("plan", experiment).succeeded()


def test_a_secret_in_the_sent_folder_is_refused(bench: Bench, experiment: Path) -> None:
    bench.environment["WANDB_API_KEY"] = KEY
    text = experiment.read_text().replace("{provider: local, slots: 1}", "{provider: ray}")
    experiment.write_text(text)
    refused = bench.here("try", experiment).refused("secrets.HF_TOKEN: token is in the folder")
    assert ".cloudtuneignore" in refused.err
