"""`initial:`, the configurations that are tried first, from the file to the trials of a run."""

from typing import Any

import pytest

from cloudtune import Experiment
from cloudtune.runs.job import Job, make_sampler, trials
from cloudtune.strategies.samplers.sampler import SAMPLERS
from tests.bench import Bench
from tests.builders.experiments import FIELDS

SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-4, 1]},
    "n": {"randint": [0, 10]},
    "kind": {"choice": ["plain", {"name": "sgd", "decay": {"uniform": [0, 1]}}, {"name": "adam"}]},
}


def experiment(**fields: Any) -> Experiment:
    own = {"search": SPACE, "trials": None, "epochs": {"max": 4}}
    return Experiment(**{**FIELDS, **own, **fields})


@pytest.mark.parametrize("strategy", ["sha", "asha", "best", "hyperband", "pbt", "random"])
def test_they_are_the_first_trials_of_every_strategy(strategy: str) -> None:
    asked = experiment(initial=[{"lr": 0.5}, {"lr": 0.25, "n": 3}], strategy=strategy, trials=12)
    sampler = make_sampler(asked)
    begun = [trial for _ in range(12) if (trial := sampler.ask()) is not None]
    assert [trial.config["lr"] for trial in begun[:2]] == [0.5, 0.25]
    assert begun[1].config["n"] == 3
    assert len({trial.id for trial in begun}) == 12
    assert sampler.ask() is None
    assert trials(asked)[:2] == tuple(begun[:2])


@pytest.mark.parametrize("kind", SAMPLERS)
def test_initial_configs_come_first(kind: str) -> None:
    strategy = {"name": "asha", "sampler": kind}
    space = {"lr": SPACE["lr"]}
    asked = experiment(initial=[{"lr": 0.5}], strategy=strategy, search=space, trials=6)
    sampler = make_sampler(asked)
    begun = [trial.config["lr"] for _ in range(6) if (trial := sampler.ask()) is not None]
    assert begun[0] == 0.5
    assert len(begun) == len(set(begun)) == 6


def test_what_is_left_out_is_drawn_by_the_seed() -> None:
    first, again, other = (
        experiment(initial=[{"lr": 0.5}], seed=seed).first_configs[0] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first.keys() >= {"lr", "n"}


def test_initial_values_choose_the_branch() -> None:
    for number in range(8):
        asked = experiment(initial=[{"kind": {"decay": 0.5}}], seed=number)
        [config] = asked.first_configs
        assert (config["kind/name"], config["kind/decay"]) == ("sgd", 0.5)
    assert experiment(initial=[{"kind": "plain"}]).first_configs[0]["kind"] == "plain"


def test_a_grid_is_gone_through_without_them() -> None:
    space = {"a": {"grid": [1, 2]}, "b": {"grid": [True, False]}}
    asked = experiment(search=space, initial=[{"a": 2, "b": False}], strategy="grid")
    sampler = make_sampler(asked)
    begun = [trial.config for _ in range(5) if (trial := sampler.ask()) is not None]
    values = [tuple(config.values()) for config in begun]
    assert values == [(2, False), (1, True), (2, True), (1, False)]


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ("[{lr: 0.1}, {lrr: 0.2}]", "initial[1].lrr: is not searched; allowed: lr, n"),
        ("[{lr: 2}]", "initial[0].lr: 2 is not in {'uniform': [0.01, 0.1]}"),
        ("[{n: true}]", "initial[0].n: true is not in {'randint': [0, 1000]}"),
        ("[{}, {}, {}, {}, {}]", "initial: has 5 configurations, and trials is 4"),
        ("{lr: 0.1}", "initial: "),
    ],
)
def test_a_mistakes_line(bench: Bench, initial: str, message: str) -> None:
    path = bench.experiment()
    path.write_text(f"{path.read_text()}initial: {initial}\n")
    line = len(path.read_text().splitlines())
    bench.here("plan", path).refused(f"experiment.yaml:{line}: {message}")


def test_a_mistake_in_like_has_its_line(bench: Bench) -> None:
    path = bench.experiment()
    path.write_text(f"{path.read_text()}initial: [{{lr: 0.1}}]\nlike: [{{lr: 0.1}}, {{lr: 2}}]\n")
    bench.here("plan", path).refused("like[1].lr: 2 is not in {'uniform': [0.01, 0.1]}")


def test_a_run_begins_with_them(bench: Bench, simulated: list[Job]) -> None:
    path = bench.ready()
    path.write_text(path.read_text() + "initial: [{lr: 0.05, n: 7}]\n")
    assert bench.here("run", path, "-q").code == 0
    [first] = [t for t in bench.last_report()["trials"] if t["trial"] == "t00"]
    assert first["config"] == {"lr": 0.05, "n": 7}
    assert len(bench.last_report()["trials"]) == 4
