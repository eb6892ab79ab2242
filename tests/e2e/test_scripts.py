"""Scripts as people write them, through the command line: what a run on this machine keeps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtune.train.checkpoint import load
from tests.bench import Bench
from tests.builders.experiments import write_experiment

pytestmark = pytest.mark.cluster

# As transformers' Trainer: it prints, then writes one file after the other. Beside itself, as many.
SAVES_AFTER = """
import pathlib, sys, time
gap, epochs = float(sys.argv[1]), int(sys.argv[2])
out = pathlib.Path(__file__).resolve().parent / "out"
for epoch in range(1, epochs + 1):
    time.sleep(1.0)
    print(f"epoch {epoch} accuracy {epoch / 10}", flush=True)
    folder = out / f"checkpoint-{epoch}"
    folder.mkdir(parents=True)
    for name in ("config", "model", "optimizer", "scheduler", "state"):
        (folder / name).write_text(f"{epoch} " * 5000)
        time.sleep(gap)
"""
EXPERIMENT = """
name: torn
train: python train.py {gap} {epochs}
metric: {name: accuracy, mode: max}
reports: {printed: 'epoch {epoch} accuracy {accuracy}'}
checkpoints: {folder: out}
search: {gap: {choice: [0.05]}}
trials: 1
epochs: {max: 3}
limits: {deadline: 20m}
cloud: {provider: local, slots: 1}
"""


def test_checkpoints_of_several_files(bench: Bench, tmp_path: Path) -> None:
    bench.environment["CUDA_VISIBLE_DEVICES"] = ""
    path = write_experiment(bench.folder, EXPERIMENT, SAVES_AFTER)
    bench.profile_on("local-1x-cpu", {1.0: 1.3}, boot=3.0)
    done = bench("run", path)
    assert done.code == 0, done.out + done.err
    assert bench.last_report()["best"]["epoch"] == 3
    assert not (bench.folder / "out").exists()

    stored = [
        folder
        for folder in bench.home.glob("storage/*/t00/epoch-*")
        if (folder / "manifest.json").exists()
    ]
    assert "epoch-00003" in {folder.name for folder in stored}
    for folder in stored:
        epoch = int(folder.name.removeprefix("epoch-"))
        load(str(folder), tmp_path / folder.name)
        newest = tmp_path / folder.name / f"checkpoint-{epoch}"
        assert {file.read_text().split()[0] for file in newest.iterdir()} == {str(epoch)}
        assert len(list(newest.iterdir())) == 5


# Its epochs are over at once. Then it does something else, as one that evaluates or plots.
SHORT_EPOCHS = """
import pathlib, sys, time
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
for epoch in range(1, int(sys.argv[2]) + 1):
    print(f"epoch {epoch} accuracy {epoch / 10}", flush=True)
    (out / "model.pt").write_text(str(epoch))
time.sleep(8)
"""


def test_last_save_of_short_epochs(bench: Bench, tmp_path: Path) -> None:
    bench.environment["CUDA_VISIBLE_DEVICES"] = ""
    path = write_experiment(bench.folder, EXPERIMENT, SHORT_EPOCHS)
    bench.profile_on("local-1x-cpu", {1.0: 1.3}, boot=3.0)
    done = bench("run", path)
    assert done.code == 0, done.out + done.err
    best = bench.last_report()["best"]
    assert best["epoch"] == 3
    load(best["checkpoint"], tmp_path / "best")
    assert (tmp_path / "best" / "model.pt").read_text() == "3"


OBJECTIVE = """
import time
import cloudtune

def objective(trial):
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    for step in range(3):
        time.sleep(0.2)
        trial.report(0.5 + lr * (step + 1), step)
    return 0.5 + lr * 3

if __name__ == "__main__":
    result = cloudtune.optimize(
        objective, n_trials=4, direction="maximize", epochs=3, deadline="20m", provider="local"
    )
    print("best:", result.best.config["lr"])
"""


def test_optimize(bench: Bench) -> None:
    """An Optuna objective of three reports, as its script runs it."""
    (bench.folder / "tune.py").write_text(OBJECTIVE)
    done = subprocess.run(
        [sys.executable, "tune.py"],
        cwd=bench.folder,
        env={**os.environ, **bench.environment, "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = bench.last_report()
    trials = report["trials"]
    assert len(trials) == 4
    best = max(trials, key=lambda trial: trial["config"]["lr"])
    assert report["best"]["trial"] == best["trial"]
    assert report["best"]["epoch"] == len(best["history"]) == 3
    assert f"best: {best['config']['lr']}" in done.stdout
