"""The figures of a measurement: seconds and memory by width, and the widths to measure; pure."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from cloudtune.errors import CloudtuneError
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.model.text import gpus_text
from cloudtune.model.trial import EndReason, Parallel, Trial, Width

# How often a width is tried with other configurations if all earlier ones failed.
TRIES = 3


def widths_to_measure(gpus: int, least: int = 1, most: int | None = None) -> tuple[Width, ...]:
    """Return the widths worth measuring on one instance: 1, 2, 4 … and all its GPUs.

    From `least` to `most` GPUs, both included; none if the instance has fewer.
    """
    highest = gpus if most is None else min(gpus, most)
    powers = [2**k for k in range(highest.bit_length())]
    widths = {width for width in (*powers, least, highest) if least <= width <= highest}
    return tuple(float(width) for width in sorted(widths))


def packed_widths(pack: int) -> tuple[Width, ...]:
    """Return the shares of a GPU down to `pack` trials on one, from wide to narrow.

    1/2, 1/4 … and 1/pack; none if `pack` is 1.
    """
    powers = [2**k for k in range(1, pack.bit_length()) if 2**k <= pack]
    trials = sorted({*powers, pack} - {1})
    return tuple(1 / k for k in trials)


@dataclass(frozen=True)
class Phase:
    """Trials of one width that train at the same time: as many as fit, or a single one `alone`.

    `parallel` is how the workers of each share a model, if the script leaves that to the run.
    """

    width: Width
    parallel: Parallel = ""
    alone: bool = False

    def __str__(self) -> str:
        return gpus_text(self.width, self.parallel)


def plan_phases(
    widths: Sequence[Width], pack: int, parallel: Sequence[Parallel] = (), *, alone: bool = False
) -> list[Phase]:
    """Return the phases, in order; with `alone` a single trial comes first.

    A width above one GPU has a phase for each strategy. The last phase of whole GPUs always resumes
    from checkpoints.
    """
    ways = tuple(parallel) or ("",)
    begins = [Phase(1.0, ways[0], alone=True)] * alone
    begins += [Phase(width, way) for width in widths for way in ways[: None if width > 1 else 1]]
    again = begins if len(begins) == 1 else []
    return [*begins, *again, *(Phase(width, ways[0]) for width in packed_widths(pack))]


def count_instances(width: Width, gpus: int) -> int:
    """Return how many instances of `gpus` GPUs a trial of that width takes."""
    return max(1, math.ceil(width / gpus))


def crew(trials: Sequence[Trial], width: Width) -> Iterator[Trial]:
    """Yield the trials; if they share GPUs, followed by copies to fill them all."""
    yield from trials
    for again in itertools.count(2) if width < 1 and trials else ():
        for trial in trials:
            yield Trial(f"{trial.id}-{again}", trial.config)


@dataclass
class MeasuredSession:
    """One trial in a phase: when it was requested, and the times of its epochs.

    `reported_at` is the time of its last report. `undisturbed` are the seconds of epochs without
    waits for a core.
    """

    command: StartTrial
    trial: Trial
    phase: Phase
    asked_at: float
    resumed: bool
    reported_at: float
    first_at: float | None = None
    first_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    undisturbed: list[float] = field(default_factory=list)
    memory: float | None = None
    live: bool = True
    stopping: bool = False
    counted: bool = False

    @property
    def trained(self) -> int:
        """The number of its epochs that count."""
        return len(self.seconds) + (self.first_at is not None)

    def note(self, event: EpochDone, most: int) -> None:
        """Record an epoch; only the first few count."""
        self.reported_at = event.at
        if event.memory_mib is not None:
            self.memory = max(event.memory_mib, self.memory or 0.0)
        self.undisturbed.append(event.seconds - min(event.waited, 0.9 * event.seconds))
        if self.first_at is None:
            self.first_at = event.at
            self.first_seconds = event.seconds
        elif self.trained < most:
            self.seconds.append(event.seconds)

    def count(self, figures: "MeasuredFigures") -> None:
        """Split its time into training and set-up, and add both to the figures."""
        seconds = self.seconds or [self.first_seconds]
        width = self.phase.width
        self.counted = True
        if self.phase.alone:
            figures.alone += self.undisturbed
        else:
            figures.add_epochs(width, seconds, self.memory, self.phase.parallel)
            figures.trials.setdefault(width, set()).add(self.trial.id)
        if width < 1:
            return
        assert self.first_at is not None
        steady = min(self.first_seconds, sum(seconds) / len(seconds))
        overhead = self.first_at - steady - self.asked_at
        (figures.resize if self.resumed else figures.start).append(overhead)

    def seconds_at(self, width: Width, epochs: int) -> float:
        """Return the seconds that some epochs may take at another width, including set-up."""
        assert self.first_at is not None
        setup = max(0.0, self.first_at - self.first_seconds - self.asked_at)
        an_epoch = sum(self.seconds) / len(self.seconds) if self.seconds else self.first_seconds
        return setup + epochs * an_epoch * max(1.0, self.phase.width / width)


def allowed_seconds(width: Width, epochs: int, sessions: Iterable[MeasuredSession]) -> float:
    """Return the seconds that some epochs may take at a width, by measured ones; 0 without any."""
    counted = [session for session in sessions if session.counted]
    if not counted:
        return 0.0
    nearest = min(counted, key=lambda s: (s.phase.width < width, abs(s.phase.width - width)))
    return nearest.seconds_at(width, epochs)


@dataclass(frozen=True)
class Failed:
    """A configuration that couldn't be measured in a phase, and why."""

    trial: Trial
    phase: Phase
    error: str
    traceback: str = ""
    out_of_memory: bool = False

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.trial.config.items())
        return f"{self.trial.id} ({values}) failed on {self.phase}: {self.error}"


