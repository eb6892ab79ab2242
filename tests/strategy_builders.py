"""Plays a strategy: small jobs on a simulated fleet, with trouble on the way where it is wanted."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from cloudtune.bookkeeping import Brakes, Metric
from cloudtune.commands import StartTrial, StopTrial
from cloudtune.elastic import ElasticPolicy
from cloudtune.engine import run
from cloudtune.events import (
    EpochDone,
    InstanceGone,
    InstanceLaunched,
    LaunchFailed,
    TrialFailed,
    TrialLost,
    TrialStopped,
)
from cloudtune.job import drain_seconds
from cloudtune.ledger import MemoryLedger
from cloudtune.plan import Limits, Rentable
from cloudtune.planners.fleets import ConstantFleet, NaiveFleet
from cloudtune.planners.widths import SameWidth
from cloudtune.simulator import SimWorld
from cloudtune.tactics import STRATEGIES, Setup
from cloudtune.trial import Trial
from tests.builders import LINEAR, NO_LIMITS, offer, profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.commands import Command
    from cloudtune.events import Event
    from cloudtune.ledger import Entry
    from cloudtune.scaling import ScalingProfile
    from cloudtune.strategies.base import Allocator, FleetRule, Sampler, Strategy, TrialGroup, View
    from cloudtune.trial import Mode, TrialId

    Build: TypeAlias = Callable[[Sampler, "Game"], Strategy]
    Trouble: TypeAlias = Callable[[str, int, int], Literal["", "failed", "lost"]]


class Given:
    """A sampler of given trials; it notes what it is told, and refuses to be told it twice."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = iter(trials)
        self.told: dict[tuple[TrialId, int], float | None] = {}
        self.failed: list[TrialId] = []

    def ask(self) -> Trial | None:
        return next(self._left, None)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        if value is None:
            assert trial.id not in self.failed
            self.failed.append(trial.id)
            return
        assert (trial.id, epoch) not in self.told, f"told of {trial.id} at {epoch} twice"
        self.told[trial.id, epoch] = value


def numbered(count: int, caps: Mapping[int, int] | None = None) -> tuple[Trial, ...]:
    """Return trials t000, t001 …, some with a last epoch of their own."""
    caps = caps or {}
    return tuple(Trial(f"t{n:03d}", {"x": n}, caps.get(n)) for n in range(count))


def level(number: int, epoch: int, seed: int = 0) -> float:
    """Return a made-up metric, more is better: curves that rise and cross, no two alike."""
    bits = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    top, pace = 0.3 + bits[0] / 400 + bits[1] / 1e5, 0.05 + bits[2] / 300
    return top * (1 - math.exp(-pace * epoch))


@dataclass(frozen=True)
class Game:
    """All that a strategy is played in; `metric` is of a trial's number and an epoch."""

    trials: tuple[Trial, ...] = field(default_factory=lambda: numbered(12))
    metric: Callable[[int, int], float] = level
    mode: Mode = "max"
    gpus: int = 4
    instances: int = 2
    naive: bool = False
    width: float = 1.0
    profile: ScalingProfile = field(default_factory=lambda: profile(LINEAR))
    limits: Limits = NO_LIMITS
    most_concurrent: int | None = None
    target: float | None = None
    checked: bool = True
    seed: int = 0
    allocator: Callable[[], Allocator] | None = None  # the same width for all, if none is given
    saves_every: int = 1
    gone: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)  # for good
    trouble: Trouble = lambda _trial, _session, _epoch: ""

    def but(self, **changes: object) -> Game:
        """Return the game with some things changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def mirrored(self) -> Game:
        """Return the game in which less is better, and all else is the same."""
        mode: Mode = "min" if self.mode == "max" else "max"
        target = None if self.target is None else -self.target
        return self.but(metric=lambda n, e: -self.metric(n, e), mode=mode, target=target)

    @property
    def offer(self) -> Offer:
        """What is rented."""
        return offer(self.gpus, name="g.4x")

    def policy(self, build: Build, sampler: Sampler | None = None) -> ElasticPolicy:
        """Return a fresh policy, with a fresh strategy."""
        fleet: FleetRule = (NaiveFleet if self.naive else ConstantFleet)(self.offer, self.instances)
        return ElasticPolicy(
            strategy=Watched(build(sampler or Given(self.trials), self)),
            allocator=self.allocator() if self.allocator else SameWidth(self.width),
            fleet_rule=fleet,
            rentables=(self.rentable,),
            max_instances=self.instances + 1,
            metric=Metric("score", self.mode),
            limits=self.limits,
            brakes=Brakes(drain=drain_seconds(self.profile)),
            most_concurrent=self.most_concurrent,
            target=self.target,
            heartbeat=False,
            checked=self.checked,
        )

    @property
    def rentable(self) -> Rentable:
        """What may be rented."""
        return Rentable(self.offer, self.profile, self.instances)

    def world(self) -> SimWorld:
        """Return a fresh world."""

        def metric_of(config: Mapping[str, object], epoch: int) -> float:
            number = config["x"]
            assert isinstance(number, int)
            return self.metric(number, epoch)

        return SimWorld((self.rentable,), "score", metric_of, self.seed)


def by_name(
    name: str, *, min_epochs: int = 1, max_epochs: int = 9, eta: int = 3, trials: int | None = None
) -> Build:
    """Return a way to build a strategy as the command line would; `trials` as in `Setup`."""

    def build(sampler: Sampler, game: Game) -> Strategy:
        setup = Setup(
            (game.rentable,),
            game.instances,
            game.limits,
            game.mode,
            min_epochs,
            max_epochs,
            eta,
            trials,
            game.seed,
        )
        return STRATEGIES[name](setup, sampler)

    return build


class Watched:
    """A strategy whose every answer is checked against what the interface promises."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.name, self.anytime = inner.name, inner.anytime
        self.judge, self.ended = inner.judge, inner.ended
        self.retract, self.wake_at, self.done = inner.retract, inner.wake_at, inner.done
        self.groups: list[TrialGroup] = []

    def requests(self, view: View, room: int) -> Sequence[TrialGroup]:
        groups = self.inner.requests(view, room)
        tasks = [task for group in groups for task in group.tasks]
        assert all(group.tasks for group in groups)
        assert len(tasks) <= room, f"{len(tasks)} tasks for {room} places"
        assert len({task.trial.id for task in tasks}) == len(tasks)
        for task in tasks:
            known = view.trials.get(task.trial.id)
            assert known is None or known.status in {"parked", "at rung"}, known
            assert known is None or task.until > known.epoch
            assert task.trial.epochs is None or task.until <= task.trial.epochs
        self.groups += groups
        return groups


