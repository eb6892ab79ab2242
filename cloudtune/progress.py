"""The trials of a run as the policy knows them: how far, how good, on which session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from cloudtune.trial import better

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.catalog import Offer
    from cloudtune.events import EpochDone
    from cloudtune.trial import Mode, Slice, Trial, TrialId, Width

Status: TypeAlias = Literal[
    "waiting",  # to be started, no session
    "starting",  # its session is being set up
    "training",
    "at rung",  # its session is alive and waits for a decision
    "stopping",  # its session is being ended; `after` follows
    "parked",  # reached the rung, no session
    "cut",
    "failed",
    "finished",
]
LIVE: frozenset[Status] = frozenset({"starting", "training", "at rung", "stopping"})
OVER: frozenset[Status] = frozenset({"cut", "failed", "finished"})


@dataclass(frozen=True)
class Best:
    """The best epoch that a run has seen."""

    trial: TrialId
    epoch: int
    metric: float
    checkpoint: str | None


@dataclass
class TrialProgress:
    """One trial; a session is one start of its workers, named `<trial>.<number>`.

    `offer` is where it has its GPUs: None while it waits for some.
    `seconds` is what its sessions took, set-ups and epochs; `epoch_seconds` its last epoch alone.
    At less than `min_width` GPUs it ran out of memory, so it is never that narrow again; at more
    than `max_width` its workers wouldn't train one model.
    """

    trial: Trial
    id: TrialId = field(init=False, repr=False, compare=False)
    status: Status = "waiting"
    after: Status = "waiting"
    sessions: int = 0
    width: Width = 0
    min_width: Width = 0
    max_width: Width = math.inf
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

    def __post_init__(self) -> None:
        self.id = self.trial.id

    @property
    def live(self) -> bool:
        """Whether a session of the trial holds GPUs."""
        return self.status in LIVE

    def width_for(self, width: Width) -> Width:
        """Return the width that the trial gets where it is to have this one."""
        return min(max(width, self.min_width), self.max_width)

    @property
    def unsaved(self) -> bool:
        """Whether all that the trial has trained would be lost if it were started anew."""
        return self.epoch > 0 and self.checkpoint is None

    @property
    def under_way(self) -> bool:
        """Whether the trial still has to train in this stage."""
        after = self.after if self.status == "stopping" else self.status
        return after in {"waiting", "starting", "training"}

    @property
    def session(self) -> str:
        """The id of the current or last session."""
        return f"{self.id}.{self.sessions}"

    def record(self, event: EpochDone, metric: float) -> None:
        """Take note of an epoch."""
        self.epoch, self.metric, self.losses = event.epoch, metric, 0
        self.taken = 0
        self.epoch_seconds = event.seconds or self.epoch_seconds
        self.seconds += event.seconds
        self.history[event.epoch] = metric
        if event.checkpoint is not None:
            self.checkpoint, self.checkpoint_epoch = event.checkpoint, event.epoch

    def rewind(self) -> None:
        """Fall back to the last checkpoint: what the next session starts from."""
        self.epoch = self.checkpoint_epoch
        self.metric = self.history.get(self.epoch)


class LiveTrials(Collection[TrialProgress]):
    """The trials of a run that have sessions, in the order in which those began.

    How many of them wait at a rung, and how many GPUs they have, is counted as they come, change
    and go: a round of decisions asks for it, however many there are. So each session begins by
    `add`, ends by `remove`, and changes its trial's status by `become` alone.

    What trials use is counted too, where that is billed (`Offer.per_function`): all of a session
    but its waiting at rungs. `now` is the run second that these changes happen at.
    """

    def __init__(self) -> None:
        self.by_id: dict[TrialId, TrialProgress] = {}
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
        """How many wait at a rung."""
        return len(self._at_rung)

    @property
    def gpus(self) -> float:
        """The GPUs that they have."""
        return self.busy_gpus + sum([width * count for width, count in self._idle.items()])

    @property
    def busy_gpus(self) -> float:
        """The GPUs of those that don't wait at a rung."""
        return sum([width * count for width, count in self._busy.items()])

    def add(self, trial: TrialProgress) -> None:
        """Take note of a session that begins: it is being set up."""
        self.by_id[trial.id] = trial
        self._busy[trial.width] += 1
        self._use(trial)

    def become(self, trial: TrialProgress, status: Status) -> None:
        """Change the status of one of them to another that has a session."""
        trial.status = status
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
        """Take note that a session is over; its trial's status is the caller's."""
        self._leave_rung(trial)
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


@dataclass
class Record:
    """The best epoch so far; one with a checkpoint beats any without."""

    mode: Mode
    best: Best | None = None

    def offer(self, found: Best) -> None:
        """Keep `found` if it beats what is held."""
        held = self.best
        if held is not None and (held.checkpoint is None) != (found.checkpoint is None):
            if held.checkpoint is None:
                self.best = found
            return
        if better(self.mode, found.metric, held.metric if held else None):
            self.best = found
