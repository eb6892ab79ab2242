"""The smallest experiment that is whole, and experiments as files."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cloudtune.api.experiments import for_renting
from cloudtune.experiment import Experiment

FIELDS: dict[str, Any] = {
    "name": "x",
    "train": "train.py:train",
    "metric": {"name": "loss", "mode": "min"},
    "search": {"lr": {"uniform": [0, 1]}},
    "trials": 2,
    "epochs": {"max": 2},
}


def small_experiment(folder: Path, **sections: Any) -> Experiment:
    return Experiment(**{**FIELDS, "directory": folder, **sections})


def experiment_on_aws(
    folder: Path, cloud: Mapping[str, Any] = MappingProxyType({}), **fields: Any
) -> Experiment:
    """Return an experiment for a dollar on AWS, as it is when something is to be rented."""
    (folder / "train.py").write_text("def train(config): ...\n")
    place = {"provider": "aws", "instances": ["g4dn.xlarge"], **cloud}
    limits = {"budget": "$1"}
    given = {"limits": limits, "directory": str(folder), "cloud": place, **fields}
    return for_renting({**FIELDS, **given}, {})


def write_experiment(folder: Path, text: str, script: str = "") -> Path:
    """Write an experiment file, and its train.py if there is one; return the experiment's path."""
    if script:
        (folder / "train.py").write_text(script)
    path = folder / "experiment.yaml"
    path.write_text(text)
    return path
