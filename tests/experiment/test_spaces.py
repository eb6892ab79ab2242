"""Search spaces that nest and branch: from an experiment file to configurations."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.experiment.spaces import Space, parse_parameter, sample
from cloudtune.model.trial import flat, nest
from cloudtune.runs.job import make_sampler, trials
from cloudtune.strategies.samplers.adaptive import Adaptive
from cloudtune.strategies.samplers.axes import ListedValues, NumberLine, allows, axes_by_size
from cloudtune.strategies.samplers.sampler import SAMPLERS, SpaceSampler
from tests.builders.experiments import small_experiment
from tests.builders.values import present

FILE = """\
name: nested
train: train.py:train
metric: {name: loss, mode: min}
trials: 40
epochs: {max: 4}
search:
"""
BRANCHING = """\
  model:
    width: {choice: [8, 16]}
    head: {dropout: {uniform: [0, 0.5]}}
  optimizer:
    choice:
      - {name: sgd, lr: {loguniform: [1e-2, 1]}, momentum: {uniform: [0, 1]}}
      - name: adam
        lr: {loguniform: [1e-5, 1e-2]}
        decay: {choice: [none, {kind: cosine, warmup: {randint: [0, 5]}}]}
  schedule: {choice: [constant, {gamma: {uniform: [0.1, 0.9]}}]}