@dataclass(frozen=True)
class MeasureWork:
    """The work of a measurement after its first epoch: the epoch's width and seconds, and the rest.

    Other widths are unknown yet: more GPUs are assumed to be no faster.
    """

    phases: Sequence[Width]
    width: Width
    epoch: float
    setup: float

    def seconds(self, epochs: int) -> float:
        """Return the seconds left to measure, with that number of epochs at each width."""
        by_phase = [self.epoch * max(1.0, self.width / other) for other in self.phases]
        return (
            sum([epochs * seconds + self.setup for seconds in by_phase]) - self.epoch - self.setup
        )

    def fitting(self, wanted: int, seconds: float) -> int:
        """Return how many epochs at each width fit into these seconds, usually at least two.

        One only if two don't fit, because a first epoch is slower than later ones. Before that,
        shares of a GPU are left out.
        """
        alone = replace(self, phases=[width for width in self.phases if width >= 1])
        for work in (self, alone):
            counts = [epochs for epochs in range(2, wanted + 1) if work.seconds(epochs) <= seconds]
            if counts:
                return max(counts)
        return 1 if alone.seconds(1) <= seconds else 2


class MeasureError(CloudtuneError):
    """A measurement ended early; its exit code is that of the reason.

    `dollars` is what it cost.
    """

    def __init__(self, message: str, reason: EndReason | None, dollars: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.dollars = dollars
        self.exit_code = reason.exit_code if reason else 1  # type: ignore[misc]


@dataclass
class MeasuredFigures:
    """Everything measured so far, in seconds; peak memory in MiB at each width.

    For a width measured with several strategies, the one with the shortest epoch counts. `alone`
    are epochs of a single trial on an otherwise empty instance, without waits for a core that
    another process had.
    """

    launch: list[float] = field(default_factory=list)
    boot: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    resize: list[float] = field(default_factory=list)
    release: list[float] = field(default_factory=list)
    epochs: dict[tuple[Width, Parallel], list[float]] = field(default_factory=dict)
    worker_memory: dict[tuple[Width, Parallel], float] = field(default_factory=dict)
    trials: dict[Width, set[str]] = field(default_factory=dict)
    alone: list[float] = field(default_factory=list)

    @property
    def core_seconds(self) -> float:
        """The seconds of an epoch on one core, if a worker has no more.

        The shortest epoch of a trial by itself: other load on the machine only adds to it, also
        through caches. If none was trained alone, that of the narrowest width, times its cores.
        """
        if self.alone:
            return min(self.alone)
        narrowest = min(self.epoch)
        return min(self.epoch[narrowest]) * narrowest

    @property
    def parallel(self) -> dict[Width, Parallel]:
        """The fastest strategy at each width."""
        return dict(sorted(self.epochs, key=lambda of: (of[0], -fmean(self.epochs[of]))))

    @property
    def epoch(self) -> dict[Width, list[float]]:
        return {width: self.epochs[width, name] for width, name in self.parallel.items()}

    @property
    def memory(self) -> dict[Width, float]:
        return {w: mib for (w, name), mib in self.worker_memory.items() if self.parallel[w] == name}

    def comparisons(self) -> Iterator[str]:
        """Yield the epochs' times at each width that was measured with several strategies."""
        for width, chosen in self.parallel.items():
            took = {name: fmean(self.epochs[w, name]) for w, name in self.epochs if w == width}
            others = [f"{name}: {took[name]:.3g} s" for name in took if name != chosen]
            if others:
                gpus = gpus_text(width, chosen)
                yield f"{gpus}: {took[chosen]:.3g} s an epoch ({', '.join(others)})"

    def add_epochs(
        self, width: Width, seconds: Sequence[float], memory: float | None, parallel: Parallel = ""
    ) -> None:
        """Add the times of one trial's epochs, and the peak memory of its worker."""
        self.epochs.setdefault((width, parallel), []).extend(seconds)
        if memory is not None:
            before = self.worker_memory.get((width, parallel), 0.0)
            self.worker_memory[width, parallel] = max(memory, before)

    @property
    def enough(self) -> bool:
        """Whether there is enough for a profile; without a resize, a start stands in for it."""
        return all((self.launch, self.boot, self.start, self.release, self.epoch))

    def profile(
        self, instance_type: str, script_hash: str, measured_at: str, source: str
    ) -> ScalingProfile:
        """Return the figures as a profile.

        Raises:
            ValueError: something was never measured.
        """
        return ScalingProfile(
            instance_type=instance_type,
            epoch={width: Measurement.of(measured) for width, measured in self.epoch.items()},
            launch=Measurement.of(self.launch),
            boot=Measurement.of(self.boot),
            start=Measurement.of(self.start),
            resize=Measurement.of(self.resize or self.start),
            release=Measurement.of(self.release),
            script_hash=script_hash,
            measured_at=measured_at,
            source=source,
            memory=self.memory,
            parallel={width: name for width, name in self.parallel.items() if name},
            configurations=min(map(len, self.trials.values()), default=1),
        )
