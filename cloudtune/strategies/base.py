"""The interface of strategies: which trials train, how far, and what becomes of them.

To add a strategy, write one class with the methods of `Strategy` in its own file beside this one,
and one line in `STRATEGIES` (cloudtune/policy/registry.py). The contract suite
tests/contracts/strategy.py then runs it through everything that a run can do to it.

A strategy requests work as groups of tasks, so that any `Allocator` (how wide is each trial) and
any `FleetRule` (how many instances) works with any strategy. All three read the run through a
`View` and are pure: the same events lead to the same decisions. A schedule whose stages are known
beforehand (`StagedStrategy`) is planned, and a strategy that reads the plan carries it out
(policy/schedule/executor.py).
"""

import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from cloudtune.model.catalog import Offer
from cloudtune.model.fleet import FleetBook, LaunchBackoff
from cloudtune.model.plans import Limits, Rentable, Stage
from cloudtune.model.progress import BestResult, LiveTrials, TrialProgress
from cloudtune.model.scaling import Delay
from cloudtune.model.trial import EndReason, Mode, Trial, TrialId, Width


class StagedStrategy(Protocol):
    """A strategy whose stages are known beforehand, so that they can be planned.

    Pure: the same questions get the same answers.
    """

    def stages(self) -> tuple[Stage, ...]:
        """Return the forecast of the work: what each stage trains if nothing fails."""

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the trials that continue from the rung at the end of a stage, best first.

        `results` holds the metric that each trial reached at the rung; nan and None rank last.
        """


@dataclass(frozen=True)
class Task:
    """A trial and its budget: it should train until the end of epoch `until`.

    A trial that has never run begins at epoch 0; with `clone_of` it begins from that trial's last
    checkpoint and epoch.

    Raises:
        ValueError: there is no epoch to train.
    """

    trial: Trial
    until: int
    clone_of: TrialId | None = None

    def __post_init__(self) -> None:
        if self.until < 1:
            raise ValueError(f"{self.trial.id}: a trial needs a budget of an epoch or more")


@dataclass(frozen=True)
class TrialGroup:
    """Tasks that are wanted together, the most wanted first (Fluid's TrialGroup).

    Raises:
        ValueError: there is no task.
    """

    name: str
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"group {self.name} holds no trial")


@dataclass(frozen=True)
class Go:
    """Continue until the end of epoch `until` (never less than was granted before)."""

    until: int


class Verdict(enum.Enum):
    """What becomes of a trial that doesn't continue for now.

    The default search, `best`, cuts none: poor trials are paused, and may continue.
    """

    HOLD = "hold"  # wait on its GPUs, until it continues or others need them
    PAUSE = "pause"  # give up its GPUs; it may continue later
    CUT = "cut"  # end it: it is not good enough
    FINISH = "finish"  # end it: it has trained to its last epoch


Decision: TypeAlias = Go | Verdict


# What `View.moment` returns: a value to compare, and nothing else.
Moment: TypeAlias = tuple[float, int, int]


class View(Protocol):
    """The state of a run as strategies, allocators and fleet rules see it, read-only.

    Times are seconds since the run began, prices US dollars.
    """

    @property
    def now(self) -> float:
        """The time of the present event."""

    @property
    def moment(self) -> Moment:
        """The same until the next event, or until an instance changes: to look at them once."""

    @property
    def mode(self) -> Mode:
        """Whether larger or smaller metrics are better."""

    @property
    def limits(self) -> Limits:
        """The deadline and the budget, counted from the start of the run."""

    @property
    def ahead(self) -> float:
        """When everything could be returned, if decided only at the next tick (run seconds)."""

    @property
    def lookahead(self) -> int:
        """How many tasks of a group the allocator wants to choose among."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the run must wind down; inf without a deadline."""

    @property
    def dollars_left(self) -> float:
        """The dollars left if everything were returned now; inf without a budget."""

    @property
    def committed(self) -> float:
        """Dollars that are spent, or will be whatever is decided; held instances until now."""

    @property
    def best(self) -> BestResult | None:
        """The best epoch so far."""

    @property
    def trials(self) -> Mapping[TrialId, TrialProgress]:
        """Every trial that ever ran, in order of first start."""

    @property
    def running(self) -> LiveTrials:
        """The trials with sessions, including those that wait at a rung or are stopping."""

    @property
    def rentables(self) -> Sequence[Rentable]:
        """The offers that may be rented, each with the script's speed on it."""

    @property
    def max_instances(self) -> int:
        """How many instances may be alive at once."""

    @property
    def fleet(self) -> FleetBook:
        """Every instance ever requested, with its state."""

    @property
    def held(self) -> Counter[Offer]:
        """Instances that stay, including those still booting."""

    @property
    def gpus(self) -> int:
        """GPUs of the instances that take trials now."""

    @property
    def free_gpus(self) -> float:
        """Empty GPUs of usable instances, plus the free shares of GPUs partly in use."""

    @property
    def setups(self) -> Sequence[float]:
        """The set-up seconds of each session, in order; new ones are appended."""

    @property
    def disturbances(self) -> int:
        """How often an instance was refused, lost, interrupted or never joined."""

    @property
    def shocks(self) -> int:
        """How often the cloud began to refuse an offer, or took an instance with trials on it."""

    @property
    def backoffs(self) -> Mapping[Offer, LaunchBackoff]:
        """The failed launches of each offer, and when it may be requested again."""

    def until(self, trial: TrialId) -> int:
        """Return the epoch that a trial may train to for now; 0 if it never began."""

    def width_for(self, trial: TrialProgress | None, width: Width, offer: Offer) -> Width:
        """Return the width that a trial gets on an offer when it should have `width`.

        It is wider if trials ran out of memory, unless this one trains at that width already. None
        stands for a trial that never began.
        """

    def fits(self, width: Width, offer: Offer) -> bool:
        """Whether a trial of `width` GPUs could start now on the instances of an offer."""

    def admits(self, alive: Mapping[Offer, int]) -> bool:
        """Whether `alive` instances of each offer keep the cap and the vCPU quotas."""

    def refused(self, offer: Offer) -> bool:
        """Whether requesting an offer is pointless: it was refused repeatedly."""

    def avoided(self, offer: Offer) -> bool:
        """Whether an offer is left alone for now: it was refused a short while ago."""

    def barred(self, offer: Offer) -> bool:
        """Whether an offer is refused for good."""

    def epoch_seconds(self, trial: TrialId | None, offer: Offer, width: Width) -> float:
        """Return the seconds of an epoch: the profile's, corrected by what this run measured.

        The trial's own epochs say how fast it is; without any (or for None), those of all trials.
        """

    def slowest_epoch(self, trials: tuple[TrialId, ...], offer: Offer, width: Width) -> float:
        """Return the seconds of an epoch of the slowest of these trials, as in `corrected`.

        Cheap to call at every epoch with the same tuple: it doesn't look at each trial.
        """

    @property
    def news(self) -> int:
        """How often the epochs of a GPU model have doubled whose profile is a prior."""

    def epochs_on(self, offer: Offer) -> int:
        """Return the epochs that this run has trained on an offer's GPU model."""

    def on_average(self, rentable: Rentable) -> Rentable:
        """Return a rentable with the epochs expected of an average trial on its GPU model.

        They include each epoch's share of the set-up of sessions, as long on every GPU.
        """

    def spread(self, offer: Offer, other: Offer) -> float:
        """Return how far the ratio of two such expectations may be off.

        That is a standard deviation of the logarithm.
        """

    def delay(self, offer: Offer, kind: Delay) -> float:
        """Return the mean seconds of a delay on an offer, as in `corrected`."""

    def profiled(self, offer: Offer) -> Rentable:
        """Return an offer's rentable without the run's timings, at all widths of trials."""

    def corrected(self, rentable: Rentable, trials: Sequence[TrialId]) -> Rentable:
        """Return a rentable with the speeds and delays expected of these trials."""


class Strategy(Protocol):
    """Decides which trials train and how far, as results come in.

    After each event the run calls, in this order:

    1. `on_result`, for the trial that has just finished an epoch: it continues (`Go`) or not
       (`Verdict`). Every epoch is reported once, in the order of the events.
    2. `on_failure`, for a trial that failed for good.
    3. `preempt`: which other trials stop, though they haven't reported.
    4. `done`: whether the run is over.
    5. `requests`: which trials begin, or continue from a rung, as far as there is room.

    The run moves trials between instances, changes their widths and restarts lost ones by itself: a
    strategy sees trials, epochs and metrics, never GPUs. Epochs count from 1, times are seconds of
    the run, prices US dollars. `rungs.py` has what strategies with rungs share; `asha.py` is a good
    model.
    """

    @property
    def name(self) -> str:
        """The name in an experiment file and on the command line."""

    @property
    def anytime(self) -> bool:
        """Whether the strategy uses up its limits, so that ending at one is a success."""

    @property
    def reason(self) -> EndReason | None:
        """Why the strategy is done; None: as usual (done if there is a result)."""

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return up to `room` tasks that may begin now, in order, none of which trains already.

        If more of a group is known, up to `view.lookahead` tasks of it, for the allocator to choose
        from. Called whenever there is room, so the answer isn't a promise: a task has begun when
        `view.trials` shows its trial starting.
        """

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Return what becomes of a trial that has just finished an epoch (`trial.epoch`)."""

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Record that a trial failed for good."""

    def on_finish(self, view: View, trial: TrialProgress) -> None:
        """Record that the script of a trial has ended by itself; its results stay."""

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        """Return trials that stop now, or are over, though they haven't reported."""

    def wake_at(self, view: View) -> float | None:
        """Return the run second of the next call even if nothing happens; None: never."""

    def done(self, view: View) -> bool:
        """Whether the strategy waits for no trial and will never request one again."""

    def more(self, view: View, trials: int) -> str:
        """Add trials; return why that isn't possible, "" if it is.

        Called when an ended run is resumed, with the new limits in `view`. A strategy that was done
        no longer is.
        """


@runtime_checkable
class Breeds(Protocol):
    """A strategy whose trials may begin from the checkpoint of another."""

    def parents(self, view: View) -> Collection[TrialId]:
        """Return the trials from which others may begin, over or not. Must be thread-safe."""


@dataclass(frozen=True)
class Shape:
    """A width for one trial, on instances of an offer; None: wherever there is room."""

    width: Width
    offer: Offer | None = None


class Allocator(Protocol):
    """Decides how wide each trial is."""

    @property
    def name(self) -> str:
        """The name in an experiment file and on the command line."""

    def min_width(self, view: View) -> Width:
        """Return the narrowest width that any trial would get now."""

    @property
    def lookahead(self) -> int:
        """How many tasks of a group it chooses among; 0: it takes them in order."""

    def in_order(self, view: View, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks of a group in the order in which they should start."""

    def shapes(self, view: View, tasks: Sequence[Task]) -> Iterator[Sequence[Shape]]:
        """Yield for each task the shapes that it may have, best first; none: it waits.

        The run takes one answer at a time: when it asks for the next, the previous task has its
        GPUs or waits, as `view` then shows.
        """

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width that a running trial should have, after an epoch."""


class ByWidth:
    """The base of allocators that set widths and leave the choice of instances to the run."""

    lookahead = 0

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return the width of each task; 0 if it must wait."""
        raise NotImplementedError

    def in_order(self, view: View, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks in the strategy's order."""
        return tasks

    def shapes(self, view: View, tasks: Sequence[Task]) -> Iterator[Sequence[Shape]]:
        """Return each task's width as its only shape; no shape for 0."""
        widths = self.widths(view, tasks)
        shapes = {width: [Shape(width)] if width else [] for width in set(widths)}
        return map(shapes.__getitem__, widths)


class FleetRule(Protocol):
    """Decides how many instances of which offers there should be."""

    @property
    def name(self) -> str:
        """The name in an experiment file and on the command line."""

    @property
    def stage(self) -> int:
        """The number of the present stage; each new one forgets the cloud's refusals."""

    def max_gpus(self, view: View) -> int:
        """Return the GPUs to request work for: those held, and those it might rent."""

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the instances that there should be when trials have or want `needed` GPUs.

        Empty instances beyond that are returned, never one with a trial on it.
        """

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return the offers that it might request, now or if others are refused."""

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        """Whether these instances are enough to train a single trial."""

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return instances that should go though trials may be on them.

        Nothing more starts there, and they are returned once they are empty. `needed` are the GPUs
        that trials have or want; inf in the same round before that is known.
        """

    def dollars_to_come(self, view: View, at: float) -> float | None:
        """Return the dollars that the run will cost from second `at` on; None if unknown."""

    def grows_at(self, view: View) -> float:
        """Return the run second at which it wants more though nothing happens; inf: never."""


class Sampler(Protocol):
    """Provides new configurations, and learns from their results."""

    def ask(self) -> Trial | None:
        """Return the next trial; None when there is none left."""

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a trial after an epoch; None if it failed."""

    def more(self, trials: int) -> int:
        """Add trials after the existing ones, which stay the same; return how many were added.

        A grid may have fewer than requested.
        """