"""
SGD = {"model/width", "model/head/dropout", "optimizer/name", "optimizer/lr", "optimizer/momentum"}
ADAM = SGD - {"optimizer/momentum"}


def written(folder: Path, search: str) -> Path:
    (folder / "train.py").write_text("def train(config): ...\n")
    file = folder / "experiment.yaml"
    file.write_text(FILE + search)
    return file


@pytest.fixture
def space(tmp_path: Path) -> Space:
    return Experiment.load(written(tmp_path, BRANCHING)).space


def is_of_a_branch(config: Mapping[str, Any]) -> bool:
    names = set(config) - {"schedule", "schedule/gamma"}
    if config["optimizer/name"] == "sgd":
        ranges = 1e-2 <= config["optimizer/lr"] <= 1
        return ranges and names == SGD
    if config.get("optimizer/decay") == "none":
        decay = {"optimizer/decay"}
    else:
        decay = {"optimizer/decay/kind", "optimizer/decay/warmup"}
    return bool(1e-5 <= config["optimizer/lr"] <= 1e-2 and names == ADAM | decay)


def test_configurations_have_active_parameters_only(space: Space) -> None:
    configs = sample(space, 200, 0)
    assert all(is_of_a_branch(config) for config in configs)
    names = Counter(config["optimizer/name"] for config in configs)
    assert min(names["sgd"], names["adam"]) > 70
    assert all(("schedule" in item) != ("schedule/gamma" in item) for item in configs)


def test_the_script_gets_nested_mappings() -> None:
    config = {"lr": 1.0, "optimizer/name": "adam", "optimizer/decay/kind": "cosine"}
    inside = {"lr": 1.0, "optimizer": {"name": "adam", "decay": {"kind": "cosine"}}}
    assert nest(config) == inside
    assert flat(inside) == config


def test_added_branch_keeps_other_draws(space: Space, tmp_path: Path) -> None:
    more = BRANCHING.replace("  schedule:", "  extra: {a: {uniform: [0, 1]}}\n  schedule:")
    assert more != BRANCHING
    longer = sample(Experiment.load(written(tmp_path, more)).space, 20, 3)
    before = sample(space, 20, 3)
    assert [{n: v for n, v in c.items() if n != "extra/a"} for c in longer] == list(before)


def test_an_experiment_is_the_same_from_its_json(tmp_path: Path) -> None:
    experiment = Experiment.load(written(tmp_path, BRANCHING))
    again = Experiment.from_json(json.loads(json.dumps(experiment.to_json())))
    assert again == experiment
    assert sample(again.space, 30, 1) == sample(experiment.space, 30, 1)


def test_grids_count_each_branch_with_its_own(tmp_path: Path) -> None:
    search = (
        "  batch: {grid: [16, 32]}\n"
        "  optimizer:\n"
        "    grid:\n"
        "      - {name: sgd, lr: {grid: [0.1, 0.2, 0.3]}}\n"
        "      - {name: adam, beta: {grid: [0.8, 0.9]}, amsgrad: {grid: [true, false]}}\n"
        "      - none\n"
    )
    space = Experiment.load(written(tmp_path, search)).space
    assert space.crossings == 2 * (3 + 2 * 2 + 1)
    configs = sample(space, 100, 0)
    assert len(configs) == len({tuple(sorted(c.items())) for c in configs}) == 16
    assert configs[0] == {"batch": 16, "optimizer/name": "sgd", "optimizer/lr": 0.1}
    assert configs[1] == {"batch": 32, "optimizer/name": "sgd", "optimizer/lr": 0.1}
    assert configs[-1] == {"batch": 32, "optimizer": "none"}
    for kind in SAMPLERS:
        sampler = SpaceSampler(space, kind, most=50)
        result = [trial.config for trial in iter(sampler.ask, None)]
        assert result == list(configs), kind


def test_branch_grid_cycles(tmp_path: Path) -> None:
    branches = "{name: sgd, lr: {uniform: [0, 1]}}, {name: adam, b: {grid: [1]}}"
    search = f"  optimizer:\n    grid: [{branches}]\n"
    space = Experiment.load(written(tmp_path, search)).space
    for kind in ("random", "tpe", "cma-es"):
        sampler = SpaceSampler(space, kind, most=30)
        names, rates = [], set()
        for trial in iter(sampler.ask, None):
            names.append(trial.config["optimizer/name"])
            rates.add(trial.config.get("optimizer/lr"))
            sampler.tell(trial, 1, len(names) % 5)
        assert names == ["sgd", "adam"] * 15, kind
        assert len(rates) == 16, kind  # fifteen rates, and none for adam


def goodness(config: Mapping[str, Any]) -> float:
    """Return what is best for adam at a small rate that decays."""
    if config["optimizer/name"] == "sgd":
        return 1.0 - abs(math.log10(config["optimizer/lr"]) + 1) / 4
    decays = "optimizer/decay/warmup" in config
    return 2.0 + decays - abs(math.log10(config["optimizer/lr"]) + 3.5)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_choose_branches_and_are_pure(space: Space, kind: str) -> None:
    def played() -> list[dict[str, object]]:
        sampler = SpaceSampler(space, kind, mode="max", seed=1)
        result = []
        for _ in range(12):
            trial = present(sampler.ask())
            result.append(dict(trial.config))
            sampler.tell(trial, 1, goodness(trial.config) if len(result) % 9 else None)
        return result

    configs = played()
    assert all(is_of_a_branch(config) for config in configs)
    assert played() == configs


def test_tpe_learns_which_branch_is_good(space: Space) -> None:
    sampler = SpaceSampler(space, "tpe", mode="max", seed=0)
    result = []
    for _ in range(60):
        trial = present(sampler.ask())
        result.append(trial.config)
        sampler.tell(trial, 1, goodness(trial.config))
    late = result[30:]
    assert sum(item["optimizer/name"] == "adam" for item in late) > 20
    assert sum("optimizer/decay/warmup" in item for item in late) > 15


def test_pbt_keeps_branches(space: Space) -> None:
    sampler = SpaceSampler(space, most=200)
    for _ in range(20):
        parent = present(sampler.ask())
        changed = 0
        for _ in range(5):
            child = present(sampler.explore(parent))
            assert set(child.config) == set(parent.config)
            assert child.config["optimizer/name"] == parent.config["optimizer/name"]
            assert is_of_a_branch(child.config)
            changed += child.config["optimizer/lr"] != parent.config["optimizer/lr"]
        assert changed >= 3


def test_earlier_run_favours_good_branch(space: Space) -> None:
    axes = axes_by_size(space)
    assert axes["optimizer/name"] == ListedValues(("sgd", "adam", None))
    assert axes["optimizer/lr"] == NumberLine(1e-5, 1.0, log=True)
    assert axes["optimizer/decay/kind"] == ListedValues(("cosine", None))
    sampler = Adaptive(SpaceSampler(space, most=60), "max", 1)
    given = []
    while (trial := sampler.ask()) is not None:
        given.append(trial.config["optimizer/name"])
        sampler.tell(trial, 1, float(trial.config["optimizer/name"] == "adam"))
    assert given[:20].count("adam") < 16 <= given[40:].count("adam")


@pytest.mark.parametrize(
    ("search", "line", "field", "expected"),
    [
        ("  opt:\n    lr:\n      uniform: [1, 0]", 9, "search.opt.lr.uniform", "below the high"),
        (
            "  opt:\n    choice:\n      - {name: sgd}\n      - {name: a, b: {unifrom: [0, 1]}}",
            10,
            "search.opt.choice[1].b.unifrom",
            "unknown distribution 'unifrom'",
        ),
        (
            "  opt:\n    choice:\n      - {lr: {uniform: [0, 1]}}\n      - {lr: 0.5}",
            10,
            "search.opt.choice[1]",
            "this branch can't be distinguished from branch 1",
        ),
        ("  opt:\n    choice: [{a: {grid: [1, 2]}}, {b: 1}]", 8, "search.opt.choice[0].a", "grid"),
        ("  opt:\n    choice: [{a: 1}, [{b: 2}]]", 8, "search.opt.choice[1]", "no value"),
        ("  lr: {min: 0, max: 1}", 7, "search.lr", "write one distribution"),
        ("  opt/lr: 1", 7, "search.opt/lr", "without a slash; to nest, write a mapping"),
    ],
)
def test_a_mistakes_line(tmp_path: Path, search: str, line: int, field: str, expected: str) -> None:
    file = written(tmp_path, f"{search}\n")
    with pytest.raises(ExperimentError) as caught:
        Experiment.load(file)
    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: {field}: ")
    assert expected in message


def test_distinct_branches_need_no_name() -> None:
    space = Space({"reg": parse_parameter({"choice": [{"l1": 0.1}, {"l2": 0.1}, None]})})
    assert {tuple(item) for item in sample(space, 50, 0)} == {("reg/l1",), ("reg/l2",), ("reg",)}
    assert all(allows(space, item) for item in sample(space, 50, 0))


def test_lists_and_numbers_of_numpy_are_values(tmp_path: Path) -> None:
    search = {
        "layers": {"choice": [(64, 64), [128], None]},
        "lr": {"grid": np.array([0.1, 0.01])},
        "seed": {"choice": range(3)},
        "width": {"choice": [np.int64(8)]},
        "optimizer": {"choice": ["sgd", {"name": "adam", "betas": {"choice": [(0.9, 0.99)]}}]},
    }
    initial = [{"layers": (64, 64), "lr": np.float64(0.1)}]
    experiment = small_experiment(tmp_path, search=search, initial=initial, trials=8)
    assert Experiment.load(json.loads(json.dumps(experiment.to_json()))) == experiment
    assert experiment.search["layers"] == {"choice": [[64, 64], [128], None]}
    configs = [trial.config for trial in trials(experiment)]
    assert configs[0]["layers"] == [64, 64]
    assert {repr(config["layers"]) for config in configs} == {"[64, 64]", "[128]", "None"}
    assert {config["lr"] for config in configs} == {0.1, 0.01}
    assert all(type(config["width"]) is int for config in configs)
    betas = [config["optimizer/betas"] for config in configs if "optimizer/betas" in config]
    assert betas
    assert betas[0] == [0.9, 0.99]


@pytest.mark.parametrize("name", ["random", "tpe", "gp", "cma-es", "adaptive"])
def test_samplers_learn_from_lists(tmp_path: Path, name: str) -> None:
    search = {"layers": {"choice": [[64, 64], [128]]}, "lr": {"uniform": [0, 1]}}
    strategy = {"name": "best" if name == "adaptive" else "asha", "sampler": name}
    experiment = small_experiment(tmp_path, search=search, trials=16, strategy=strategy)
    sampler = make_sampler(experiment)
    for number in range(12):
        trial = sampler.ask()
        assert trial is not None
        assert trial.config["layers"] in ([64, 64], [128])
        sampler.tell(trial, 1, float(number))
