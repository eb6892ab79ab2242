"""Trials, the sampler that gives them, the curves they have and the strategy that is watched."""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from cloudtune.model.trial import Trial, TrialId
from cloudtune.strategies.base import Breeds, Strategy, TrialGroup, View


def trials(count: int, caps: Mapping[int, int] | None = None) -> tuple[Trial, ...]:
    """Return trials t00, t01 …, some with a last epoch of their own."""
    caps = caps or {}
    return tuple(Trial(f"t{n:02d}", {"x": n}, caps.get(n)) for n in range(count))


class Given:
    """A sampler of given trials; it notes its results, and refuses one twice."""

    def __init__(self, trials: Sequence[Trial], spare: Sequence[Trial] = ()) -> None:
        self._left, self._spare = deque(trials), deque(spare)
        self.reported: dict[tuple[TrialId, int], float | None] = {}
        self.failed: list[TrialId] = []

    def ask(self) -> Trial | None:
        return self._left.popleft() if self._left else None

    def more(self, trials: int) -> int:
        added = min(trials, len(self._spare))
        self._left.extend(self._spare.popleft() for _ in range(added))
        return added

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        if value is None:
            assert trial.id not in self.failed
            self.failed.append(trial.id)
            return
        assert (trial.id, epoch) not in self.reported, f"{trial.id} reported epoch {epoch} twice"
        self.reported[trial.id, epoch] = value


class Watched:
    """A strategy whose every answer is checked against what the interface promises."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.name, self.anytime, self.reason = inner.name, inner.anytime, inner.reason
        self.on_result, self.on_failure = inner.on_result, inner.on_failure
        self.on_finish = inner.on_finish
        self.preempt, self.wake_at, self.done = inner.preempt, inner.wake_at, inner.done
        self.more = inner.more
        if isinstance(inner, Breeds):
            self.parents = inner.parents
        self.groups: list[TrialGroup] = []

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        groups = self.inner.requests(view, room)
        tasks = [task for group in groups for task in group.tasks]
        assert all(group.tasks for group in groups)
        assert len({task.trial.id for task in tasks}) == len(tasks)
        for task in tasks:
            known = view.trials.get(task.trial.id)
            assert known is None or known.status in {"parked", "at rung"}, known
            assert known is None or task.until > known.epoch
            assert task.trial.epochs is None or task.until <= task.trial.epochs
        self.groups += groups
        return groups


def level(number: int, epoch: int, seed: int = 0) -> float:
    """Return a made-up metric, more is better: curves that rise and cross, no two alike."""
    bits = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    top, pace = 0.3 + bits[0] / 400 + bits[1] / 1e5, 0.05 + bits[2] / 300
    return top * (1 - math.exp(-pace * epoch))


def table(rows: Mapping[int, Sequence[float]]) -> Callable[[int, int], float]:
    """Return a metric by hand: of each trial, epoch by epoch; the last one for all that follow."""
    return lambda number, epoch: rows[number][min(epoch, len(rows[number])) - 1]


def final(values: Sequence[float]) -> Callable[[int, int], float]:
    """Return a metric by hand that is the same at every epoch."""
    return lambda number, _epoch: values[number]
