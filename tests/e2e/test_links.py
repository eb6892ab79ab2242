"""Links beside a script, and what .gitignore names: on this machine, and where files are sent."""

from pathlib import Path

import pytest

from tests.bench import Bench
from tests.builders.experiments import write_experiment

SCRIPT = """
from pathlib import Path
import cloudtune

def train(config):
    rows = len(Path("train.csv").read_text().split()) + len(Path("data/b.csv").read_text().split())
    Path("scratch.txt").write_text("a trial's own")
    for _ in cloudtune.epochs():
        cloudtune.report({"acc": rows * config["lr"]})
"""
EXPERIMENT = """
name: linked
train: train.py:train
metric: {name: acc, mode: max}
search: {lr: {grid: [0.1, 0.2]}}
strategy: asha
trials: 2
epochs: {min: 2, max: 2}
limits: {deadline: 12m}
trial: {try_first: true}
"""
LOCAL = "cloud: {provider: local, slots: 1}\n"
EMULATED = "cloud: {instances: [g7.2xlarge], market: on-demand, max_instances: 1}\n"


@pytest.fixture
def experiment(bench: Bench) -> Path:
    """A script with a link to a file outside, a link to its own folder, and ignored data."""
    folder = bench.folder
    (folder.parent / "shared").mkdir()
    (folder.parent / "shared" / "train.csv").write_text("1 2 3")
    (folder / "train.csv").symlink_to("../shared/train.csv")
    (folder / "itself").symlink_to(".")
    (folder / "data").mkdir()
    (folder / "data" / "b.csv").write_text("4 5")
    (folder / ".gitignore").write_text("data/\n")
    return write_experiment(folder, EXPERIMENT + LOCAL, SCRIPT)


@pytest.mark.cluster
def test_local_trials_use_the_folder_itself(bench: Bench, experiment: Path) -> None:
    with (bench.folder.parent / "shared" / "weights.bin").open("wb") as file:
        file.truncate(700 * 2**20)
    (bench.folder / "weights.bin").symlink_to("../shared/weights.bin")
    before = sorted(bench.folder.iterdir())
    bench("run", experiment).succeeded("0 instances left")
    assert bench.last_report()["best"]["value"] == pytest.approx(1.0)
    assert sorted(bench.folder.iterdir()) == before


@pytest.mark.cluster
def test_elsewhere_what_links_point_to_is_sent(bench: Bench, experiment: Path) -> None:
    experiment.write_text(EXPERIMENT + EMULATED)
    refused = bench.here("run", experiment).refused("No such file or directory: 'data/b.csv'")
    advice = "it is there, but isn't sent: !data/ in .cloudtuneignore sends it"
    assert advice in refused.err
    assert "note: not sent: itself, a link to a folder that it is in" in refused.err
    (bench.folder / ".cloudtuneignore").write_text("!data/\n")
    bench("run", experiment).succeeded()
    assert bench.last_report()["best"]["value"] == pytest.approx(1.0)


def test_what_is_too_large_is_refused_by_name(bench: Bench, experiment: Path) -> None:
    experiment.write_text(EXPERIMENT + EMULATED)
    with (bench.folder.parent / "shared" / "weights.bin").open("wb") as file:
        file.truncate(700 * 2**20)
    (bench.folder / "weights.bin").symlink_to("../shared/weights.bin")
    for command in ("run", "try", "profile"):
        refused = bench.here(command, experiment).refused("weights.bin (linked to ")
        assert "holds more than 400 MiB" in refused.err
    assert bench.nothing_launched()
