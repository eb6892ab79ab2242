"""What a measurement finds: seconds and memory by width, and the widths worth measuring; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudtune.scaling import Measurement, ScalingProfile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.trial import Width


def widths_of(gpus: int) -> tuple[Width, ...]:
    """Return the widths worth measuring on one instance: 1, 2, 4 … and all its GPUs."""
    powers = [float(2**k) for k in range(gpus.bit_length()) if 2**k <= gpus]
    return tuple(sorted({*powers, float(gpus)}))


def packed_widths(pack: int) -> tuple[Width, ...]:
    """Return the shares of a GPU down to `pack` trials on one, from wide to narrow.

    1/2, 1/4 … and 1/pack; none where `pack` is 1.
    """
    powers = [2**k for k in range(1, pack.bit_length()) if 2**k <= pack]
    trials = sorted({*powers, pack} - {1})
    return tuple(1 / k for k in trials)


@dataclass
class Figures:
    """Everything measured so far, in seconds; `memory` in MiB, the most at each width."""

    launch: list[float] = field(default_factory=list)
    boot: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    resize: list[float] = field(default_factory=list)
    release: list[float] = field(default_factory=list)
    epoch: dict[Width, list[float]] = field(default_factory=dict)
    memory: dict[Width, float] = field(default_factory=dict)

    def add_epochs(self, width: Width, seconds: Sequence[float], memory: float | None) -> None:
        """Take in what one trial's epochs took, and the most memory that its worker had."""
        self.epoch.setdefault(width, []).extend(seconds)
        if memory is not None:
            self.memory[width] = max(memory, self.memory.get(width, 0.0))

    def profile(
        self, instance_type: str, script_hash: str, measured_at: str, source: str
    ) -> ScalingProfile:
        """Return the figures as a profile.

        Raises:
            ValueError: something was never measured.
        """
        return ScalingProfile(
            instance_type=instance_type,
            epoch={width: Measurement.of(found) for width, found in self.epoch.items()},
            launch=Measurement.of(self.launch),
            boot=Measurement.of(self.boot),
            start=Measurement.of(self.start),
            resize=Measurement.of(self.resize),
            release=Measurement.of(self.release),
            script_hash=script_hash,
            measured_at=measured_at,
            source=source,
            memory=dict(self.memory),
        )
