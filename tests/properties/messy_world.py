"""A world in which everything happens that may: losses, refusals, late and repeated reports."""

import hashlib
import heapq
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudtune.engine.simulator import SimWorld
from cloudtune.model import commands, events
from cloudtune.model.catalog import Offer
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import EndReason, Trial, TrialId, Width
from cloudtune.strategies import base
from cloudtune.strategies.fleets import Unplanned, surplus_to_empty

EVENTS = 40_000


def draw(*key: object) -> float:
    """Return a number from 0 to 1, always the same for the same key."""
    bits = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(bits[:4], "big") / 2**32


class Fickle:
    """A strategy of whims: it pauses, holds, cuts, retracts and sets alarms; it is finite."""

    reason: EndReason | None = None

    name, anytime = "fickle", False

    def __init__(self, trials: Sequence[Trial], last: int, seed: int) -> None:
        self._trials, self._last, self._seed = trials, last, seed
        self._whims: dict[TrialId, int] = {}
        self._calls = itertools.count()

    def _whim(self, trial: TrialProgress) -> float:
        """Return a draw; 1 for a trial that has had its share of whims."""
        self._whims[trial.id] = count = self._whims.get(trial.id, 0) + 1
        return 1.0 if count > 12 else draw(self._seed, trial.id, count)

    def requests(self, view: base.View, room: int) -> Sequence[base.TrialGroup]:
        known = view.trials
        ready = [
            trial
            for trial in self._trials
            if trial.id not in known or known[trial.id].status in {"parked", "at rung"}
        ]
        steps = [1 + int(4 * draw(self._seed, trial.id, "step")) for trial in ready]
        begun = [known[t.id].epoch if t.id in known else 0 for t in ready]
        tasks = [
            base.Task(trial, min(self._last, epoch + step))
            for trial, epoch, step in zip(ready, begun, steps, strict=True)
            if epoch < self._last
        ]
        return [base.TrialGroup("whims", tuple(tasks[:room]))] if tasks[:room] else []

    def on_result(self, view: base.View, trial: TrialProgress) -> base.Decision:
        if trial.epoch >= self._last:
            return base.Verdict.FINISH
        whim = self._whim(trial)
        if whim < 0.15:
            return base.Verdict.PAUSE
        if whim < 0.3:
            return base.Verdict.HOLD
        return base.Verdict.CUT if whim < 0.33 else base.Go(trial.epoch + 1 + int(3 * whim))

    def on_failure(self, view: base.View, trial: TrialProgress) -> None:
        assert trial.status in {"failed", "diverged"}

    def on_finish(self, view: base.View, trial: TrialProgress) -> None:
        assert trial.status == "finished"

    def preempt(self, view: base.View) -> Mapping[TrialId, base.Verdict]:
        verdicts = (base.Verdict.PAUSE, base.Verdict.CUT)
        at = next(self._calls)
        waiting = [trial for trial in view.trials.values() if trial.status == "waiting"]
        return {
            trial.id: verdicts[draw(self._seed, at) < 0.01]
            for trial in (*view.running, *waiting)
            if draw(self._seed, trial.id, at) < 0.05 and self._whim(trial) < 1.0
        }

    def wake_at(self, view: base.View) -> float | None:
        return (1 + view.now // 50) * 50 if self._seed % 2 else None

    def more(self, view: base.View, trials: int) -> str:
        return "it takes no more"

    def done(self, view: base.View) -> bool:
        over = {"cut", "failed", "finished"}
        left = [t for t in self._trials if t.id not in view.trials]
        return not left and all(t.status in over for t in view.trials.values())


@dataclass(frozen=True)
class Jumpy(base.ByWidth):
    """An allocator that changes its mind about every trial's width, by a seed."""

    options: tuple[Width, ...]
    seed: int
    often: float
    name: str = "jumpy"

    def min_width(self, view: base.View) -> Width:
        return min(self.options)

    def widths(self, view: base.View, tasks: Sequence[base.Task]) -> Sequence[Width]:
        return [self._draw(task.trial.id, 0) for task in tasks]

    def resized(self, view: base.View, trial: TrialProgress) -> Width:
        if draw(self.seed, "when", trial.id, trial.epoch) > self.often:
            return trial.width
        return self._draw(trial.id, trial.epoch)

    def _draw(self, *key: object) -> Width:
        return self.options[int(len(self.options) * draw(self.seed, *key))]


@dataclass(frozen=True)
class Mixed(Unplanned):
    """A fleet of several offers that changes its mind now and then about which comes first."""

    offers: tuple[Offer, ...]
    instances: int
    seed: int
    consolidates: bool
    name: str = "mixed"

    def max_gpus(self, view: base.View) -> int:
        return max(offer.gpus for offer in self.offers) * self.instances

    def target(self, view: base.View, needed: float) -> Mapping[Offer, int]:
        first = int(draw(self.seed, int(view.now / 60)) * len(self.offers))
        wanted: dict[Offer, int] = {}
        left = self.instances
        for item in (*self.offers[first:], *self.offers[:first]):
            if view.refused(item):
                continue
            wanted[item] = min(left, max(0, math.ceil(needed / item.gpus - 1e-6)))
            left -= wanted[item]
            needed -= wanted[item] * item.gpus
        return wanted or {self.offers[0]: math.ceil(needed)}

    def leaving(self, view: base.View, needed: float) -> Collection[str]:
        wanted = self.target(view, min(needed, self.max_gpus(view)))
        return tuple(surplus_to_empty(view, wanted)) if self.consolidates else ()


class Whimsical(Mixed):
    """A fleet that changes its mind every time that it is asked."""

    name = "whimsical"

    def target(self, view: base.View, needed: float) -> Mapping[Offer, int]:
        size = draw(self.seed, view.now, len(list(view.fleet)), sum(view.held.values()))
        first = self.offers[int(len(self.offers) * draw(self.seed, size))]
        return {first: int((self.instances + 1) * size)}


@dataclass(frozen=True)
class Mess:
    """How a world is unlike the simulator: late, repetitive, deaf."""

    seed: int = 0
    late: float = 0.0  # seconds at most
    twice: float = 0.0  # the share of events that come a second time
    deaf: float = 0.0  # the share of releases that are heard only when they are repeated
    saves_every: int = 1  # 0: never


class MessyWorld:
    """A simulated world that tells of things late, and twice."""

    def __init__(self, world: SimWorld, mess: Mess) -> None:
        self._world, self._mess, self._left = world, mess, EVENTS
        self._queue: list[tuple[float, int, events.Event]] = []
        self._order = itertools.count()
        self._unheard: set[str] = set()
        self._now = 0.0

    def next_event(self) -> events.Event | None:
        self._left -= 1
        assert self._left, f"the run doesn't end: it is at {self._now:.0f} s"
        while True:
            event = self._first()
            if event is None:
                return None
            self._now = max(self._now, event.at)
            self._world.now = self._now
            return replace(event, at=self._now)

    def _first(self) -> events.Event | None:
        """Return the next event of the world's, or one that was held back until now."""
        while True:
            due, heap = self._queue, self._world._heap
            if due and (not heap or due[0][0] <= heap[0][0]):
                return heapq.heappop(due)[2]
            if not heap or self._world._ended:
                return None
            # One by one: past what was overtaken the world would go on to what comes after `due`.
            event = self._world._pop()
            if event is None:
                continue
            if isinstance(event, events.EpochDone) and not self._saved(event.epoch):
                event = replace(event, checkpoint=None)
            if draw(self._mess.seed, "twice", event.at, type(event)) < self._mess.twice:
                self._hold(event, 5.0)
            if not isinstance(
                event,
                events.InstanceGone | events.NodeLost | events.InstanceLaunched | events.TimerFired,
            ):
                return event
            self._hold(
                event, min(self._mess.late, 1.0 if isinstance(event, events.TimerFired) else 60.0)
            )

    def _hold(self, event: events.Event, most: float) -> None:
        at = event.at + most * draw(self._mess.seed, "late", event.at, type(event))
        heapq.heappush(self._queue, (at, next(self._order), replace(event, at=at)))

    def _saved(self, epoch: int) -> bool:
        return self._mess.saves_every > 0 and epoch % self._mess.saves_every == 0

    def apply(self, command: commands.Command) -> None:
        if isinstance(command, commands.Release) and command.intent not in self._unheard:
            self._unheard.add(command.intent)
            if draw(self._mess.seed, "deaf", command.intent) < self._mess.deaf:
                return
        self._world.apply(command)
