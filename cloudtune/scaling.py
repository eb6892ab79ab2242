"""How a training script scales on one instance type, with spread: what a plan is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.trial import Width


@dataclass(frozen=True)
class Measurement:
    """Mean and standard deviation of `n` measured durations, in seconds."""

    mean: float
    sd: float = 0.0
    n: int = 1

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Measurement:
        """Return mean and spread of measured durations.

        Raises:
            ValueError: nothing was measured.
        """
        if not seconds:
            raise ValueError("no durations to summarise")
        spread = stdev(seconds) if len(seconds) > 1 else 0.0
        return cls(fmean(seconds), spread, len(seconds))

    @property
    def high(self) -> float:
        """What to reckon with when being late costs money: the mean and two deviations."""
        return self.mean + 2 * self.sd


@dataclass(frozen=True)
class ScalingProfile:
    """Seconds per epoch by width, and the delays around training, on one instance type.

    `launch`: from the request until the cloud's launch time (not billed).
    `boot`: from launch until the node has joined and takes trials (billed).
    `start`: from starting a trial on fresh workers until its first epoch begins.
    `resize`: the same from a checkpoint, including the stop before it.
    `release`: from giving an instance back until the cloud says that it is going (billed).
    `error`: how wrong all the epochs may be together, as a relative standard deviation; not 0 where
    they weren't measured on this type but derived from another. An empty `script_hash` stands for
    published figures: of no script of the user's.
    """

    instance_type: str
    epoch: Mapping[Width, Measurement]
    launch: Measurement
    boot: Measurement
    start: Measurement
    resize: Measurement
    release: Measurement
    script_hash: str
    measured_at: str
    source: str
    error: float = 0.0

    @property
    def widths(self) -> tuple[Width, ...]:
        """The measured widths, ascending; no other width is ever planned."""
        return tuple(sorted(self.epoch))

    def epoch_seconds(self, width: Width) -> float:
        """Return the mean seconds of one epoch at a measured width."""
        return self.epoch[width].mean

    def slowed(self, factor: float) -> ScalingProfile:
        """Return this profile with every epoch taking `factor` times as long."""
        if math.isclose(factor, 1.0):
            return self
        scaled = {
            width: replace(m, mean=m.mean * factor, sd=m.sd * factor)
            for width, m in self.epoch.items()
        }
        return replace(self, epoch=scaled)
