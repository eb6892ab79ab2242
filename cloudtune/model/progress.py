"""The trials of a run as the policy knows them: how far, how good, on which session."""

import bisect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.events import EpochDone
from cloudtune.model.trial import Mode, Slice, Trial, TrialId, Width, better

Status: TypeAlias = Literal[
    "waiting",  # will be started, no session
    "starting",  # its session is being set up
    "training",
    "at rung",  # its session is alive and waits for a decision
    "stopping",  # its session is being ended; `after` follows
    "parked",  # paused: no session, and it may continue
    "cut",
    "failed",
    "diverged",  # its metric was no finite number
    "finished",  # trained to its last epoch, or to where its script ended
]
LIVE: frozenset[Status] = frozenset({"starting", "training", "at rung", "stopping"})
OVER: frozenset[Status] = frozenset({"cut", "failed", "diverged", "finished"})


def trial_of(session: str) -> TrialId:
    """Return the trial of a session, by the session's id."""
    return session.rpartition(".")[0]


@dataclass(frozen=True)
class BestResult:
    """The best epoch that a run has seen; `unsaved` as in `EpochDone`."""

    trial: TrialId
    epoch: int
    metric: float
    checkpoint: str | None
    unsaved: str = ""


@dataclass
class TrialProgress:
    """One trial; a session is one start of its workers, named `<trial>.<number>`.

    `offer` is where it has its GPUs: None while it waits for some. `seconds` is what its sessions
    took, set-ups and epochs; `epoch_seconds` only its last epoch. `epoch_since` is when its present
    epoch began, in run seconds. Below `min_width` GPUs it ran out of memory, so it is never that
    narrow again.
    """

    trial: Trial
    id: TrialId = field(init=False, repr=False, compare=False)
    status: Status = "waiting"
    after: Status = "waiting"
    sessions: int = 0
    width: Width = 0
    min_width: Width = 0
    placement: tuple[Slice, ...] = ()
    offer: Offer | None = None
    epoch: int = 0
    checkpoint: str | None = None
    checkpoint_epoch: int = 0
    metric: float | None = None
    losses: int = 0
    taken: int = 0
    error: str = ""
    traceback: str = ""
    history: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    epoch_since: float = 0.0

    def __post_init__(self) -> None:
        self.id = self.trial.id

    @property
    def live(self) -> bool:
        """Whether a session of the trial holds GPUs."""
        return self.status in LIVE

    @property
    def unsaved(self) -> bool:
        """Whether a restart would lose everything that the trial has trained."""
        return self.epoch > 0 and self.checkpoint is None

    @property
    def session(self) -> str:
        """The id of the current or last session."""
        return f"{self.id}.{self.sessions}"

    def last(self, epoch: int) -> int:
        """Return its last epoch, in a run in which that is `epoch` unless a trial has its own."""
        return epoch if self.trial.epochs is None else min(epoch, self.trial.epochs)

    def record(self, event: EpochDone, metric: float) -> None:
        self.epoch = event.epoch
        self.metric = metric
        self.losses = 0
        self.taken = 0
        self.epoch_seconds = event.seconds or self.epoch_seconds
        self.seconds += event.seconds
        self.history[event.epoch] = metric
        if event.checkpoint is not None:
            self.checkpoint = event.checkpoint
            self.checkpoint_epoch = event.epoch

    def rewind(self) -> None:
        """Fall back to the last checkpoint, where the next session starts."""
        self.epoch = self.checkpoint_epoch
        self.metric = self.history.get(self.epoch)


