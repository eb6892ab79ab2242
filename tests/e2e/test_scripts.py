"""Scripts as people write them, through the command line: what a run on this machine keeps."""

from pathlib import Path

import pytest

from cloudtune.train.checkpoint import load
from tests.bench import Bench

pytestmark = pytest.mark.cluster

# As transformers' Trainer: it prints, then writes one file after the other.
SAVES_AFTER = """
import pathlib, sys, time
gap, epochs = float(sys.argv[1]), int(sys.argv[2])
for epoch in range(1, epochs + 1):
    time.sleep(1.0)
    print(f"epoch {epoch} accuracy {epoch / 10}", flush=True)
    folder = pathlib.Path("out", f"checkpoint-{epoch}")
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
    (bench.folder / "train.py").write_text(SAVES_AFTER)
    path = bench.folder / "experiment.yaml"
    path.write_text(EXPERIMENT)
    bench.profile_on("local-1x-cpu", {1.0: 1.3}, boot=3.0)
    done = bench("run", path)
    assert done.code == 0, done.out + done.err
    assert bench.last_report()["best"]["epoch"] == 3

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
