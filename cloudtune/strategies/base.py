"""What a run asks of a strategy: which trials train, how far, and what becomes of them.

To add a strategy is to write one class with the methods of `Strategy` in a file of its own beside
this one, and one line in `STRATEGIES` (cloudtune/policy/registry.py). The contract suite
tests/contracts/strategy.py then runs it through everything that a run can do to it.

A strategy asks for work by groups of tasks, so that any `Allocator` (how wide is each trial) and
any `FleetRule` (how many instances) serves any strategy. All three read the run through a `View`
and are pure: the same events, the same decisions. A schedule whose stages are known beforehand
(`StagedStrategy`) is planned, and a strategy that reads the plan carries it out
(policy/planned/executor.py).
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
        """Return the trials that go on from the rung at the end of a stage, best first.

        `results` holds the metric that each trial reached at the rung; nan and None rank last.
        """


@dataclass(frozen=True)
class Task:
    """A trial and its budget: it is to train until the end of epoch `until`.

    A trial that has never run begins at epoch 0; with `clone_of` it begins from that trial's last
    checkpoint and epoch.

    Raises:
        ValueError: no epoch to train.
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
        ValueError: no task.
    """

    name: str
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"group {self.name} holds no trial")


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
    """What strategies, allocators and fleet rules may look at: the state of the run.

    Times are seconds since the run began, prices US dollars. A view is for reading: whoever gets it
    changes nothing.
    """

    @property
    def now(self) -> float:
        """The time of the event that is being decided about."""

    @property
    def mode(self) -> Mode:
        """Whether more or less of the metric is better."""

    @property
    def limits(self) -> Limits:
        """The deadline and the budget, from the run's begin."""

    @property
    def ahead(self) -> float:
        """By when all could be given back, if that were decided only at the next tick (run s)."""

    @property
    def lookahead(self) -> int:
        """How many tasks of a group the allocator chooses among, whatever room there is."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the run must begin to give back; inf without a deadline."""

    @property
    def dollars_left(self) -> float:
        """The dollars left if everything were given back now; inf without a budget."""

    @property
    def committed(self) -> float:
        """Dollars spent, or bound to be spent whatever is done; of what is held, until now."""

    @property
    def best(self) -> BestResult | None:
        """The best epoch so far."""

    @property
    def trials(self) -> Mapping[TrialId, TrialProgress]:
        """Every trial that ever ran, in the order of their first start."""

    @property
    def running(self) -> LiveTrials:
        """The trials that have sessions, those that wait at a rung or are stopping included."""

    @property
    def rentables(self) -> Sequence[Rentable]:
        """The offers that may be rented, each with the script's speed there."""

    @property
    def max_instances(self) -> int:
        """How many instances may be alive at once."""

    @property
    def fleet(self) -> FleetBook:
        """Every instance that was ever asked for, and what has become of it."""

    @property
    def held(self) -> Counter[Offer]:
        """Instances that are to stay, those that still boot included."""

    @property
    def gpus(self) -> int:
        """GPUs of the instances that take trials now."""

    @property
    def free_gpus(self) -> float:
        """GPUs of usable instances on which nothing runs, with the free shares of the others."""

    @property
    def setups(self) -> Sequence[float]:
        """The seconds that each session took to be set up, in order; more are added at the end."""

    @property
    def disturbances(self) -> int:
        """How often an instance was refused, lost, taken back or never joined."""

    @property
    def shocks(self) -> int:
        """How often the cloud began to refuse an offer, or took an instance that trials sat on."""

    @property
    def backoffs(self) -> Mapping[Offer, LaunchBackoff]:
        """What has gone wrong with the launches of each offer."""

    def until(self, trial: TrialId) -> int:
        """Return the epoch that a trial may train to for now; 0 for one that never began."""

    def width_for(self, trial: TrialProgress | None, width: Width, offer: Offer) -> Width:
        """Return the width that a trial gets on an offer where it is to have this one.

        It is wider where trials ran out of memory, unless this one trains at that width already.
        None is a trial that never began.
        """

    def fits(self, width: Width, offer: Offer) -> bool:
        """Whether a trial of `width` GPUs could start now on the instances of an offer."""

    def admits(self, alive: Mapping[Offer, int]) -> bool:
        """Whether `alive` instances of each offer at once keep the cap and the vCPU quotas."""

    def refused(self, offer: Offer) -> bool:
        """Whether asking for such an instance is pointless: it was refused again and again."""

    def avoided(self, offer: Offer) -> bool:
        """Whether such an instance isn't asked for now: it was refused a short while ago."""

    def barred(self, offer: Offer) -> bool:
        """Whether such an instance will never be asked for again."""

    def epoch_seconds(self, trial: TrialId | None, offer: Offer, width: Width) -> float:
        """Return the seconds of an epoch: the profile's, corrected by what this run measured.

        The trial's own epochs say how fast it is; without any (or for None), those of all trials.
        """

    def slowest_epoch(self, trials: tuple[TrialId, ...], offer: Offer, width: Width) -> float:
        """Return the seconds of an epoch of the slowest of these trials: as `corrected` has it.

        To be asked at every epoch about the same tuple: that takes no look at each of its trials.
        """

    def delay(self, offer: Offer, kind: Delay) -> float:
        """Return the mean seconds of a delay on an offer: as `corrected` has it."""

    def profiled(self, offer: Offer) -> Rentable:
        """Return an offer's rentable as it was before the run, without its measurements."""

    def corrected(self, rentable: Rentable, trials: Sequence[TrialId]) -> Rentable:
        """Return a rentable at the speed that these trials can be expected to have on it.

        Delays are those that are to be expected too.
        """