class LiveTrials(Collection[TrialProgress]):
    """The trials of a run that have sessions, in the order in which the sessions began.

    How many of them stop or wait at a rung, and their GPUs, are counted as they change, because
    each round of decisions reads these counts. So a session begins with `add`, ends with `remove`,
    and changes its trial's status only with `become`.

    If use is billed (`Offer.per_function`), it is counted too: the whole session, except while it
    waits at rungs. `now` is the run second of these changes.

    `changes` has each trial that has changed, in order, including those without a session; other
    counters follow it (`Roster`).
    """

    def __init__(self) -> None:
        self.by_id: dict[TrialId, TrialProgress] = {}
        self.changes: list[TrialProgress] = []
        self.stopping = 0
        self._at_rung: set[TrialId] = set()
        self._busy: Counter[Width] = Counter()  # how many trials of each width aren't at a rung
        self._idle: Counter[Width] = Counter()  # and how many are
        self.now = 0.0
        self._used_dollars = 0.0
        self._using: dict[TrialId, tuple[float, float]] = {}  # since when, dollars a second

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[TrialProgress]:
        return iter(self.by_id.values())

    def __contains__(self, trial: object) -> bool:
        return isinstance(trial, TrialProgress) and trial.id in self.by_id

    @property
    def at_rung(self) -> int:
        return len(self._at_rung)

    @property
    def gpus(self) -> float:
        """The GPUs of these trials."""
        return self.busy_gpus + sum([width * count for width, count in self._idle.items()])

    @property
    def busy_gpus(self) -> float:
        """The GPUs of the trials that don't wait at a rung."""
        return sum([width * count for width, count in self._busy.items()])

    def add(self, trial: TrialProgress) -> None:
        """Record a session that begins with its set-up."""
        self.by_id[trial.id] = trial
        self.changes.append(trial)
        self._busy[trial.width] += 1
        self._use(trial)

    def become(self, trial: TrialProgress, status: Status) -> None:
        """Change the status of one of them to another that has a session."""
        self.stopping += (status == "stopping") - (trial.status == "stopping")
        trial.status = status
        self.changes.append(trial)
        if status == "at rung":
            if trial.id not in self._at_rung:
                self._at_rung.add(trial.id)
                self._busy[trial.width] -= 1
                self._idle[trial.width] += 1
                self._rest(trial)
        elif self._at_rung:
            self._leave_rung(trial)
            self._use(trial)

    def remove(self, trial: TrialProgress) -> None:
        """Record that a session is over; the caller sets its trial's status from then on."""
        self.stopping -= trial.status == "stopping"
        self._leave_rung(trial)
        self.changes.append(trial)
        self._busy[trial.width] -= 1
        self._rest(trial)
        del self.by_id[trial.id]

    def dollars(self, at: float) -> float:
        """Return what trials have used by a run second, now or later, if they go on until then."""
        if not self._using:
            return self._used_dollars
        going = sum([rate * max(0.0, at - since) for since, rate in self._using.values()])
        return self._used_dollars + going

    def _use(self, trial: TrialProgress) -> None:
        rate = 0.0 if trial.offer is None else trial.offer.used_usd_per_second * trial.width
        if rate > 0.0:
            self._using.setdefault(trial.id, (self.now, rate))

    def _rest(self, trial: TrialProgress) -> None:
        since, rate = self._using.pop(trial.id, (0.0, 0.0))
        self._used_dollars += rate * (self.now - since)

    def _leave_rung(self, trial: TrialProgress) -> None:
        if trial.id in self._at_rung:
            self._at_rung.remove(trial.id)
            self._idle[trial.width] -= 1
            self._busy[trial.width] += 1


class _Member(NamedTuple):
    """What a roster counts of one trial; `queue`: which of those that may begin it is in."""

    over: bool = False
    arrived: bool = False
    to_train: bool = True
    offer: Offer | None = None
    queue: Literal["here", "elsewhere", ""] = "elsewhere"


