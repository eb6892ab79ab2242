"""Searches by experiment, for runs in virtual time of a script that does nothing."""

from cloudtune.api.experiments import load_experiment
from cloudtune.experiment import Experiment


def search_for(deadline: str, budget: str, strategy: str, **cloud: object) -> Experiment:
    """Return a search within limits on an emulated cloud; its script is `train.py` beside."""
    fields = {
        "name": "searched",
        "train": "train.py:train",
        "metric": {"name": "score", "mode": "max"},
        "search": {"x": {"uniform": [0, 1]}},
        "epochs": {"max": 16},
        "strategy": strategy,
        "trial": {"try_first": False},
        "limits": {"deadline": deadline, "budget": budget},
        "cloud": {"provider": "emulated", **cloud},
    }
    return load_experiment(fields, {})
