"""`env` and `secrets` of an experiment file: what they take, and each mistake with its line."""

from pathlib import Path

import pytest

from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.experiment.variables import SecretSource
from cloudtune.infra.node.process_group import VARIABLES
from tests.builders.experiments import small_experiment, write_experiment

TEXT = """
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0, 1]}}
epochs: {max: 2}
limits: {deadline: 1h}
"""


def load(folder: Path, more: str) -> Experiment:
    path = write_experiment(folder, TEXT + more)
    return Experiment.load(path)


@pytest.mark.parametrize(
    "written",
    [
        "env: {THREADS: 4, RATE: 1e-4, MODE: 'true', OWN: }",
        "env: [THREADS=4, RATE=0.0001, MODE=true, OWN]",
    ],
)
def test_a_mapping_and_a_list_are_the_same(tmp_path: Path, written: str) -> None:
    experiment = load(tmp_path, written)
    assert experiment.env == {"THREADS": "4", "RATE": "0.0001", "MODE": "true", "OWN": None}
    assert Experiment.from_json(experiment.to_json()) == experiment


def test_secrets_name_a_store(tmp_path: Path) -> None:
    written = "secrets: {A: ssm:/team/a, B: aws-secretsmanager:b#key, C: 'file:~/c#d'}"
    assert load(tmp_path, written).secret_sources == {
        "A": SecretSource("ssm", "/team/a"),
        "B": SecretSource("aws-secretsmanager", "b", "key"),
        "C": SecretSource("file", "~/c#d"),
    }


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("env: {A-B: x}", "env: 'A-B' can't name a variable"),
        ("env: {RANK: '1'}", "env: RANK is set by cloudtune"),
        ("env: [RAY_ADDRESS]", "env: RAY_ADDRESS is set by cloudtune"),
        ("env: {A: true}", "env.A: true may mean true, True or 1"),
        ("env: {A: [x]}", "env.A: ['x'] is not a text"),
        ("env: [A, A]", r"env[1]: A is listed twice"),
        ("env: WANDB_API_KEY", "env: 'WANDB_API_KEY' is neither a mapping nor a list"),
        ("secrets: {A: vault:x}", "secrets.A: 'vault:x' names no store"),
        ("secrets: {A: 'ssm:'}", "secrets.A: 'ssm:' names nothing"),
        ("secrets: {A: 'ssm:/team/*'}", "secrets.A: 'ssm:/team/*' can't be in a store of AWS"),
        ("secrets: [A]", "secrets: ['A'] is not a mapping"),
        ("env: [A]\nsecrets: {A: ssm:a}", "secrets.A: is in env too"),
    ],
)
def test_mistakes_have_their_line(tmp_path: Path, written: str, complaint: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        load(tmp_path, written)
    line = 7 + written.count("\n")
    assert str(refused.value).startswith(f"{tmp_path}/experiment.yaml:{line}: {complaint}")


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_what_each_worker_gets_is_not_a_persons(tmp_path: Path, name: str) -> None:
    with pytest.raises(ExperimentError, match=f"{name} is set by cloudtune"):
        small_experiment(tmp_path, env={name: "1"})