class Roster:
    """The trials of a stage, counted by how far they are: `members`, in order, to `end_epoch`.

    A round of decisions reads these counts repeatedly, so `follow` only looks at trials that have
    changed since (`LiveTrials.changes`).

    `begun` have ever started; `over` won't continue; `arrived` wait at the rung; `to_train` have
    yet to reach it. `placed` have a place in the stage, by offer; `placed_to_train` are those of
    them that have yet to reach the rung. A trial that is done with the stage keeps its place; one
    that will restart has none.
    """

    def __init__(
        self,
        members: tuple[TrialId, ...],
        end_epoch: int,
        trials: Mapping[TrialId, TrialProgress],
        changes: Sequence[TrialProgress],
    ) -> None:
        self.members = members
        self.end_epoch = end_epoch
        self.over = 0
        self.arrived = 0
        self.to_train = len(members)
        self.placed: Counter[Offer] = Counter()
        self.placed_to_train: Counter[Offer] = Counter()
        self._index = {name: index for index, name in enumerate(members)}
        self._counted: dict[TrialId, _Member] = {}
        self._here: list[int] = []  # by index, as are those below
        self._elsewhere = list(range(len(members)))
        self._changes = changes
        self._followed = len(changes)
        for name in members:
            if name in trials:
                self._count(trials[name])

    def follow(self) -> "Roster":
        """Count what has changed; return self."""
        if self._followed < len(self._changes):
            for trial in self._changes[self._followed :]:
                if trial.id in self._index:
                    self._count(trial)
            self._followed = len(self._changes)
        return self

    def next(self, room: int) -> list[TrialId]:
        """Return the trials that may begin: all that can in place, then others up to `room`."""
        others = self._elsewhere[: max(0, room - len(self._here))]
        return [self.members[index] for index in (*self._here, *others)]

    def names_to_train(self) -> list[TrialId]:
        """Return the trials that have yet to reach the rung, in order."""
        counted = self._counted
        return [name for name in self.members if name not in counted or counted[name].to_train]

    def _count(self, trial: TrialProgress) -> None:
        before = self._counted.get(trial.id, _Member())
        now = self._counted[trial.id] = self._member(trial)
        if now == before:
            return
        self.over += now.over - before.over
        self.arrived += now.arrived - before.arrived
        self.to_train += now.to_train - before.to_train
        for member, change in ((before, -1), (now, 1)):
            if member.offer is not None:
                self.placed[member.offer] += change
                self.placed_to_train[member.offer] += change * member.to_train
        if now.queue != before.queue:
            index = self._index[trial.id]
            if before.queue:
                queue = self._here if before.queue == "here" else self._elsewhere
                del queue[bisect.bisect_left(queue, index)]
            if now.queue:
                queue = self._here if now.queue == "here" else self._elsewhere
                bisect.insort(queue, index)

    def _member(self, trial: TrialProgress) -> _Member:
        status = trial.status
        last = trial.trial.epochs
        reached = trial.epoch >= (self.end_epoch if last is None else min(self.end_epoch, last))
        over = status in OVER
        waits = status in {"at rung", "parked"}
        leaves = over or (status == "stopping" and trial.after in OVER)
        placed = status in {"starting", "training", "at rung"} or reached
        here: Literal["here", "elsewhere"] = "here" if status == "at rung" else "elsewhere"
        return _Member(
            over=over,
            arrived=waits and reached,
            to_train=not (leaves or reached),
            offer=trial.offer if placed and not over else None,
            queue=here if waits and not reached else "",
        )


@dataclass
class _Standing:
    """The best epoch that can be delivered, and the best of all."""

    best: BestResult | None = None
    seen: BestResult | None = None

    def compare(self, mode: Mode, epoch: BestResult) -> None:
        """Keep `epoch` if it beats what is held."""
        if better(mode, epoch.metric, self.seen.metric if self.seen else None):
            self.seen = epoch
        held = self.best
        if held is not None and (held.checkpoint is None) != (epoch.checkpoint is None):
            if held.checkpoint is None:
                self.best = epoch
            return
        if better(mode, epoch.metric, held.metric if held else None):
            self.best = epoch


@dataclass
class Record:
    """The best epoch so far that can be delivered, and the best that was `seen`.

    An epoch with a checkpoint beats any without.
    """

    mode: Mode
    _all: _Standing = field(default_factory=_Standing)
    _by_trial: dict[TrialId, _Standing] = field(default_factory=dict)

    @property
    def best(self) -> BestResult | None:
        return self._all.best

    @property
    def seen(self) -> BestResult | None:
        return self._all.seen

    def offer(self, epoch: BestResult) -> None:
        """Keep `epoch` if it beats what is held."""
        self._all.compare(self.mode, epoch)
        self._by_trial.setdefault(epoch.trial, _Standing()).compare(self.mode, epoch)

    def drop(self, trial: TrialId) -> None:
        """Forget all epochs of a trial."""
        self._by_trial.pop(trial, None)
        held = (self._all.best, self._all.seen)
        if not any(epoch is not None and epoch.trial == trial for epoch in held):
            return
        self._all = _Standing()
        for others in self._by_trial.values():
            for epoch in (others.seen, others.best):
                if epoch is not None:
                    self._all.compare(self.mode, epoch)
