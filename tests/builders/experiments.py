"""The smallest experiment that is whole, for tests of one of its sections."""

from pathlib import Path
from typing import Any

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
