"""Measuring a script, as its experiment says."""

from __future__ import annotations

import pytest

from cloudtune.experiment import Experiment
from cloudtune.jobs import measuring
from cloudtune.plan import Charges, Limits


class _MadeError(Exception):
    """A policy was asked for, which is all that is looked at."""


def test_a_measurement_counts_the_charges_of_its_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = Experiment(
        name="made-up",
        train="train.py:train",
        metric={"name": "score", "mode": "max"},
        search={"x": {"uniform": [0, 1]}},
        trials=2,
        epochs={"min": 1, "max": 2},
        cloud={"instances": ["g7.12xlarge"]},
        charges={"per_launch": 0.05, "per_hour": 3.6},
    )
    asked: dict[str, object] = {}

    def made(**options: object) -> None:
        asked.update(options)
        raise _MadeError

    monkeypatch.setattr(measuring, "MeasurePolicy", made)
    with pytest.raises(_MadeError):
        measuring.measure(
            experiment, "g7.12xlarge", lambda *_: None, pace=False, limits=Limits(60.0, 1.0)
        )
    assert asked["charges"] == Charges(usd_per_launch=0.05, usd_per_second=0.001)
