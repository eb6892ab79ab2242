"""What strategies with rungs share: where the rungs stand, and the results of trials there."""

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


def capped(trial: Trial, epoch: int) -> int:
    """Return the epoch, or the trial's own last one where that comes before it."""
    return epoch if trial.epochs is None else min(epoch, trial.epochs)


class Rung:
    """The results at one rung, the best first; ties go by which came first.

    The trials that rest at a rung are the ones that may still be promoted.
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
        """Record a result; a second one of the same trial takes the first one's place."""
        order = len(self._keys)
        if trial in self._keys:
            old = self._keys[trial]
            order = old[1]
            del self._sorted[bisect.bisect_left(self._sorted, old)]
        key = (rank_key(self._mode, metric), order, trial)
        self._keys[trial] = key
        bisect.insort(self._sorted, key)

    def place(self, trial: TrialId) -> int:
        """Return how many did better."""
        return bisect.bisect_left(self._sorted, self._keys[trial])

    def rest(self, trial: TrialId) -> None:
        """Let a trial with a result here wait for its promotion."""
        bisect.insort(self._resting, self._keys[trial])

    def leave(self, trial: TrialId) -> None:
        """Take a trial off that may rest here: it was promoted, or won't ever be."""
        at = bisect.bisect_left(self._resting, self._keys[trial])
        if at < len(self._resting) and self._resting[at][2] == trial:
            del self._resting[at]

    def promotable(self, count: int) -> list[TrialId]:
        """Return those that rest and are among the best `count`, the best first."""
        promotable: list[TrialId] = []
        for key in self._resting:
            if bisect.bisect_left(self._sorted, key) >= count:
                break
            promotable.append(key[2])
        return promotable


class Standing:
    """The best result of each trial, greater being better, and which trial is ahead.

    In `_order` are all trials with a result that may still train, the best first; one that is over
    is dropped when that is seen. Of equal results the one trained longer comes first, which is
    looked at then as well: trials fall back to their checkpoints.
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

    def ranked(self, trials: Mapping[TrialId, TrialProgress]) -> Iterator[TrialId]:
        """Yield those that could train on, the best first."""
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
    """Trials that a sampler gave and that haven't begun; they are asked for as they are needed.

    None of those that wait was among the first `_begun` trials of the run when it was looked at.
    The tasks are those of the first that wait, one each and in the same order, all until `_until`:
    what waits is asked for again and again.
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
        """Return the next `count` trials as tasks, to train until that epoch or their own last."""
        self._fetch(view, count)
        if until != self._until:
            self._until = until
            self._tasks.clear()
        for trial in itertools.islice(self._waiting, len(self._tasks), max(0, count)):
            self._tasks.append(Task(trial, capped(trial, until)))
        return tuple(itertools.islice(self._tasks, max(0, count)))

    def take(self, view: View) -> Trial | None:
        """Return the next trial, which is the caller's from then on; None if there is none."""
        self._fetch(view, 1)
        return self._drop_first() if self._waiting else None

    def _fetch(self, view: View, count: int) -> None:
        """Have `count` trials wait, or as many as there are; those that have begun wait no more."""
        if len(view.trials) != self._begun:
            self._drop_begun(view)
        while len(self._waiting) < count and not self._dry:
            trial = self._sampler.ask()
            if trial is None:
                self._dry = True
            else:
                self._waiting.append(trial)

    def _drop_begun(self, view: View) -> None:
        """Drop the trials that have begun: the first ones, but where others were started sooner."""
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
        """Add trials; returns why there aren't as many, "" if there are."""
        count = self._sampler.more(trials)
        self._dry = False
        return why_fewer(count, trials)

    def dry(self, view: View) -> bool:
        """Whether there will never be another one."""
        self._fetch(view, 1)
        return not self._waiting

    def learn(self, trial: TrialProgress) -> None:
        """Tell the sampler of an epoch, but not again of one that is trained a second time."""
        if trial.epoch > self._reported.get(trial.id, 0):
            self._reported[trial.id] = trial.epoch
            self._sampler.tell(trial.trial, trial.epoch, trial.metric)

    def learn_failure(self, trial: TrialProgress) -> None:
        self._sampler.tell(trial.trial, trial.epoch, None)


def why_fewer(count: int, asked: int) -> str:
    """Return why there are only `count` more trials, not `asked`; "" if there are as many."""
    if count >= asked:
        return ""
    left = f"only {count} more" if count else "no more"
    return f"its search space has {left} to try: all its values are listed"


class Judging:
    """A strategy that decides only at results: it takes nothing back and sets no alarm."""

    reason: EndReason | None = None
    _new: NewTrials

    def more(self, view: View, trials: int) -> str:
        """Try more of the sampler's trials; returns why there aren't as many, "" if there are."""
        return self._new.more(trials)

    def preempt(self, view: View) -> Mapping[TrialId, Verdict]:
        return {}

    def wake_at(self, view: View) -> float | None:
        """Return None: the strategy decides only at results."""
        return None


def at_rest(view: View) -> bool:
    """Whether no trial runs, and none is to go on from where it was lost."""
    return not view.running and all(t.status != "waiting" for t in view.trials.values())
