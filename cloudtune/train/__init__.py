"""The side of the user's script: reports, epochs, checkpoints, data."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Provide the names of `ray.train`: `from cloudtune import train`."""
    if name == "torch":
        return importlib.import_module("cloudtune.train.torch")
    if not name.startswith("_"):
        facade = importlib.import_module("cloudtune")
        if name in facade.__all__:
            return getattr(facade, name)
    raise AttributeError(f"module 'cloudtune.train' has no attribute {name!r}")
