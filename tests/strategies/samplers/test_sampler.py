import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.errors import UsageError
from cloudtune.experiment.search_space import (
    Categories,
    Constant,
    Domain,
    Grid,
    LogRandInt,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
)
from cloudtune.experiment.spaces import sample
from cloudtune.model.trial import Mode, Trial
from cloudtune.policy.registry import choose_sampler
from cloudtune.strategies.base import Sampler
from cloudtune.strategies.samplers.axes import Steps, list_axes, perturb
from cloudtune.strategies.samplers.sampler import MODEL_BASED, SAMPLERS, SpaceSampler
from tests.builders.values import present

SPACE: dict[str, Domain] = {
    "lr": LogUniform(1e-5, 1.0),
    "momentum": Uniform(0, 1),
    "batch": Categories((16, 32, 64)),
    "layers": RandInt(1, 9),
    "dropout": QUniform(0.1, 0.7, 0.1),
    "optimizer": Grid(("sgd", "adam", None)),
    "nesterov": Categories((True, 1, "1", None)),
    "seed": RandInt(0, 2**63 - 1),
    "workers": Constant(4),
    "depth": RandInt(3, 4),
    "width": Categories((7,)),
    "device": Grid(("gpu",)),
}
FLAT: dict[str, Domain] = {"x": Uniform(0, 1), "y": LogUniform(1e-4, 1)}


def loss(config: Mapping[str, object]) -> float:
    """Return a bowl: least at x = 0.3, y = 0.01."""
    x, y = config["x"], config["y"]
    assert isinstance(x, float)
    assert isinstance(y, float)
    return (x - 0.3) ** 2 + (math.log10(y) + 2) ** 2 / 16


def taught(sampler: Sampler, count: int, sign: float = 1.0, epoch: int = 1) -> list[Trial]:
    """Ask for n trials, and report how each did before the next."""
    result = []
    for _ in range(count):
        trial = present(sampler.ask())
        sampler.tell(trial, epoch, sign * loss(trial.config))
        result.append(trial)
    return result


def allows(domain: Domain, value: object) -> bool:
    match domain:
        case Uniform(low, high) | LogUniform(low, high):
            return isinstance(value, float) and low <= value <= high
        case QUniform(low, high, q):
            steps = round(value / q)  # type: ignore[operator]
            return low <= value <= high and repr(value) == repr(float(f"{steps * q:.12g}"))  # type: ignore[operator]
        case RandInt(low, high):
            return type(value) is int and low <= value < high
        case Categories(values) | Grid(values):
            return any(
                value is item or (value == item and type(value) is type(item)) for item in values
            )
        case Constant(only):
            return value == only


@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_domain_gives_values_that_it_allows(kind: str) -> None:
    count = 12 if kind == "gp" else 30
    sampler = SpaceSampler(SPACE, kind, seed=3, most=count)
    for number in range(count):
        trial = present(sampler.ask())
        assert trial.id == f"t{number:02d}"
        assert list(trial.config) == list(SPACE)
        for name, domain in SPACE.items():
            assert allows(domain, trial.config[name]), (name, trial.config[name])
        sampler.tell(trial, 1, float(number % 7))
    assert sampler.ask() is None


@pytest.mark.parametrize("kind", ["random", "qmc", "tpe", "cma-es"])
def test_grids_are_gone_through_as_a_plain_sample_does(kind: str) -> None:
    space: dict[str, Domain] = {"a": Grid((1, 2)), "x": Uniform(0, 1), "b": Grid(("p", "q", "r"))}
    sampler = SpaceSampler(space, kind)
    asked = []
    for _ in range(13):
        trial = present(sampler.ask())
        sampler.tell(trial, 1, 0.0)
        asked.append((trial.config["a"], trial.config["b"]))
    assert asked == [(item["a"], item["b"]) for item in sample(space, 13, 0)]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_same_tells_give_the_same_asks(kind: str) -> None:
    count = 6 if kind == "gp" else 20
    configs = [
        [t.config for t in taught(SpaceSampler(FLAT, kind, seed=5), count)] for _ in range(2)
    ]
    assert configs[0] == configs[1]
    other = [t.config for t in taught(SpaceSampler(FLAT, kind, seed=6), count)]
    assert all(one != two for one, two in zip(configs[0][:6], other, strict=False))


