"""How a training script scales on one instance type, with spread: what a plan is made from."""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Final, Literal, TypeAlias

from cloudtune.model.trial import GPU_ROUNDING, Parallel, Width

# The delays around training, by the names that a profile has for them.
DELAYS: Final = ("launch", "boot", "start", "resize", "release")
# Those of them that a run learns as it goes on.
Delay: TypeAlias = Literal["launch", "boot", "start", "resize"]


@dataclass(frozen=True)
class Measurement:
    """Mean and standard deviation of `n` measured durations, in seconds.

    `error` is how far the mean itself may be off in another run, as a standard deviation: what no
    number of measurements in one run can show. Where `n` is 0, nothing was measured: the mean was
    predicted.
    """

    mean: float
    sd: float = 0.0
    n: int = 1
    error: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Measurement":
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
        """Seconds to allow for where being late costs money: the mean and two deviations."""
        return self.mean + 2 * math.hypot(self.sd, self.error)

    def scaled(self, factor: float) -> "Measurement":
        """Return `factor` times as long durations, as sure as these."""
        return Measurement(self.mean * factor, self.sd * factor, self.n, self.error * factor)


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
class Identity:
    """What runs, as far as its speed depends on it: what a profile, a plan or a run is of.

    `train` is the command, or the function's name. `files` are SHA-256 by path from the training
    folder: the script, and what it imports or is given there. `constants` are the fixed values of
    the search, as JSON. `torch` and `cloudtune` are versions, empty where unknown. `script` is the
    script's absolute path: it says which profiles are of the same script, and isn't compared.
    """

    script: str
    train: str
    files: Mapping[str, str]
    constants: Mapping[str, str]
    torch: str = ""
    cloudtune: str = ""

    @property
    def key(self) -> str:
        """A name for it, the same whatever the versions of torch and cloudtune."""
        return repr((self.train, sorted(self.files.items()), sorted(self.constants.items())))

    def file_changes(self, now: "Identity") -> Iterator[str]:
        """Yield which files differ now, such as "model.py changed"."""
        for name, old, new in _differing(self.files, now.files):
            yield f"{name} {'is new' if not old else 'changed' if new else 'is gone'}"

    def changes(self, now: "Identity") -> Iterator[str]:
        """Yield what differs now and is likely to change speed, such as "torch 2.12 -> 2.13"."""
        yield from _train_changes(self.train, now.train)
        yield from self.file_changes(now)
        for name, old, new in _differing(self.constants, now.constants):
            yield f"constant {name}: {old or 'none'} -> {new or 'none'}"
        minors = [".".join(identity.cloudtune.split(".")[:2]) for identity in (self, now)]
        for name, old, new in (("torch", self.torch, now.torch), ("cloudtune", *minors)):
            if old and new and old != new:
                yield f"{name} {old} -> {new}"


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the names whose values differ, with both; "" stands for none."""
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield name, old.get(name, ""), new.get(name, "")


def _train_changes(old: str, new: str) -> Iterator[str]:
    """Yield how a command or a function's name has changed: by words, where these correspond."""
    if " " not in old or " " not in new:
        if old != new:
            yield f"train: {old} -> {new}"
        return
    words = old.split()
    others = new.split()
    if len(words) != len(others):
        yield f"command: {old} -> {new}"
        return
    for place, (word, other) in enumerate(zip(words, others, strict=True)):
        if word != other:
            before = words[place - 1] if place else ""
            option = f"{before} " if before.startswith("-") and "=" not in before else ""
            yield f"command: {option}{word} -> {option}{other}"


@dataclass(frozen=True)
class Seen:
    """An earlier run of the same script that a profile's figures are of, with what it saw.

    It began `at` (ISO 8601). It trained `epochs` epochs of `trials` trials on the profile's
    instance type, and booted `instances` of it. `share` is its part in the seconds of an
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
    has had, by width; empty where it wasn't measured. `configurations` were measured, those of
    earlier runs included. `assumed` says in words which of the spreads were not measured but
    assumed. `seen` are the earlier runs that its figures are of, the latest first. `identity` is
    None in profiles of versions before 0.3 and in published figures. `parallel` says how the
    workers of a trial share the model, by width; "ddp" where it says nothing.
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
    identity: Identity | None = None
    parallel: Mapping[Width, Parallel] = field(default_factory=dict)

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
        """Return the MiB of a GPU that a worker has at a width; None where that is unknown.

        At a share of a GPU that wasn't measured it is what a worker had at the nearest wider one,
        else at the nearest narrower one: the batch is the same at any share. Widths above 1 say
        nothing, as there each worker has a part of the batch.
        """
        if width in self.memory:
            return self.memory[width]
        shares = sorted(shared for shared in self.memory if shared <= 1)
        if width > 1 or not shares:
            return None
        wider = [shared for shared in shares if shared > width]
        return self.memory[wider[0] if wider else shares[-1]]

    def fits(self, width: Width, gpu_memory_mib: float) -> bool:
        """Whether as many workers as share a GPU at a width have room in its memory.

        True where it isn't known what they need, or what the GPU has (0), and for whole GPUs: what
        was measured there did train.
        """
        if width >= 1 or gpu_memory_mib <= 0:
            return True
        memory = self.worker_memory(width)
        return memory is None or math.floor(1 / width + GPU_ROUNDING) * memory <= gpu_memory_mib

    def only(self, widths: Container[Width]) -> "ScalingProfile":
        if all(width in widths for width in (*self.epoch, *self.memory)):
            return self
        return replace(
            self,
            epoch={
                width: measurement for width, measurement in self.epoch.items() if width in widths
            },
            memory={width: mib for width, mib in self.memory.items() if width in widths},
        )

    def with_delays(self, change: Callable[[str, Measurement], Measurement]) -> "ScalingProfile":
        """Return this profile with what `change` makes of each of its `DELAYS`, by their names."""
        changed: dict[str, Any] = {name: change(name, getattr(self, name)) for name in DELAYS}
        return replace(self, **changed)

    def slowed(self, factor: float) -> "ScalingProfile":
        """Return this profile with every epoch taking `factor` times as long."""
        if math.isclose(factor, 1.0):
            return self
        return replace(self, epoch={w: m.scaled(factor) for w, m in self.epoch.items()})
