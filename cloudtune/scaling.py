"""How a training script scales on one instance type, with spread: what a plan is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from cloudtune.trial import Width

DELAYS: Final = ("launch", "boot", "start", "resize", "release")
"""The delays around training, by the names that a profile has for them."""
Delay: TypeAlias = Literal["launch", "boot", "start", "resize"]
"""Those of them that a run learns as it goes on."""
_EPSILON = 1e-6  # three workers of 1/3 fit on one GPU


@dataclass(frozen=True)
class Measurement:
    """Mean and standard deviation of `n` measured durations, in seconds.

    `error` is how far the mean itself may be off in another run, as a standard deviation: what no
    number of measurements in one run can tell.
    """

    mean: float
    sd: float = 0.0
    n: int = 1
    error: float = 0.0

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
        return self.mean + 2 * math.hypot(self.sd, self.error)


Origin: TypeAlias = Literal["measured", "emulated", "published"]
MEASURED: Final = "measured"
EMULATED: Final = "emulated"
PUBLISHED: Final = "published"


@dataclass(frozen=True)
class Provenance:
    """Where the seconds of a profile come from: said beside each time and price that rests on them.

    `origin`: "measured" on the machines that they are of; "emulated", made of what an epoch took on
    this machine's CPU and of tables; "published" by others, of another program. `on` is the machine
    that they are of, empty for the profile's own instance type: on another the profile is derived.
    `core_seconds` is what an epoch took on one core of the machine that emulates; None where none
    was timed. `factor` is how many times as long it takes on an emulated GPU, and `why` says so.
    """

    origin: Origin = MEASURED
    on: str = ""
    core_seconds: float | None = None
    factor: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Seen:
    """An earlier run of the same script that a profile's figures are of, with what it saw.

    It began `at` (ISO 8601). It trained so many `epochs` of so many `trials` on the profile's
    instance type, and booted so many `instances` of it. `share` is its part in the seconds of an
    epoch, on average over the widths: 0 where it has none, 1 where they are its own.
    """

    run: str
    at: str
    epochs: int
    trials: int
    instances: int
    share: float


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
    published figures: of no script of the user's. `memory` is the most MiB of a GPU that a worker
    has had, by width; empty where nobody measured it. `configurations` were measured, those of
    earlier runs included. `assumed` says in words which of the spreads were not measured but
    assumed. `seen` are the earlier runs that its figures are of, the latest first.
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
    memory: Mapping[Width, float] = field(default_factory=dict)
    provenance: Provenance = Provenance()
    configurations: int = 1
    assumed: tuple[str, ...] = ()
    seen: tuple[Seen, ...] = ()

    @property
    def derived_from(self) -> str:
        """The machine that the seconds were measured on, where that isn't this type; else ""."""
        return "" if self.provenance.on in {"", self.instance_type} else self.provenance.on

    @property
    def widths(self) -> tuple[Width, ...]:
        """The measured widths, ascending; no other width is ever planned."""
        return tuple(sorted(self.epoch))

    def epoch_seconds(self, width: Width) -> float:
        """Return the mean seconds of one epoch at a measured width."""
        return self.epoch[width].mean

    def worker_memory(self, width: Width) -> float | None:
        """Return the MiB of a GPU that a worker has at a width; None where nothing is known.

        At a share of a GPU that wasn't measured it is what a worker had at the nearest wider one,
        else at the nearest narrower one: the batch is the same at any share. Widths above 1 tell
        nothing, as there each worker has a part of the batch.
        """
        if width in self.memory:
            return self.memory[width]
        shares = sorted(known for known in self.memory if known <= 1)
        if width > 1 or not shares:
            return None
        wider = [known for known in shares if known > width]
        return self.memory[wider[0] if wider else shares[-1]]

    def fits(self, width: Width, gpu_memory_mib: float) -> bool:
        """Whether as many workers as share a GPU at a width have room in its memory.

        True where it isn't known what they need, or what the GPU has (0), and for whole GPUs: what
        was measured there did train.
        """
        if width >= 1 or gpu_memory_mib <= 0:
            return True
        each = self.worker_memory(width)
        return each is None or math.floor(1 / width + _EPSILON) * each <= gpu_memory_mib

    def only(self, widths: Container[Width]) -> ScalingProfile:
        """Return this profile with no other widths than those."""
        return replace(
            self,
            epoch={width: found for width, found in self.epoch.items() if width in widths},
            memory={width: mib for width, mib in self.memory.items() if width in widths},
        )

    def with_delays(self, change: Callable[[str, Measurement], Measurement]) -> ScalingProfile:
        """Return this profile with what `change` makes of each of its `DELAYS`, by their names."""
        changed: dict[str, Any] = {name: change(name, getattr(self, name)) for name in DELAYS}
        return replace(self, **changed)

    def slowed(self, factor: float) -> ScalingProfile:
        """Return this profile with every epoch taking `factor` times as long."""
        if math.isclose(factor, 1.0):
            return self
        scaled = {
            width: replace(m, mean=m.mean * factor, sd=m.sd * factor)
            for width, m in self.epoch.items()
        }
        return replace(self, epoch=scaled)
