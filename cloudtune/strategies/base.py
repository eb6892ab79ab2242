"""What a run asks of a strategy: which trials train, how far, and what becomes of them.

There are two kinds. A `StagedStrategy` knows its stages beforehand, so that a fleet can be planned
for them (`RunPolicy`). A `Strategy` decides as results come in (`ElasticPolicy`); it asks for work
by groups of tasks, so that any `Allocator` (how wide is each trial) and any `FleetRule` (how many
instances) serves any strategy. All are pure: the same events, the same decisions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Limits, Rentable, Stage
    from cloudtune.progress import TrialProgress
    from cloudtune.trial import Mode, Trial, TrialId, Width


class StagedStrategy(Protocol):
    """Decides which trials train on and how far. Pure: same questions, same answers."""

    def stages(self) -> tuple[Stage, ...]:
        """Return the forecast of the work: what each stage trains if nothing fails."""
        ...

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the trials that go on from the rung at the end of a stage, best first.

        `results` holds the metric that each trial reached at the rung; nan and None rank last.
        """
        ...


@dataclass(frozen=True)
class Task:
    """A trial and its budget: it is to train until the end of epoch `until`.

    A trial that has never run begins at epoch 0; with `clone_of` it begins from that trial's last
    checkpoint and epoch.
    """

    trial: Trial
    until: int
    clone_of: TrialId | None = None


@dataclass(frozen=True)
class TrialGroup:
    """Tasks that are wanted together, the most wanted first (Fluid's TrialGroup).

    Raises:
        ValueError: no task, or one without an epoch to train.
    """

    name: str
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"group {self.name} holds no trial")
        if any(task.until < 1 for task in self.tasks):
            raise ValueError(f"group {self.name}: every trial needs a budget of an epoch or more")


@dataclass(frozen=True)
class Go:
    """Train on, until the end of epoch `until` (never less than was granted before)."""

    until: int


class Verdict(enum.Enum):
    """What becomes of a trial that doesn't train on for now."""

    HOLD = "hold"  # wait on its GPUs, until it is wanted again or they are wanted by others
    PAUSE = "pause"  # give its GPUs up; it may be wanted again
    CUT = "cut"  # end it: it is not good enough
    FINISH = "finish"  # end it: it has trained as long as it is to


Decision: TypeAlias = Go | Verdict


class View(Protocol):
    """What strategies, allocators and fleet rules may look at: the state of the run."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        ...

    @property
    def mode(self) -> Mode:
        """Whether more or less of the metric is better."""
        ...

    @property
    def limits(self) -> Limits:
        """The deadline and the budget, from the run's begin."""
        ...

    @property
    def seconds_left(self) -> float:
        """Seconds until the run must begin to give back; inf without a deadline."""
        ...

    @property
    def dollars_left(self) -> float:
        """What is left if everything were given back now; inf without a budget."""
        ...

    @property
    def trials(self) -> Mapping[TrialId, TrialProgress]:
        """Every trial that ever ran, in the order of their first start."""
        ...

    @property
    def running(self) -> Sequence[TrialProgress]:
        """The trials that have sessions, those that wait at a rung or are stopping included."""
        ...

    @property
    def rentables(self) -> Sequence[Rentable]:
        """What may be rented."""
        ...

    @property
    def max_instances(self) -> int:
        """How many instances may be alive at once."""
        ...

    @property
    def held(self) -> Mapping[Offer, int]:
        """Instances that are to stay, those that still boot included."""
        ...

    @property
    def gpus(self) -> int:
        """GPUs of the instances that take trials now."""
        ...

    @property
    def free_gpus(self) -> float:
        """GPUs of these on which nothing runs, and the rest of those that are shared."""
        ...

    @property
    def setups(self) -> Sequence[float]:
        """The seconds that each session took to be set up, in order; more are added at the end."""
        ...

    def until(self, trial: TrialId) -> int:
        """Return the epoch that a trial may train to for now; 0 for one that never began."""
        ...

    def refused(self, offer: Offer) -> bool:
        """Whether asking for such an instance is pointless: it was refused again and again."""
        ...

    def avoided(self, offer: Offer) -> bool:
        """Whether such an instance isn't asked for now: it was refused a short while ago."""
        ...

    def epoch_seconds(self, trial: TrialId | None, offer: Offer, width: Width) -> float:
        """Return the seconds of an epoch: the profile's, corrected by what this run measured.

        By the trial's own epochs; for a trial (or None) without any, by those of all trials.
        """
        ...


class Strategy(Protocol):
    """Decides as results come in. It is told of each epoch once, in the order of the events."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    @property
    def anytime(self) -> bool:
        """Whether it uses what it is given, so that ending at a limit is its normal end."""
        ...

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return the work that may begin now, in order: `room` tasks or fewer, none that trains.

        Asked again whenever there is room, so an answer isn't a promise: a task counts as begun
        when `view.trials` shows its trial starting.
        """
        ...

    def judge(self, view: View, trial: TrialProgress) -> Decision:
        """Return what becomes of a trial that has just finished an epoch (`trial.epoch`)."""
        ...

    def ended(self, view: View, trial: TrialProgress) -> None:
        """Take note that a trial failed, and won't come back."""
        ...

    def retract(self, view: View) -> Mapping[TrialId, Verdict]:
        """Return running trials that are to stop now, though they haven't reported."""
        ...

    def wake_at(self, view: View) -> float | None:
        """Return when it wants to decide anew at the latest though nothing may happen by then."""
        ...

    def done(self, view: View) -> bool:
        """Whether nothing runs that it waits for, and it will never want anything again."""
        ...


class Allocator(Protocol):
    """Decides how wide each trial is."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    def least(self, view: View) -> Width:
        """Return the narrowest width that it gives a trial now."""
        ...

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return the width for each of the tasks that are to start; 0 for one that is to wait."""
        ...

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width that a running trial should have, now that an epoch of it is done."""
        ...


class FleetRule(Protocol):
    """Decides how many instances of which offers there should be."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    @property
    def repacks(self) -> bool:
        """Whether trials are to move together so that instances become empty, and can go."""
        ...

    def most_gpus(self, view: View) -> int:
        """Return the GPUs for which work is to be asked for: those it has, or might rent."""
        ...

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the instances that should be there, when trials have or want `needed` GPUs.

        An instance with a trial on it is never given back for this; empty ones are.
        """
        ...


class Sampler(Protocol):
    """Gives new configurations, and learns from how they did."""

    def ask(self) -> Trial | None:
        """Return the next trial to try; None when there is none left."""
        ...

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a trial after an epoch; None where it failed."""
        ...