def test_asks_are_the_same_in_another_process() -> None:
    """Where strings hash otherwise."""
    code = (
        "import json; from tests.strategies.samplers.test_sampler import *; "
        "print(json.dumps([dict(t.config) for t in taught(SpaceSampler(FLAT, 'tpe'), 12)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == [t.config for t in taught(SpaceSampler(FLAT, "tpe"), 12)]


@pytest.mark.parametrize(("kind", "mode"), [("tpe", "min"), ("cma-es", "max"), ("gp", "max")])
def test_a_model_finds_what_is_good(kind: str, mode: Mode) -> None:
    count = 12 if kind == "gp" else 120
    sign = 1.0 if mode == "min" else -1.0
    sampler = SpaceSampler(FLAT, kind, mode=mode, seed=1)
    late = [loss(trial.config) for trial in taught(sampler, count, sign)[-5:]]
    chance = [loss(trial.config) for trial in taught(SpaceSampler(FLAT), 200)]
    assert np.median(late) < np.median(chance) / 3


@pytest.mark.parametrize("kind", MODEL_BASED)
def test_a_failed_trial_is_the_worst(kind: str) -> None:
    """Half of the line fails, and the other half is all the same."""
    space: dict[str, Domain] = {"x": Uniform(0, 1)}
    sampler, asked = SpaceSampler(space, kind, mode="min", seed=1), []
    values = itertools.cycle([None, math.nan, math.inf])
    for _ in range(9 if kind == "gp" else 100):
        trial = present(sampler.ask())
        x = trial.config["x"]
        assert isinstance(x, float)
        sampler.tell(trial, 1, 1.0 if x < 0.5 else next(values))
        asked.append(x)
    late = asked[len(asked) // 2 :]
    assert sum(x < 0.5 for x in late) / len(late) > 0.65


def test_all_failing_is_no_end() -> None:
    sampler = SpaceSampler(FLAT, "tpe")
    for _ in range(20):
        trial = present(sampler.ask())
        sampler.tell(trial, 0, None)
    assert taught(SpaceSampler(FLAT, "random"), 21)[-1].config == sampler.ask().config  # type: ignore[union-attr]


def test_late_repeated_and_foreign_reports_do_no_harm() -> None:
    sampler = SpaceSampler(FLAT, "cma-es")
    trials = taught(sampler, 8, epoch=2)
    late = present(sampler.ask())
    for epoch in (1, 2, 2, 3):
        sampler.tell(late, epoch, 0.5)
    sampler.tell(late, 3, None)
    for trial in trials:
        sampler.tell(trial, 3, loss(trial.config))
    sampler.tell(Trial("given", {"x": 0.1, "y": 0.1}), 3, 0.2)
    assert sampler.ask() is not None


def test_which_sampler_a_strategy_gets() -> None:
    assert choose_sampler("asha") == ("random", 0.0)
    assert choose_sampler("asha", "gp") == ("gp", 0.0)
    assert choose_sampler("bohb") == ("tpe", 1 / 3)
    assert choose_sampler("sync-bohb", "gp") == ("gp", 1 / 3)
    with pytest.raises(UsageError, match="bohb with the sampler qmc is Hyperband"):
        choose_sampler("bohb", "qmc")


def test_optuna_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for kind in ("tpe", "cma-es", "qmc"):
        taught(SpaceSampler(FLAT, kind), 12)
    assert capfd.readouterr() == ("", "")


def test_whole_numbers_may_stand_by_their_logarithm() -> None:
    axes = list_axes({"n": LogRandInt(1, 257), "q": QLogUniform(0.1, 1.6, 0.1)})
    units, rate = axes["n"], axes["q"]
    assert isinstance(units, Steps)
    assert isinstance(rate, Steps)
    assert [units.value(place) for place in (0.0, 0.5, 1.0)] == [1, 16, 256]
    assert units.place(16) == pytest.approx(0.5)
    assert [rate.value(place) for place in (0.0, 0.5, 1.0)] == [0.1, 0.4, 1.6]
    space: dict[str, Domain] = {"n": LogRandInt(1, 257)}
    for kind in ("tpe", "gp", "cma-es", "qmc"):
        drawn = draw_trials(space, kind)
        assert all(type(n) is int and 1 <= n <= 256 for n in drawn), kind
        assert statistics.median(drawn) < 64, "as many below 16 as above"


def draw_trials(space: dict[str, Domain], kind: str) -> list[Any]:
    made = SpaceSampler(space, kind, seed=1, most=20)
    return [trial.config["n"] for trial in iter(made.ask, None)]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_a_perturbed_configuration_is_one_of_the_space(seed: int) -> None:
    sampler = SpaceSampler(SPACE, seed=seed % 5)
    parent = present(sampler.ask())
    child = perturb(list_axes(SPACE), parent.config, np.random.default_rng(seed))
    assert list(child) == list(SPACE)
    for name, domain in SPACE.items():
        assert allows(domain, child[name]), (name, child[name])


def test_numbers_change_by_a_fifth_lists_to_the_neighbour() -> None:
    axes = list_axes(
        {
            "x": Uniform(0, 10),
            "n": RandInt(0, 100),
            "b": Categories((64, 16, 32)),
            "k": RandInt(1, 5),
        }
    )
    parent = {"x": 5.0, "n": 50, "b": 32, "k": 2, "constant": 9}
    chance = np.random.default_rng(0)
    children = [perturb(axes, parent, chance) for _ in range(300)]
    assert all(child["constant"] == 9 for child in children)
    for name, kept in (("x", (4.0, 6.0)), ("n", (40, 60)), ("b", (16, 64)), ("k", (1, 3))):
        share = sum(child[name] in kept for child in children) / len(children)
        assert share > 0.7, name
    assert sum(child["x"] not in (4.0, 6.0) for child in children) == pytest.approx(75, abs=25)


def test_clones_count_as_trials() -> None:
    sampler = SpaceSampler(FLAT, most=2)
    parent = present(sampler.ask())
    clone = present(sampler.explore(parent))
    assert clone.id == "t01"
    assert sampler.explore(parent) is None
