"""Functions of scripts that use processes and command lines as they do when they are run alone."""

from pathlib import Path

import pytest

from cloudtune.train.user_script import load_file, load_function
from tests.bench import Bench
from tests.builders.experiments import write_experiment

PROCESSES = """
import argparse, dataclasses, multiprocessing, pickle, sys
import cloudtune

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
at_import = parser.parse_args()

@dataclasses.dataclass
class Point:
    x: int

def square(point):
    return Point(point.x ** 2)

def train(config):
    again = parser.parse_args()
    with multiprocessing.get_context(config["way"]).Pool(again.workers) as pool:
        squares = pool.map(square, [Point(1), Point(2)])
    for epoch in cloudtune.epochs():
        cloudtune.report({"loss": float(sum(point.x for point in squares))})
"""

EXPERIMENT = """
train: train.py:train
metric: {{name: loss, mode: min}}
search: {{way: {{choice: [{way}]}}}}
epochs: {{max: 2}}
"""


@pytest.mark.parametrize("way", ["spawn", "forkserver"])
def test_script_processes_are_as_alone(bench: Bench, way: str) -> None:
    path = write_experiment(bench.folder, EXPERIMENT.format(way=way), PROCESSES)
    done = bench.here("try", path).succeeded()
    assert "one trial reported after " in done.out + done.err


def test_a_taken_name_is_left_alone(tmp_path: Path) -> None:
    import statistics

    path = tmp_path / "statistics.py"
    path.write_text("def train(config): ...\n")
    function = load_function(tmp_path, "statistics.py:train")
    assert function.__module__.startswith("_cloudtune_user_statistics_")
    assert statistics.mean([1.0, 3.0]) == 2.0


def test_another_file_of_the_same_name_takes_its_place(tmp_path: Path) -> None:
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "taken_in_turn.py").write_text(f"value = {name!r}\n")
        module = load_file(folder / "taken_in_turn.py")
        assert (module.__name__, module.value) == ("taken_in_turn", name)
