"""Commands and counted steps in an experiment file: what stands in them, and each wrong use."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.script.command import split_words
from cloudtune.train.programs.program import Program
from tests.builders.experiments import write_experiment

PORT = Path(__file__).parents[2] / "examples" / "ports" / "mnist" / "command.yaml"
FIELDS: dict[str, Any] = {
    "name": "a",
    "train": "python main.py --lr {lr}",
    "metric": {"name": "accuracy", "mode": "max"},
    "search": {"lr": {"uniform": [0, 1]}},
    "reports": {"file": "metrics.jsonl"},
    "trials": 4,
    "epochs": {"min": 1, "max": 4},
}


@pytest.fixture
def wrong(tmp_path: Path) -> Callable[..., str]:
    """Return what is said of an experiment with these fields, which is beside a script."""
    (tmp_path / "main.py").write_text("pass")
    (tmp_path / "base.yaml").write_text("optim: {lr: 0.1}")
    (tmp_path / "list.json").write_text("[]")

    def error_of(**fields: Any) -> str:
        path = write_experiment(tmp_path, json.dumps({**FIELDS, **fields}))
        try:
            Experiment.load(path).check_train()
        except ExperimentError as error:
            return str(error).replace(f"{tmp_path}/", "").replace(str(tmp_path), "HERE")
        return ""

    return error_of


@pytest.mark.parametrize(
    "train",
    [
        "python main.py --lr {lr}",
        "python main.py --lr={lr} -b 3 --no-amp data --batch 4 -b4",
        "sh -c 'cd out && exec python ../main.py --lr {lr}'",
        "python main.py --lr 1 data={config}",
        "env A=1 python main.py --lr {lr}",
    ],
)
def test_a_command_passes(wrong: Callable[..., str], train: str) -> None:
    assert wrong(train=train) == ""


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("python main.py --lr {lrr}", "Did you mean 'lr'?"),
        ("python main.py --lr 1", "the search's parameter lr is in no {…} of the command"),
        ("python main.py --lr {lr} {", "a { in '{' is alone; write {{ for it"),
        ("python main.py --lr '{lr}", "can't be split into words: No closing quotation"),
        ("python main.py --lr {lr} {resume}", "{resume} needs the folder of checkpoints"),
        ("python main.py --lr {lr} {seed:-s}", "{seed:…} is for values that may be false"),
        (
            "python main.py --lr {lr} > log",
            "'>' is shell syntax, and no shell runs here; write sh -c",
        ),
        ("A=1 python main.py --lr {lr}", "'A=1' is not a program; write env A=1"),
        ("pyhton main.py --lr {lr}", "no program pyhton on the PATH"),
        ("main.py --lr {lr}", "the file beside the experiment is ./main.py, or python main.py"),
        ("./main.py --lr {lr}", "can't be executed; chmod +x it"),
        ("./mian.py --lr {lr}", "no program ./mian.py in HERE. Did you mean 'main.py'?"),
        ("python -c 'pass' {lr}", "nothing in `python -c 'pass' {lr}` is a file in HERE"),
        ("train.py: train", "'train.py: train' is not file.py:function"),
    ],
)
def test_wrong_command_is_refused_before_renting(
    wrong: Callable[..., str], train: str, message: str
) -> None:
    assert message in wrong(train=train)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reports": {}}, "main.py: nothing reports: no file in HERE names cloudtune"),
        ({"reports": {"printed": "acc (.*)"}}, "names no number; write {name} where one is"),
        ({"reports": {"printed": "(?P<acc>.)"}}, "finds no accuracy, the experiment's metric;"),
        (
            {"train": "main.py --lr {lr} {resume:last.pt}", "checkpoints": {"folder": "out"}},
            "{resume:last.pt} is the text last.pt, once there is a checkpoint; for the file write",
        ),
        ({"train": "python main.py --c {config:a.yaml}"}, "train: there is no a.yaml"),
        ({"train": "python main.py --c {config:../a.yaml}"}, "../a.yaml is not below HERE"),
        (
            {"train": "python main.py --c {config:base.yaml}"},
            "search.lr: base.yaml has no such setting, so it would change nothing. It has optim/lr",
        ),
        (
            {"train": "python main.py --c {config:list.json}"},
            "train: list.json has no settings by name",
        ),
        ({"train": "main.py {lr} {config:--c}"}, "{config:base.yaml} is that file with a trial"),
        ({"reports": {"printed": "("}}, "is no regular expression: missing )"),
        ({"checkpoints": {"folder": ".."}}, "is not below the folder that the command runs in"),
        ({"checkpoints": {"folder": "~/out"}}, "'~/out' is taken as it stands, without ~"),
        ({"checkpoints": {"folder": "runs/$NAME"}}, "variables and patterns; write a folder"),
        (
            {"checkpoints": {"folder": "out/last.pt"}},
            "a file; write the folder in which it is: out",
        ),
        ({"reports": {}, "checkpoints": {"folder": "."}}, "only a folder of checkpoints alone"),
        ({"reports": {"file": "/tmp/m"}}, "is not below the folder that the command runs in"),
        ({"train": "main.py:main"}, "reports: is for commands, and train names a function"),
        (
            {"progress": {"unit": "step", "every": 500}, "epochs": {"min": 500, "max": 1700}},
            "epochs.max: 1700 is no multiple of 500, the steps from report to report; write 1500",
        ),
    ],
)
def test_wrong_fields_beside_a_command_are_refused(
    wrong: Callable[..., str], fields: dict[str, Any], message: str
) -> None:
    assert message in wrong(**fields)


def test_a_file_of_settings_has_the_parameters_that_no_word_has(
    wrong: Callable[..., str],
) -> None:
    search = {"optim": {"lr": {"uniform": [0, 1]}}, "width": {"randint": [1, 9]}}
    command = "python main.py --c {config:base.yaml} --width {width}"
    assert wrong(train=command, search=search) == ""


def test_an_imported_file_may_report(wrong: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("import cloudtune")
    assert wrong(reports={}) == ""


@pytest.mark.parametrize(
    ("command", "values", "words"),
    [
        ("p --lr {lr} x", {"lr": 1e-05}, ["p", "--lr", "1e-05", "x"]),
        ("p a={name}", {"name": "x y; rm '*'"}, ["p", "a=x y; rm '*'"]),
        ("p --m {a/m} --n={a/m} -v", {}, ["p", "-v"]),
        ("p --resume {resume}/last.pt", {"resume": "out"}, ["p", "--resume", "out/last.pt"]),
        ("p -v {amp:--amp} {no:--no}", {"amp": True, "no": False}, ["p", "-v", "--amp"]),
        ("p {{{lr}}} '{{\"a\": 1}}'", {"lr": 2}, ["p", "{2}", '{"a": 1}']),
        ("p --n={sizes}", {"sizes": [1, "a"]}, ["p", '--n=[1, "a"]']),
        ("p --n {sizes} -v", {"sizes": [64, "a b"]}, ["p", "--n", "64", "a b", "-v"]),
        ("p {sizes}", {"sizes": [[1, 2], 3]}, ["p", "[1, 2]", "3"]),
        ("p --a {a} --b={b} -v", {"a": None, "b": None}, ["p", "-v"]),
        ("p c.a={a} {b} {a:--a}", {"a": None, "b": None}, ["p"]),
        ("p --a {a}", {"a": "null"}, ["p", "--a", "null"]),
    ],
)
def test_holes_are_filled(command: str, values: dict[str, object], words: list[str]) -> None:
    assert Program(command, split_words(command), 1).fill(values) == words


@pytest.mark.parametrize("every", [0.25, "1/4", "1 / 4"])
def test_an_experiment_in_parts_of_epochs_counts_them(every: object) -> None:
    experiment = Experiment(**{**FIELDS, "progress": {"every": every}, "epochs": {"max": 3}})
    assert (experiment.span.min, experiment.span.max) == (1, 12)
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert experiment.scale.at(3) == "epoch 0.75"
    assert experiment.scale.counted(12) == "3 epochs"
    assert experiment.scale.span(2, 8) == "0.5-2"


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        ({"every": 0.4}, "progress.every: an epoch has no whole number of parts of 0.4; write 1/2"),
        ({"every": "4/1"}, "progress.every: '4/1' is neither a whole number"),
        ({"every": 1.5}, "progress.every: 1.5 is neither a whole number"),
        ({"every": True}, "progress.every: true is neither a whole number"),
        ({"every": 0}, "progress.every: 0 is neither a whole number"),
        ({"every": 0.25, "unit": "step"}, "progress.every: steps have no parts"),
    ],
)
def test_other_parts_are_refused(
    wrong: Callable[..., str], progress: dict[str, object], message: str
) -> None:
    assert message in wrong(progress=progress, epochs={"max": 4})


def test_step_experiment_is_shown_in_steps() -> None:
    counted = {"progress": {"unit": "step", "every": 500}, "epochs": {"min": 500, "max": 4000}}
    experiment = Experiment(**{**FIELDS, **counted})
    assert (experiment.span.min, experiment.span.max) == (1, 8)
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert experiment.scale.at(4) == "step 2,000"
    assert experiment.scale.span(2, 8) == "501-4,000"


def test_unchanged_mnist_port_passes() -> None:
    experiment = Experiment.load(PORT)
    experiment.check_train()
    assert experiment.train_file.name == "before.py"
    assert experiment.train_folder == PORT.parent


def test_the_newest_checkpoint_is_named_by_a_pattern(tmp_path: Path) -> None:
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-2", "runs"):
        (tmp_path / name).mkdir()
    command = "p --from {resume:checkpoint-*} --weights={resume:checkpoint-*}/w.pt -v"
    program = Program(command, split_words(command), 1)
    best = tmp_path / "checkpoint-10"
    filled = ["p", "--from", str(best), f"--weights={best}/w.pt", "-v"]
    assert program.fill({"resume": str(tmp_path)}) == filled
    assert program.fill({}) == ["p", "-v"]
    (tmp_path / "empty").mkdir()
    assert program.fill({"resume": str(tmp_path / "empty")}) == ["p", "-v"]


def test_a_folder_of_each_start_counts_before_the_names_in_it(tmp_path: Path) -> None:
    saves = ("version_2/epoch=40.ckpt", "version_10/epoch=3.ckpt", "version_10/epoch=21.ckpt")
    for name in saves:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    command = "p {resume:version_*/epoch=*.ckpt}"
    program = Program(command, split_words(command), 1)
    assert program.fill({"resume": str(tmp_path)}) == ["p", str(tmp_path / saves[-1])]


BOOLS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--amp", type=bool, default=False)
"""


@pytest.mark.parametrize("train", ["--amp {amp}", "--amp={amp}"])
def test_misread_false_is_refused(wrong: Callable[..., str], tmp_path: Path, train: str) -> None:
    (tmp_path / "main.py").write_text(BOOLS)
    command = f"python main.py --lr {{lr}} {train}"
    search = {"lr": {"uniform": [0, 1]}, "amp": {"choice": [True, False]}}
    result = wrong(train=command, search=search)
    assert result.startswith("main.py:5: --amp has type=bool, and argparse makes True of every")
    search["amp"] = {"choice": [True, None]}  # left out, it is False
    assert wrong(train=command, search=search) == ""
    search["amp"] = {"choice": [True, False]}
    assert wrong(train="python main.py --lr {lr} {amp:--amp=1}", search=search) == ""
