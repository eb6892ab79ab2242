"""The choices of mutators, from a script to the search space; mistakes with their line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.experiment.spaces import sample
from cloudtune.script import mutators
from cloudtune.strategies.samplers.axes import allows
from cloudtune.train.models.space import ModelSpace
from cloudtune.train.user_script import load_function
from tests.builders.experiments import write_experiment

EXAMPLE = Path(__file__).parents[2] / "examples/models"
HEAD = """\
from typing import Annotated, Literal
from cloudtune import models
"""
FUNCTIONS = """
Width = Literal[8, 16]

def base(): ...
def width(network, channels: Width, sparse: bool = False, note: str = ""): ...
def plain(network): ...
def drop(network, *, p: Annotated[float, models.uniform(0, .5)], eps: "Literal[-1, 'a']"): ...
"""
YAML = """\
name: nets
train: train.py:train
metric: {name: accuracy, mode: max}
search:
  lr: {uniform: [0, 1]}
  model: {mutators: train.py:MODEL}
trials: 4
epochs: {max: 3}
"""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(folder: Path, script: str, yaml: str = YAML) -> Path:
    return write_experiment(folder, yaml, f"{HEAD}{script}\ndef train(config): ...\n")


def read_search(folder: Path, script: str) -> Any:
    return Experiment.load(written(folder, script)).search["model"]


def read_space(folder: Path) -> ModelSpace:
    result = load_function(folder, "train.py:train").__globals__["MODEL"]
    assert isinstance(result, ModelSpace)
    return result


SPACES = [
    "MODEL = models.space(base, width)",
    'MODEL = models.space(base, models.one_of("head", None, plain, drop), width)',
    'HEAD: object = models.one_of("head", plain, drop)\nMODEL = models.space(base, HEAD)',
    "from cloudtune.models import space as made\nMODEL = made(base, drop)",
    "import cloudtune as ct\nMODEL = ct.models.space(base, drop)",
]


@pytest.mark.parametrize("space", SPACES)
def test_what_is_read_is_what_the_script_itself_says(tmp_path: Path, space: str) -> None:
    read = read_search(tmp_path, FUNCTIONS + space)
    assert read == read_space(tmp_path).search


def test_types_say_what_may_be_chosen(tmp_path: Path) -> None:
    assert read_search(tmp_path, FUNCTIONS + SPACES[1]) == {
        "mutators": {
            "head": {
                "choice": [
                    "none",
                    "plain",
                    {"name": "drop", "p": {"uniform": [0, 0.5]}, "eps": {"choice": [-1, "a"]}},
                ]
            },
            "width": {"channels": {"choice": [8, 16]}, "sparse": {"choice": [False, True]}},
        }
    }


def test_mutators_may_stand_in_a_file_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(HEAD + "def depth(network, n: Literal[1, 2]): ...\n")
    script = "import blocks\nfrom blocks import depth\ndef base(): ...\n"
    for name in ("depth", "blocks.depth"):
        result = read_search(tmp_path, f"{script}MODEL = models.space(base, {name})")
        assert result == {"mutators": {"depth": {"n": {"choice": [1, 2]}}}}


def test_configurations_are_plain_and_the_record_needs_no_script(tmp_path: Path) -> None:
    path = written(tmp_path, FUNCTIONS + SPACES[1])
    experiment = Experiment.load(path)
    record = json.loads(json.dumps(experiment.to_json()))
    (tmp_path / "train.py").unlink()
    again = Experiment.from_json(record)
    assert again.space == experiment.space
    assert again.space.of_models == set(again.space) - {"lr"}
    configs = sample(again.space, 40, 0)
    names = {name for config in configs for name in config}
    assert names == {
        *("lr", "model/head", "model/head/name", "model/head/p", "model/head/eps"),
        *("model/width/channels", "model/width/sparse"),
    }
    assert all(allows(again.space, config) for config in configs)
    assert all(isinstance(v, str | int | float) for config in configs for v in config.values())


def test_choices_may_be_written_out(tmp_path: Path) -> None:
    said = "{mutators: {width: {channels: {choice: [8, 16]}}}}"
    path = written(tmp_path, "", YAML.replace("{mutators: train.py:MODEL}", said))
    space = Experiment.load(path).space
    assert space.of_models == {"model/width/channels"}


MISTAKES = [
    ("def base(): ...", ": no MODEL = models.space(...) at its top level; add one"),
    (FUNCTIONS + "MODELS = models.space(base, width)", "it has MODELS. Did you mean 'MODELS'?"),
    (FUNCTIONS + "MODEL = models.space(base, widht)", ":10: NameError: name 'widht' is not"),
    (FUNCTIONS + "MODEL = models.space(base, plain)", ":10: plain() has no choices"),
    ("def f(n, w): ...\nMODEL = models.space(f, f)", ":4: w of f() doesn't say what it may be"),
    (
        "def f(n, w: Annotated[float, models.uniform(2, 1)]): ...\nMODEL = models.space(f, f)",
        ".f.w.uniform: low is 2 and high is 1",
    ),
    ("import nosuchmodule", ":3: ModuleNotFoundError: No module named 'nosuchmodule'"),
    ("def (", ":3: SyntaxError: invalid syntax"),
    ("raise SystemExit", ":3: SystemExit"),
]


@pytest.mark.parametrize(("script", "message"), MISTAKES)
def test_a_mistake_has_the_lines_of_both_files(tmp_path: Path, script: str, message: str) -> None:
    path = written(tmp_path, script)
    with pytest.raises(ExperimentError) as caught:
        Experiment.load(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}:6: search.model.mutators")
    assert message in line


@pytest.mark.parametrize("value", ["3", "{}", "{uniform: [0, 1]}", "train.py"])
def test_what_names_no_mutators_is_refused(tmp_path: Path, value: str) -> None:
    path = written(tmp_path, "", YAML.replace("train.py:MODEL", value))
    with pytest.raises(ExperimentError, match=r"yaml:6: search.model.mutators: .*no mutators"):
        Experiment.load(path)


def test_script_output_is_no_answer(tmp_path: Path) -> None:
    path = written(tmp_path, "print('{')\n" + FUNCTIONS + SPACES[0])
    look = (
        "import sys; from cloudtune.experiment import Experiment; "
        f"found = Experiment.load({str(path)!r}); found.check_train(); print(len(found.space)); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["experiment.yaml", "train.py"]


def test_training_holds_no_plan_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutators, "_MAX_SECONDS", 0.5)
    path = written(tmp_path, "import time\ntime.sleep(60)\n" + FUNCTIONS + SPACES[0])
    with pytest.raises(ExperimentError, match="keep training out of its top level"):
        Experiment.load(path)


def test_inherit_is_for_pbt_and_for_networks(tmp_path: Path) -> None:
    for strategy, result in (
        ("{name: asha, inherit: true}", "is only for pbt"),
        ("{name: pbt, inherit: sure}", "'sure' is not true or false"),
    ):
        path = written(tmp_path, FUNCTIONS + SPACES[0], f"{YAML}strategy: {strategy}\n")
        with pytest.raises(ExperimentError, match=rf"yaml:9: strategy.inherit: {result}"):
            Experiment.load(path)
    without = YAML.replace("  model: {mutators: train.py:MODEL}\n", "")
    path = written(tmp_path, "", f"{without}strategy: {{name: pbt, inherit: true}}\n")
    with pytest.raises(ExperimentError, match="the search has no mutators"):
        Experiment.load(path)


def test_no_clones_of_other_networks_without_inheriting(tmp_path: Path) -> None:
    yaml = f"{YAML}strategy: {{name: pbt, inherit: true}}\n"
    path = written(tmp_path, FUNCTIONS + SPACES[0], yaml)
    with pytest.raises(ExperimentError, match=r"calls cloudtune.inherit\(\)"):
        Experiment.load(path).check_train()
    text = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(f"{text}\ndef load(net): cloudtune.inherit(net, {{}})\n")
    Experiment.load(path).check_train()


def test_example_choices_equal_script() -> None:
    experiment = Experiment.load(EXAMPLE / "experiment.yaml")
    experiment.check_train()
    assert experiment.search["model"] == read_space(EXAMPLE).search
