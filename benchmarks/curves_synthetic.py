"""Made-up learning curves that look like real ones, the same for a seed: for whoever has no data.

    value(e) = floor + (start - floor) e^-pace + N(0, noise)      a loss; the accuracy is 1 - value

Power laws, as losses of networks are (Hestness et al. 2017). The floor is lowest at some learning
rate and weight decay, so that a sampler has something to learn; a high learning rate starts fast,
ends worse, and diverges the more often the higher it is. How long an epoch takes depends on the
batch size, and differs a little from one configuration to the next.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.compare.curves import Curve, Curves

if TYPE_CHECKING:
    from numpy.random import Generator

BATCHES = (32, 64, 128, 256)
_NOISE = 0.004
_START = 0.9
# The share of the epochs that the shortest schedule of a configuration has.
_FEWEST = 0.6


def synthetic(
    count: int = 256,
    epochs: int = 64,
    seed: int = 0,
    *,
    diverging: float = 0.15,
    epoch_seconds: float = 120.0,
) -> Curves:
    """Return so many curves of an accuracy; about that share of them diverge."""
    rng = np.random.default_rng(seed)
    curves = tuple(_curve(n, epochs, rng, diverging, epoch_seconds) for n in range(count))
    return Curves("accuracy", "max", curves)


def _curve(
    number: int, epochs: int, rng: Generator, diverging: float, epoch_seconds: float
) -> Curve:
    log_lr, log_decay = rng.uniform(-4.0, 0.0), rng.uniform(-6.0, -2.0)
    batch = BATCHES[rng.integers(len(BATCHES))]
    last = int(rng.integers(max(1, math.ceil(_FEWEST * epochs)), epochs + 1))
    floor = 0.06 + 0.05 * (log_lr + 1.8) ** 2 + 0.01 * (log_decay + 4.0) ** 2
    floor = min(0.85, floor + float(rng.exponential(0.03)))
    pace = 0.35 + 0.15 * (log_lr + 4.0) * float(rng.uniform(0.5, 1.5))
    at = np.arange(1, last + 1)
    loss = floor + (_START - floor) * at**-pace + rng.normal(0.0, _NOISE, last)
    values = tuple(float(value) for value in 1.0 - loss)
    if rng.random() < diverging * 2 * (log_lr + 4.0) / 4.0:
        values = (*values[: int(rng.integers(0, last))], math.nan)
    usual = epoch_seconds * (64.0 / batch) ** 0.3 * float(rng.uniform(0.9, 1.1))
    config = {"lr": 10.0**log_lr, "weight_decay": 10.0**log_decay, "batch_size": batch}
    return Curve(f"s{number:03d}", values, last, config, (usual,) * len(values))


def finetuned(count: int = 192, epochs: int = 24, seed: int = 0) -> Curves:
    """Return curves like those of fine-tuning: an accuracy whose first epochs say next to nothing.

    While its learning rate warms up, for 5 to 30 % of its epochs, a configuration is at chance;
    then it rises, the later and the steeper, to a height that learning rate and decay decide. With
    too high a rate it collapses back to chance.
    """
    rng = np.random.default_rng((seed, 1))
    return Curves("accuracy", "max", tuple(_finetuned(n, epochs, rng) for n in range(count)))


def _finetuned(number: int, epochs: int, rng: Generator) -> Curve:
    log_lr, log_decay = rng.uniform(-6.0, -3.0), rng.uniform(-4.0, -1.0)
    warm_up = float(rng.uniform(0.05, 0.3)) * epochs
    height = 0.41 - 0.05 * (log_lr + 4.4) ** 2 - 0.01 * (log_decay + 2.0) ** 2
    height = max(0.01, height - float(rng.exponential(0.02)))
    pace = 10.0 ** (0.35 * (log_lr + 4.4)) * 5.0 / epochs
    at = np.arange(1, epochs + 1)
    risen = 1.0 - np.exp(-pace * np.maximum(0.0, at - warm_up))
    values = 0.5 + height * risen + rng.normal(0.0, 0.008, epochs)
    if rng.random() < max(0.0, 0.5 * (log_lr + 3.8)):
        values[int(rng.integers(1, epochs)) :] = 0.5
    config = {"lr": 10.0**log_lr, "weight_decay": 10.0**log_decay, "warm_up": warm_up / epochs}
    made = tuple(float(value) for value in values)
    return Curve(f"f{number:03d}", made, epochs, config, (300.0,) * epochs)


def annealed(count: int = 160, epochs: int = 48, seed: int = 0) -> Curves:
    """Return curves of a loss whose learning rate is annealed: what looks bad may win in the end.

    The higher the rate, the higher the loss is held while it lasts, and the lower it ends, up to a
    point; it comes off as the rate follows a cosine down.
    """
    rng = np.random.default_rng((seed, 2))
    return Curves("loss", "min", tuple(_annealed(n, epochs, rng) for n in range(count)))


def _annealed(number: int, epochs: int, rng: Generator) -> Curve:
    log_lr, momentum = rng.uniform(-4.0, 0.0), rng.uniform(0.5, 0.99)
    last = int(rng.integers(epochs // 2, epochs + 1))
    at = np.arange(1, last + 1)
    floor = 1.0 + 0.12 * (log_lr + 1.2) ** 2 + 0.4 * (momentum - 0.9) ** 2
    floor += float(rng.exponential(0.05)) + 0.15 * (1 - last / epochs)
    held = 0.25 * (log_lr + 4.0) * 0.5 * (1.0 + np.cos(np.pi * at / last))
    loss = floor + 2.5 * at ** -(0.5 + 0.1 * (log_lr + 4.0)) + held + rng.normal(0, 0.01, last)
    config = {"lr": 10.0**log_lr, "momentum": float(momentum)}
    made = tuple(float(value) for value in loss)
    usual = 90.0 * float(rng.uniform(0.8, 1.2))
    return Curve(f"a{number:03d}", made, last, config, (usual,) * last)
