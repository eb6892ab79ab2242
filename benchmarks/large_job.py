"""A large job to plan: every priced instance type, both markets, three zones.

No profile of all types exists, so this one is made up, but plausible: a GPU's speed follows its
price with a seeded error, halves of a GPU are a little slow, and so are several nodes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.infra.aws import pricing
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.profiles import store

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.infra.aws.pricing import Listing
    from cloudtune.model.catalog import InstanceType

_EPOCH = 300.0  # seconds on one GPU that costs a dollar an hour
TRAIN = "def train(config, epochs):\n    yield {'loss': 0.0}\n"
_EXPERIMENT = """\
name: large
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1]}}
trials: 512
epochs: {min: 1, max: 512}
eta: 2
cloud:
  instances: ["*"]
  market: any
  zones: [us-east-1a, us-east-1b, us-east-1c]
  max_instances: 64
"""


def write(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write an experiment and a profile of all types; return their files."""
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    experiment, profile = folder / "experiment.yaml", folder / "all.json"
    experiment.write_text(_EXPERIMENT, encoding="utf-8")
    store.write(profile, profiles(seed))
    return experiment, profile


def profiles(seed: int) -> list[ScalingProfile]:
    """Return a profile of each type that has a price."""
    priced = [listing for listing in pricing.rentable() if listing.on_demand is not None]
    dollars: dict[str, float] = {}
    for listing in priced:
        gpu = listing.instance_type.gpu
        dollars[gpu] = min(dollars.get(gpu, math.inf), _each_gpu(listing))
    dice = np.random.default_rng(seed)
    speed = {gpu: usd**0.8 * math.exp(dice.normal(0.0, 0.25)) for gpu, usd in dollars.items()}
    return [
        _profile(listing.instance_type, speed[listing.instance_type.gpu], dice)
        for listing in priced
    ]


def _each_gpu(listing: Listing) -> float:
    assert listing.on_demand is not None
    return listing.on_demand / listing.instance_type.gpus


def _profile(machine: InstanceType, speed: float, dice: np.random.Generator) -> ScalingProfile:
    loss, apart = float(dice.uniform(0.03, 0.15)), float(dice.uniform(0.5, 0.95))
    one = _EPOCH / speed

    def seconds(width: float) -> float:
        if width <= 1:
            return one * (1 + 0.1 * (1 / width - 1)) / width
        return one / math.pow(width, 1 - loss) / (1 if width <= machine.gpus else apart)

    return ScalingProfile(
        instance_type=machine.name,
        epoch={width: _spread(seconds(width), 0.03) for width in widths(machine.gpus)},
        launch=_spread(20.0, 0.4),
        boot=_spread(float(dice.uniform(60, 180)), 0.2),
        start=_spread(15.0, 0.2),
        resize=_spread(25.0, 0.2),
        release=_spread(5.0, 0.5),
        script_hash="",
        measured_at="2026-11-21T00:00:00Z",
        source="made up for benchmarks/plan_time.py",
    )


def widths(gpus: int) -> list[float]:
    """Return the widths from four trials on a GPU to one trial on two nodes."""
    powers = (2.0**n for n in range(gpus.bit_length()))
    return [0.25, 0.5, *sorted({*powers, float(gpus), 2.0 * gpus})]


def _spread(mean: float, share: float) -> Measurement:
    return Measurement(mean, mean * share, 5)
