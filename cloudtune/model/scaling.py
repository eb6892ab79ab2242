"""How a training script scales on one instance type, with spread: the basis of plans."""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Final, Literal, TypeAlias

from cloudtune.model.trial import GPU_ROUNDING, Parallel, Width

# The delays around training, by the names that a profile has for them.
DELAYS: Final = ("launch", "boot", "start", "resize", "release")
# Those of them that a run learns while it runs.
Delay: TypeAlias = Literal["launch", "boot", "start", "resize"]


@dataclass(frozen=True)
class Measurement:
    """Mean and standard deviation of `n` measured durations, in seconds.

    `error` is how far the mean itself may be off in another run, as a standard deviation, which no
    number of measurements in one run can show. If `n` is 0, the mean was predicted, not measured.
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
        """Seconds to allow when being late costs money: the mean plus two deviations."""
        return self.mean + 2 * math.hypot(self.sd, self.error)

    def scale(self, factor: float, *, added: float = 0.0) -> "Measurement":
        """Return durations `factor` times as long, with the same relative spread.

        Each takes `added` seconds more.
        """
        mean = self.mean * factor + added
        return Measurement(mean, self.sd * factor, self.n, self.error * factor)


Origin: TypeAlias = Literal["measured", "emulated", "published", "assumed"]
MEASURED: Final = "measured"
EMULATED: Final = "emulated"
PUBLISHED: Final = "published"
ASSUMED: Final = "assumed"


@dataclass(frozen=True)
class Provenance:
    """The origin of a profile's seconds, which is shown with each time and price based on them.

    `origin`: "measured" on the real machines; "emulated", from an epoch on this machine's CPU and
    from tables; "published" by others, for another program; "assumed" for a script that was never
    measured. `on` is the machine that they are of, "" for the profile's own instance type;
    otherwise the profile is derived. `core_seconds` is the time of an epoch on one core of the
    emulating machine; None if it wasn't timed. `factor` is how many times as long it takes on an
    emulated GPU, and `why` says why. Of an assumed profile `why` says what is assumed.
    """

    origin: Origin = MEASURED
    on: str = ""
    core_seconds: float | None = None
    factor: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Identity:
    """The identity of what a profile, plan or run trains, as far as its speed depends on it.

    `train` is the command, or the function's name. `files` are SHA-256 by path in the training
    folder: the script, and the files that it imports or is passed. `constants` are the fixed values
    of the search, as JSON. `torch` and `cloudtune` are versions, "" if unknown. `script` is the
    script's absolute path, which identifies profiles of the same script and isn't compared.
    """

    script: str
    train: str
    files: Mapping[str, str]
    constants: Mapping[str, str]
    torch: str = ""
    cloudtune: str = ""

    @property
    def key(self) -> str:
        """A digest that is independent of the versions of torch and cloudtune."""
        return repr((self.train, sorted(self.files.items()), sorted(self.constants.items())))

    def file_changes(self, now: "Identity") -> Iterator[str]:
        """Yield the files that differ now, such as "model.py changed"."""
        for name, old, new in _differing(self.files, now.files):
            yield f"{name} {'is new' if not old else 'changed' if new else 'is gone'}"

    def changes(self, now: "Identity") -> Iterator[str]:
        """Yield differences that are likely to change the speed, such as "torch 2.12 -> 2.13"."""
        yield from _train_changes(self.train, now.train)
        yield from self.file_changes(now)
        for name, old, new in _differing(self.constants, now.constants):
            yield f"constant {name}: {old or 'none'} -> {new or 'none'}"
        minors = [".".join(identity.cloudtune.split(".")[:2]) for identity in (self, now)]
        for name, old, new in (("torch", self.torch, now.torch), ("cloudtune", *minors)):
            if old and new and old != new:
                yield f"{name} {old} -> {new}"


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the names whose values differ, with both values; "" for a missing one."""
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield name, old.get(name, ""), new.get(name, "")


