"""The smallest experiment that is whole, and experiments as files."""

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


def write_experiment(folder: Path, text: str, script: str = "") -> Path:
    """Write an experiment file, and its train.py if there is one; return the experiment's path."""
    if script:
        (folder / "train.py").write_text(script)
    path = folder / "experiment.yaml"
    path.write_text(text)
    return path