@dataclass(frozen=True)
class Play:
    """A strategy that has been played to its end."""

    game: Game
    policy: ElasticPolicy
    sampler: Given
    entries: tuple[Entry, ...]

    @property
    def commands(self) -> list[tuple[Command, ...]]:
        """What was asked for at each event."""
        return [entry.commands for entry in self.entries]

    @property
    def epochs(self) -> dict[TrialId, int]:
        """How far each trial came."""
        return {name: max(t.history, default=0) for name, t in self.policy.trials.items()}

    @property
    def starts(self) -> list[StartTrial]:
        """The sessions that were started, in order."""
        return [c for commands in self.commands for c in commands if isinstance(c, StartTrial)]

    def groups(self) -> list[TrialGroup]:
        """Return all that was asked for."""
        watched = self.policy.strategy
        assert isinstance(watched, Watched)
        return watched.groups

    def most_at_once(self) -> int:
        """Return how many sessions were alive at once, at most."""
        alive: set[str] = set()
        most = 0
        for entry in self.entries:
            if isinstance(entry.event, TrialStopped | TrialFailed | TrialLost):
                alive.discard(entry.event.session)
            elif isinstance(entry.event, InstanceGone):  # what sat there is gone at once
                alive -= {c.session for c in entry.commands if isinstance(c, StopTrial)}
            alive |= {c.session for c in entry.commands if isinstance(c, StartTrial)}
            most = max(most, len(alive))
        return most

    def bill(self) -> tuple[float, float]:
        """Return when the last instance was gone and what all cost, by the cloud's word alone."""
        begins: dict[str, float] = {}
        seconds = dollars = 0.0
        for entry in self.entries:
            match entry.event:
                case InstanceLaunched():
                    begins[entry.event.intent] = entry.event.launched_at
                case InstanceGone():
                    seconds = max(seconds, entry.event.gone_at)
                    lived = entry.event.gone_at - begins.pop(entry.event.intent)
                    dollars += self.game.offer.charge(lived)
                case _:
                    pass
        assert not begins, f"never given back: {begins}"
        return seconds, dollars

    def parts(self, prefix: str) -> dict[str, int]:
        """Return how many tasks each group of such a name asked for, each trial once."""
        found: dict[str, set[TrialId]] = {}
        for group in self.groups():
            if group.name.startswith(prefix):
                found.setdefault(group.name, set()).update(t.trial.id for t in group.tasks)
        return {name: len(trials) for name, trials in found.items()}


class _Troubled:
    """A world with trouble, that gives up on a run that goes on and on."""

    def __init__(self, game: Game, most: int = 50_000) -> None:
        self._game, self._world, self._left = game, game.world(), most
        for intent, at in game.gone.items():
            self._world.schedule(InstanceGone(at, intent, at, "taken back"))
        for intent, at in game.refused.items():
            self._world.schedule(LaunchFailed(at, intent, "NoMore", "none left", permanent=True))

    def next_event(self) -> Event | None:
        self._left -= 1
        assert self._left, f"the run doesn't end: it is at {self._world.now:.0f} s"
        event = self._world.next_event()
        if isinstance(event, EpochDone):
            return self._trouble(event)
        return event

    def _trouble(self, event: EpochDone) -> Event:
        trial, _, session = event.session.rpartition(".")
        kind = self._game.trouble(trial, int(session), event.epoch)
        if kind == "lost":
            self._world.schedule(TrialLost(event.at, event.session, "gone"))
        elif kind == "failed":
            self._world.schedule(TrialFailed(event.at, event.session, "boom", ""))
        return replace(event, checkpoint=None) if event.epoch % self._game.saves_every else event

    def apply(self, command: Command) -> None:
        self._world.apply(command)


def play(build: Build, game: Game) -> Play:
    """Play a strategy to its end, checking each answer."""
    sampler, ledger = Given(game.trials), MemoryLedger()
    policy = game.policy(build, sampler)
    run(policy, _Troubled(game), ledger)
    assert policy.ended, f"the run stands still at {policy.now:.0f} s: {_still(policy)}"
    return Play(game, policy, sampler, tuple(ledger.entries))


def _still(policy: ElasticPolicy) -> Counter[str]:
    return Counter(trial.status for trial in policy.trials.values())


def table(rows: Mapping[int, Sequence[float]]) -> Callable[[int, int], float]:
    """Return a metric by hand: of each trial, epoch by epoch; the last one for all that follow."""
    return lambda number, epoch: rows[number][min(epoch, len(rows[number])) - 1]


def final(values: Sequence[float]) -> Callable[[int, int], float]:
    """Return a metric by hand that is the same at every epoch."""
    return lambda number, _epoch: values[number]