def _train_changes(old: str, new: str) -> Iterator[str]:
    """Yield how a command or a function's name has changed, word by word if possible."""
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
    """An earlier run of the same script that contributes to a profile's figures.

    It began `at` (ISO 8601), trained `epochs` epochs of `trials` trials on the profile's instance
    type, and booted `instances` of it. `share` is its mean contribution to the seconds of an epoch
    over the widths: from 0 for none to 1 for all.
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

    - `launch`: from the request until the cloud's launch time (not billed).
    - `boot`: from launch until the node has joined and takes trials (billed).
    - `start`: from starting a trial on fresh workers until its first epoch begins.
    - `resize`: the same from a checkpoint, including the stop before it.
    - `release`: from returning an instance until the cloud says that it is going (billed).
    - `error`: how wrong the epochs of all types may be together, as a relative standard deviation.
    - `gpu_error`: how far the speed of its GPU model may be off against that of other models, as a
      standard deviation of the logarithm; above 0 if it was derived from another type.
    - `script_hash`: "" for published figures, which are of another program.
    - `memory`: the peak GPU memory of a worker in MiB, by width; empty if it wasn't measured.
    - `configurations`: how many were measured, including those of earlier runs.
    - `assumed`: says which spreads were assumed, not measured.
    - `seen`: the earlier runs in its figures, latest first.
    - `identity`: None in profiles of versions before 0.3 and in published figures.
    - `parallel`: how the workers of a trial share the model, by width; by default "ddp".
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
    gpu_error: float = 0.0
    memory: Mapping[Width, float] = field(default_factory=dict)
    provenance: Provenance = Provenance()
    configurations: int = 1
    assumed: tuple[str, ...] = ()
    seen: tuple[Seen, ...] = ()
    identity: Identity | None = None
    parallel: Mapping[Width, Parallel] = field(default_factory=dict)

    @property
    def derived_from(self) -> str:
        """The machine on which the seconds were measured, if it isn't this type; otherwise ""."""
        return "" if self.provenance.on in {"", self.instance_type} else self.provenance.on

    @property
    def is_prior(self) -> bool:
        """Whether its seconds follow from another GPU's, or were assumed for a new script."""
        return self.gpu_error > 0 or self.provenance.origin == ASSUMED

    @property
    def knows_boots(self) -> bool:
        """Whether instances of this type were seen to boot, by the same provider."""
        return self.boot.n > 0 and self.provenance.origin in {MEASURED, EMULATED}

    @property
    def speed_error(self) -> float:
        """How wrong its epochs may be, whatever the reason, as a relative standard deviation."""
        return math.hypot(self.error, self.gpu_error)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The measured and predicted widths, ascending; no other width is ever planned."""
        return tuple(sorted(self.epoch))

    def epoch_seconds(self, width: Width) -> float:
        """Return the mean seconds of one epoch at a measured width."""
        return self.epoch[width].mean

    def worker_memory(self, width: Width) -> float | None:
        """Return the GPU memory of a worker at a width, in MiB; None if unknown.

        At a share of a GPU that wasn't measured, it is that of the nearest wider share, or else of
        the nearest narrower one: the batch is the same at any share. Widths above 1 don't count,
        because there each worker has a part of the batch.
        """
        if width in self.memory:
            return self.memory[width]
        shares = sorted(shared for shared in self.memory if shared <= 1)
        if width > 1 or not shares:
            return None
        wider = [shared for shared in shares if shared > width]
        return self.memory[wider[0] if wider else shares[-1]]

    def fits(self, width: Width, gpu_memory_mib: float) -> bool:
        """Whether the workers that share a GPU at a width fit in its memory.

        True if their memory or the GPU's (0) is unknown, and for whole GPUs, where the measurement
        did train.
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
        """Return this profile with `change(name, delay)` for each of its `DELAYS`."""
        changed: dict[str, Any] = {name: change(name, getattr(self, name)) for name in DELAYS}
        return replace(self, **changed)

    def slow_down(self, factor: float) -> "ScalingProfile":
        """Return this profile with every epoch taking `factor` times as long."""
        if math.isclose(factor, 1.0):
            return self
        return replace(self, epoch={w: m.scale(factor) for w, m in self.epoch.items()})
