"""What strategies with rungs share: where the rungs are, and the results of trials there."""

import bisect
import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping

from cloudtune.model.progress import OVER, TrialProgress
from cloudtune.model.trial import EndReason, Mode, Trial, TrialId, rank_key
from cloudtune.strategies.base import Sampler, Task, Verdict, View


def rung_epochs(min_epochs: int, max_epochs: int, eta: int) -> tuple[int, ...]:
    """Return the epochs of the rungs: min_epochs * eta**k below max_epochs, then max_epochs."""
    epochs = []
    epoch = min_epochs
    while epoch < max_epochs:
        epochs.append(epoch)
        epoch *= eta
    return (*epochs, max_epochs)


def cap_epoch(trial: Trial, epoch: int) -> int:
    """Return the epoch, or the trial's own last one if that is earlier."""
    return epoch if trial.epochs is None else min(epoch, trial.epochs)


class Rung:
    """The results at one rung, best first; ties go to the earlier result.

    The trials that rest at a rung are those that may still be promoted.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._sorted: list[tuple[tuple[int, float], int, TrialId]] = []
        self._resting: list[tuple[tuple[int, float], int, TrialId]] = []
        self._keys: dict[TrialId, tuple[tuple[int, float], int, TrialId]] = {}

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, trial: object) -> bool:
        return trial in self._keys

    def __iter__(self) -> Iterator[TrialId]:
        return (trial for _, _, trial in self._sorted)

    def record(self, trial: TrialId, metric: float | None) -> None:
        """Record a result; a second one of the same trial replaces the first."""
        order = len(self._keys)
        if trial in self._keys:
            old = self._keys[trial]
            order = old[1]
            del self._sorted[bisect.bisect_left(self._sorted, old)]
        key = (rank_key(self._mode, metric), order, trial)
        self._keys[trial] = key
        bisect.insort(self._sorted, key)

    def place(self, trial: TrialId) -> int:
        """Return how many trials did better."""
        return bisect.bisect_left(self._sorted, self._keys[trial])

    def rest(self, trial: TrialId) -> None:
        """Let a trial with a result here wait for its promotion."""
        bisect.insort(self._resting, self._keys[trial])

    def leave(self, trial: TrialId) -> None:
        """Remove a trial that may rest here: it was promoted, or never will be."""
        at = bisect.bisect_left(self._resting, self._keys[trial])
        if at < len(self._resting) and self._resting[at][2] == trial:
            del self._resting[at]

    def promotable(self, count: int) -> list[TrialId]:
        """Return the resting trials among the best `count`, best first."""
        promotable: list[TrialId] = []
        for key in self._resting:
            if bisect.bisect_left(self._sorted, key) >= count:
                break
            promotable.append(key[2])
        return promotable


class Standing:
    """The best result of each trial (greater is better), and which trial is ahead.

    `_order` has all trials with a result that may still train, best first; trials that are over are
    dropped on the next look. Of equal results, the trial with more epochs comes first; that is
    checked on each look too, because trials fall back to their checkpoints.
    """

    def __init__(self) -> None:
        self._best: dict[TrialId, float] = {}
        self._order: list[tuple[float, TrialId]] = []  # minus the best result, and whose it is

    def __len__(self) -> int:
        return len(self._best)

    def __contains__(self, trial: object) -> bool:
        return trial in self._best

    def best(self, trial: TrialId) -> float:
        """Return the best result of a trial; -inf for none."""
        return self._best.get(trial, -math.inf)

    def note(self, trial: TrialId, value: float) -> None:
        if trial in self._best:
            if value <= self._best[trial]:
                return
            self.forget(trial)
        self._best[trial] = value
        bisect.insort(self._order, (-value, trial))

    def forget(self, trial: TrialId) -> None:
        if trial in self._best:
            held = -self._best.pop(trial), trial
            at = bisect.bisect_left(self._order, held)
            if self._order[at : at + 1] == [held]:
                del self._order[at]

    def rank(self, trials: Mapping[TrialId, TrialProgress]) -> Iterator[TrialId]:
        """Yield the trials that could continue, best first."""
        order = self._order
        at = 0
        while at < len(order):
            minus = order[at][0]
            end = at + 1
            while end < len(order) and order[end][0] == minus:
                end += 1
            equal = [name for _, name in order[at:end] if trials[name].status not in OVER]
            if len(equal) < end - at:
                order[at:end] = [(minus, name) for name in equal]
            at += len(equal)
            if len(equal) > 1:
                equal.sort(key=lambda name: (-trials[name].epoch, name))
            yield from equal


class NewTrials:
    """Trials that haven't begun, drawn from a sampler as needed.

    No waiting trial was among the first `_begun` trials of the run at the last look. The tasks are
    cached, because they are requested repeatedly: one for each of the first waiting trials, in
    order, all until `_until`.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._waiting: deque[Trial] = deque()
        self._tasks: deque[Task] = deque()
        self._until = 0
        self._begun = 0
        self._dry = False
        self._reported: dict[TrialId, int] = {}

    def peek(self, view: View, count: int) -> list[Trial]:
        self._fetch(view, count)
        return list(itertools.islice(self._waiting, max(0, count)))

    def tasks(self, view: View, count: int, until: int) -> tuple[Task, ...]:
        """Return the next `count` trials as tasks until that epoch, or their own last one."""
        self._fetch(view, count)
        if until != self._until:
            self._until = until
            self._tasks.clear()
        for trial in itertools.islice(self._waiting, len(self._tasks), max(0, count)):
            self._tasks.append(Task(trial, cap_epoch(trial, until)))
        return tuple(itertools.islice(self._tasks, max(0, count)))

    def take(self, view: View) -> Trial | None:
        """Return the next trial and hand it over to the caller; None if there is none."""
        self._fetch(view, 1)
        return self._drop_first() if self._waiting else None

    def _fetch(self, view: View, count: int) -> None:
        """Make `count` trials wait, or as many as there are; drop those that have begun."""
        if len(view.trials) != self._begun:
            self._drop_begun(view)
        while len(self._waiting) < count and not self._dry:
            trial = self._sampler.ask()
            if trial is None:
                self._dry = True
            else:
                self._waiting.append(trial)

    def _drop_begun(self, view: View) -> None:
        """Drop the trials that have begun: usually the first ones."""
        left = len(view.trials) - self._begun
        while self._waiting and self._waiting[0].id in view.trials:
            self._drop_first()
            left -= 1
        if left and any(trial.id in view.trials for trial in self._waiting):
            self._waiting = deque(t for t in self._waiting if t.id not in view.trials)
            self._tasks.clear()
        self._begun = len(view.trials)

    def _drop_first(self) -> Trial:
        if self._tasks:
            self._tasks.popleft()
        return self._waiting.popleft()

    def more(self, trials: int) -> str:
        """Add trials; return why there are fewer than requested, "" if there aren't."""
        count = self._sampler.more(trials)
        self._dry = False
        return why_fewer(count, trials)

    def dry(self, view: View) -> bool:
        """Whether there will never be another trial."""
        self._fetch(view, 1)
        return not self._waiting

    def learn(self, trial: TrialProgress) -> None:
        """Pass an epoch on to the sampler, unless it was trained before."""
        if trial.epoch > self._reported.get(trial.id, 0):
            self._reported[trial.id] = trial.epoch
            self._sampler.tell(trial.trial, trial.epoch, trial.metric)

    def learn_failure(self, trial: TrialProgress) -> None:
        self._sampler.tell(trial.trial, trial.epoch, None)


def why_fewer(count: int, asked: int) -> str:
    """Return why there are only `count` more trials and not `asked`; "" if there are as many."""
    if count >= asked:
        return ""
    left = f"only {count} more" if count else "no more"
    return f"its search space has {left} to try: all its values are listed"


class Judging:
    """The base of strategies that decide only at results: no preemption and no timer."""

    reason: EndReason | None = None
    _new: NewTrials

    def more(self, view: View, trials: int) -> str:
        """Add more of the sampler's trials; return why there are fewer, "" if there aren't."""
        return self._new.more(trials)

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        return {}

    def wake_at(self, view: View) -> float | None:
        """Return None: the strategy decides only at results."""
        return None


def at_rest(view: View) -> bool:
    """Whether no trial runs, and none is about to be restarted."""
    return not view.running and all(t.status != "waiting" for t in view.trials.values())