class Strategy(Protocol):
    """Decides which trials train and how far, as results come in.

    The run asks, in this order, whenever something has happened:

    1. `on_result`, for the trial that has just finished an epoch: train on (`Go`), or what becomes
       of it (`Verdict`). Every epoch is reported once, in the order of the events.
    2. `on_failure`, for a trial that failed for good.
    3. `preempt`: which other trials stop, though they haven't reported.
    4. `done`: whether the run is over.
    5. `requests`: which trials begin, or go on from a rung, as far as there is room.

    A trial moves between instances, is lost with one, or changes its width without being asked
    about: a strategy sees trials, epochs and metrics, and never GPUs. Trials that were lost come
    back by themselves. Epochs count from 1, times are seconds of the run, prices US dollars.
    `rungs.py` has what strategies with rungs share; `asha.py` is a good model.
    """

    @property
    def name(self) -> str:
        """The name in an experiment file and on the command line."""

    @property
    def anytime(self) -> bool:
        """Whether the strategy uses up its limits, so that to end at one is a success."""

    @property
    def reason(self) -> EndReason | None:
        """Why the strategy is done; None leaves it to the run: done if there is a result."""

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        """Return the work that may begin now, in order, none that trains: there is room for `room`.

        Of a group of which more is known already up to `view.lookahead`, for the allocator.
        Asked again whenever there is room, so an answer isn't a promise: a task counts as begun
        when `view.trials` shows its trial starting.
        """

    def on_result(self, view: View, trial: TrialProgress) -> Decision:
        """Return what becomes of a trial that has just finished an epoch (`trial.epoch`)."""

    def on_failure(self, view: View, trial: TrialProgress) -> None:
        """Record that a trial failed, and won't come back."""

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        """Return trials that are to stop now, or to be over, though they haven't reported."""

    def wake_at(self, view: View) -> float | None:
        """Return the run second at which to ask again though nothing has happened; None: never."""

    def done(self, view: View) -> bool:
        """Whether the strategy waits for no trial, and will never ask for one again."""

    def more(self, view: View, trials: int) -> str:
        """Try more trials than it was to; returns why it can't, "" if it can.

        Asked as a run that has ended goes on, with the new limits in `view`. A strategy that was
        done isn't any more.
        """


@runtime_checkable
class Breeds(Protocol):
    """A strategy in which a trial may begin from the checkpoint of another."""

    def parents(self, view: View) -> Collection[TrialId]:
        """Return the trials from which others may begin, over or not. Another thread may ask."""


@dataclass(frozen=True)
class Shape:
    """GPUs for one trial, on instances of an offer; None: wherever there is room."""

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
        """How many tasks of a group it chooses among; 0 where it takes them as they come."""

    def in_order(self, view: View, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks of a group in the order in which they start."""

    def shapes(self, view: View, tasks: Sequence[Task]) -> Iterator[Sequence[Shape]]:
        """Give for each task that is to start what it may have, the best first; none: it waits.

        The run takes one answer at a time: when it asks for the next task's, the task before has
        its GPUs or waits, as `view` then shows.
        """

    def resized(self, view: View, trial: TrialProgress) -> Width:
        """Return the width that a running trial should have, after an epoch."""


class ByWidth:
    """The base of allocators that say how wide, and leave it to the run on which instances."""

    lookahead = 0

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        """Return the width for each of the tasks that are to start; 0 for one that is to wait."""
        raise NotImplementedError

    def in_order(self, view: View, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks as the strategy gave them."""
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
        """The number of the present stage; with each new one the cloud's refusals are forgotten."""

    def max_gpus(self, view: View) -> int:
        """Return the GPUs to ask the strategy for work for: those held, and those it might rent."""

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the instances that should be there, when trials have or want `needed` GPUs.

        Empty instances beyond that are given back, never one with a trial on it.
        """

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return the offers that it might ask for, now or where others are refused."""

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        """Whether these instances are enough to train a single trial."""

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return instances that are to go though trials may sit on them.

        Nothing starts there any more, and they are given back once they are empty. `needed` are the
        GPUs that trials have or want; inf before that is known, in the same round.
        """

    def dollars_to_come(self, view: View, at: float) -> float | None:
        """Return the dollars that the run will cost from second `at` on; None where unknown."""


class Sampler(Protocol):
    """Gives new configurations, and learns from how they did."""

    def ask(self) -> Trial | None:
        """Return the next trial to try; None when there is none left."""

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a trial after an epoch; None where it failed."""

    def more(self, trials: int) -> int:
        """Add trials after those that there were; returns how many more there are.

        The same trials come first as without; a grid may have fewer than are asked for.
        """
