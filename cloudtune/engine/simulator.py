"""A world of virtual seconds: the same policy, without a cloud, in milliseconds."""

import bisect
import hashlib
import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, assert_never

from cloudtune.engine.spot_pools import PoolTrace, draw_pool
from cloudtune.model import commands, events
from cloudtune.model.catalog import PoolName, of_pool, pool
from cloudtune.model.plans import Rentable
from cloudtune.model.scaling import Measurement, ScalingProfile

Curve: TypeAlias = Callable[[Mapping[str, object], int], float]
Pace: TypeAlias = Callable[[Mapping[str, object], int], float]


@dataclass
class _Session:
    """A trial's workers: busy with their set-up or an epoch, or waiting at `until`."""

    command: commands.StartTrial
    profile: ScalingProfile
    epoch: int
    until: int
    alive: bool = True
    busy: bool = True
    began: float = 0.0  # when it began to train what it reports next
    seconds: float = math.inf  # of each epoch of that
    ahead: float = 0.0  # epochs of that which an earlier session trained


@dataclass
class _Intent:
    """A request for an instance, and its state."""

    rentable: Rentable
    launched_at: float
    joined_at: float = 0.0
    state: Literal["asked", "dropped", "launched", "releasing", "gone"] = "asked"


@dataclass(frozen=True)
class _Shrinks:
    """A spot pool has room for fewer instances than are held."""

    at: float
    pool: PoolName


# The least factor on epochs: a normal draw could make them take no time.
_MIN_FACTOR = 0.1
_NO_ROOM = "InsufficientInstanceCapacity", "the spot pool has no room just now"
RECLAIMED = "the cloud took the spot instance back"


class SimWorld:
    """Simulates launches, training, interruptions and releases at the speeds of the rentables.

    Durations are normal with the profile's spread, at least zero, from a generator seeded with
    `seed`; without spread they are exactly the profile's means. If a profile may be wrong
    (`speed_error`), all epochs on its instance type are too fast or too slow by one factor, drawn
    once. Metrics come from `metric_of(config, epoch)`; with `pace_of`, an epoch takes
    `pace_of(config, epoch)` times what the profile says. The run begins at `begin`. Starting
    workers take turns on `cores`, if all machines share them.

    Spot instances come and go as the `pools` say: the newest go first, without notice. A pool that
    isn't given is drawn from its possible behaviours (`Rentable.behaviours`); without any, lives
    are exponential by the offer's interruptions.

    With `reports`, ascending, trials report only at these epochs and at the end of what they were
    granted, for all epochs since the last report: its seconds are the mean of these. When a trial
    stops, the epochs since its last report aren't lost, and it continues there. Nor are finished
    parts of an epoch that is saved in `parts`.
    """

    def __init__(
        self,
        rentables: Sequence[Rentable],
        metric_name: str,
        metric_of: Curve,
        seed: int = 0,
        pace_of: Pace | None = None,
        *,
        begin: float = 0.0,
        cores: int | None = None,
        pools: Mapping[PoolName, PoolTrace] | None = None,
        reports: Sequence[int] = (),
        parts: float = 1.0,
    ) -> None:
        self.now = begin
        self._reports = reports
        self._parts = parts
        self._unreported: dict[str, tuple[int, float]] = {}  # by trial: its last, and epochs since
        self._metric_name = metric_name
        self._metric_of = metric_of
        self._pace_of = pace_of
        self._random = random.Random(seed)  # noqa: S311  not for secrets
        self._heap: list[tuple[float, int, events.Event | _Shrinks]] = []
        self._order = itertools.count()
        self.sessions: dict[str, _Session] = {}
        self.intents: dict[str, _Intent] = {}
        # Those of each pool that aren't gone, in the order of their requests.
        self._by_pool: defaultdict[PoolName, dict[str, _Intent]] = defaultdict(dict)
        self._profiles: dict[str, ScalingProfile] = {}  # by instance
        self._timers: dict[str, float] = {}
        self._cores = None if cores is None else [begin] * cores  # a heap: when each is free
        self._ended = False
        errors = {
            rentable.offer.instance_type.name: rentable.profile.speed_error
            for rentable in rentables
        }
        factors = {
            name: max(_MIN_FACTOR, self._random.gauss(1.0, error)) if error > 0 else 1.0
            for name, error in errors.items()
        }
        self._rentables = {
            pool(rentable.offer): replace(
                rentable,
                profile=rentable.profile.slow_down(factors[rentable.offer.instance_type.name]),
            )
            for rentable in rentables
        }
        self.pools = dict(pools or {})
        self._rates = {name: o.offer.interruptions_per_hour for name, o in self._rentables.items()}
        self._shrinks: dict[PoolName, float] = {}  # when the next of each pool is due
        self._draw_pools(random.Random(f"spot pools {seed}"))  # noqa: S311
        self.schedule(events.RunStarted(begin))

    @property
    def rentables(self) -> Sequence[Rentable]:
        """The rentables at their real speeds, as drawn."""
        return tuple(self._rentables.values())

    def _draw_pools(self, chance: random.Random) -> None:
        """Draw one behaviour for each spot pool that has several."""
        for name, rentable in self._rentables.items():
            if not rentable.behaviours or name in self.pools:
                continue
            chosen = chance.choice(rentable.behaviours)
            self._rates[name] = chosen.losses_per_hour
            trace = draw_pool(" ".join(filter(None, name)), chosen, chance)
            if trace is not None:
                self.pools[name] = trace

    def schedule(self, event: events.Event) -> None:
        """Schedule an event, which happens if it still can by then; tests inject faults so."""
        heapq.heappush(self._heap, (event.at, next(self._order), event))

    def next_event(self) -> events.Event | None:
        """Return the next event that is still valid, and move the clock to it."""
        while self._heap and not self._ended:
            event = self._pop()
            if event is not None:
                return event
        return None

    def _pop(self) -> events.Event | None:
        """Let the next thing happen; return it if it is an event and still valid."""
        at, _, due = heapq.heappop(self._heap)
        if isinstance(due, _Shrinks):
            self._shrink(due)
            return None
        event = self._answer(due) if isinstance(due, events.InstanceLaunched) else due
        if not self._holds(event):
            return None
        self.now = at
        self._follow(event)
        return event

    def pass_without(self, until: float) -> list[events.Event]:
        """Let time pass without a controller; return the events that it misses.

        The dead controller's timers are gone too.
        """
        self._timers.clear()
        missed = []
        while self._heap and self._heap[0][0] <= until:
            event = self._pop()
            if event is not None:
                missed.append(event)
        self.now = max(self.now, until)
        return missed

    def go_on(self, event: events.RunContinued) -> None:
        """Resume an ended run at the time of that event, which comes next."""
        self.pass_without(event.at)
        self._ended = False
        self.schedule(event)

    def drop(self, session: str) -> None:
        """Remove a session's workers without an event."""
        if session in self.sessions:
            self.sessions[session].alive = False

    def alive(self) -> list[str]:
        """Return the intents whose instances exist and bill, or will without another request."""
        return [
            name for name, asked in self.intents.items() if asked.state not in {"dropped", "gone"}
        ]

    def _holds(self, event: events.Event) -> bool:
        """Whether nothing has overtaken a scheduled event."""
        match event:
            case (
                events.EpochDone()
                | events.TrialStarted()
                | events.TrialFailed()
                | events.TrialLost()
            ):
                session = self.sessions.get(event.session)
                return session is not None and session.alive
            case events.InstanceLaunched():
                return self._state(event.intent) == "asked"
            case events.LaunchFailed():
                return self._state(event.intent) in {"asked", "dropped"}
            case (
                events.NodeJoined()
                | events.NodeLost()
                | events.InstanceGone()
                | events.InterruptionNotice()
                | events.RebalanceRecommended()
            ):
                return self._state(event.intent) in {"launched", "releasing"}
            case events.TimerFired():
                return self._timers.get(event.name) == event.at
            case events.RunStarted() | events.RunResumed() | events.RunContinued():
                pass
            case events.TrialStopped() | events.Interrupted() | events.InstanceBooting():
                pass
            case _:
                assert_never(event)
        return True

    def _state(self, intent: str) -> str:
        return self.intents[intent].state if intent in self.intents else "unknown"

    def _follow(self, event: events.Event) -> None:
        match event:
            case events.InstanceLaunched():
                self.intents[event.intent].state = "launched"
                self._watch(pool(self.intents[event.intent].rentable.offer), event.at)
            case events.InstanceGone() | events.LaunchFailed():
                asked = self.intents[event.intent]
                asked.state = "gone"
                self._by_pool[pool(asked.rentable.offer)].pop(event.intent, None)
            case events.TrialStarted():
                session = self.sessions[event.session]
                session.busy = False
                self._train(session)
            case events.EpochDone():
                session = self.sessions[event.session]
                session.epoch = event.epoch
                session.busy = False
                self._train(session)
            case events.TrialFailed() | events.TrialLost():
                self.sessions[event.session].alive = False
            case events.TimerFired():
                del self._timers[event.name]
            case (
                events.RunStarted()
                | events.NodeJoined()
                | events.NodeLost()
                | events.TrialStopped()
                | events.Interrupted()
            ):
                pass
            case (
                events.InstanceBooting()
                | events.InterruptionNotice()
                | events.RebalanceRecommended()
            ):
                pass
            case events.RunResumed() | events.RunContinued():
                pass
            case _:
                assert_never(event)

    def _train(self, session: _Session) -> None:
        """Schedule the next report of workers that have an epoch to train and aren't busy."""
        if session.busy or session.epoch >= session.until:
            return
        session.busy = True
        command = session.command
        epoch = session.epoch + 1
        if self._reports:
            epoch = min(session.until, self._next_report(epoch))
        count = epoch - session.epoch
        seconds = self._draw(session.profile.epoch[command.width], count)
        if self._pace_of is not None:
            seconds *= self._pace_of(command.config, epoch)
        metrics = {self._metric_name: self._metric_of(command.config, epoch)}
        checkpoint = f"sim://{command.trial}/{epoch}"
        since, trained = self._unreported.pop(command.trial, (session.epoch, 0.0))
        session.ahead = trained if since == session.epoch else 0.0
        session.began = self.now
        session.seconds = seconds
        done = events.EpochDone(
            at=self.now + (count - session.ahead) * seconds,
            session=command.session,
            epoch=epoch,
            metrics=metrics,
            checkpoint=checkpoint,
            seconds=seconds,
            parallel=command.parallel,
        )
        self.schedule(done)

    def _keep_unreported_epochs(self, session: _Session) -> None:
        """Note what a session has trained since its last report, for the trial's next session."""
        is_kept = bool(self._reports) or self._parts > 1
        if not is_kept or not session.busy or not 0.0 < session.seconds < math.inf:
            return
        epochs = session.ahead + (self.now - session.began) / session.seconds
        finished = math.floor(epochs * self._parts + 1e-9) / self._parts
        if finished > 0:
            self._unreported[session.command.trial] = session.epoch, finished

    def unreported_epochs(self, trial: str) -> int:
        """Return how many epochs a stopped trial has trained since its last report."""
        return int(self._unreported.get(trial, (0, 0.0))[1])

    def _next_report(self, epoch: int) -> int:
        """Return the first epoch from this one on at which trials report."""
        index = bisect.bisect_left(self._reports, epoch)
        return self._reports[index] if index < len(self._reports) else epoch

    def _draw(self, measured: Measurement, count: int = 1) -> float:
        """Return the mean of `count` durations."""
        if measured.sd == 0:
            return measured.mean
        return max(0.0, self._random.gauss(measured.mean, measured.sd / math.sqrt(count)))

    def apply(self, command: commands.Command) -> None:
        match command:
            case commands.Launch():
                self._launch(command)
            case commands.Release():
                self._release(command.intent)
            case commands.StartTrial():
                self._start(command)
            case commands.ExtendTrial():
                session = self.sessions[command.session]
                session.until = max(session.until, command.until_epoch)
                self._train(session)
            case commands.StopTrial():
                session = self.sessions[command.session]
                if session.alive:
                    session.alive = False
                    self._keep_unreported_epochs(session)
                    self.schedule(events.TrialStopped(self.now, command.session))
            case commands.SetTimer():
                self._timers[command.name] = command.at
                self.schedule(events.TimerFired(command.at, command.name))
            case commands.PlanAnew() | commands.KeepInstance():
                pass  # they are on record, and nothing is to be done
            case commands.EndRun():
                self._ended = True
            case _:
                assert_never(command)

    def _launch(self, command: commands.Launch) -> None:
        intent = command.intent
        if intent in self.intents:
            return
        rentable = of_pool(self._rentables, command.instance_type, command.market, command.zone)
        instance = f"sim-{intent}"
        profile = rentable.profile
        at = self.now + self._draw(profile.launch)
        joined_at = at + self._draw(profile.boot)
        self.intents[intent] = _Intent(rentable, at, joined_at)
        self._by_pool[pool(rentable.offer)][intent] = self.intents[intent]
        self._profiles[instance] = profile
        self.schedule(events.InstanceLaunched(at, intent, instance, at))
        self.schedule(events.NodeJoined(joined_at, intent))
        name = pool(rentable.offer)
        rate = self._rates[name] / 3600.0
        if rate > 0.0 and name not in self.pools:  # it will be interrupted at some point
            self._take(intent, at + self._random.expovariate(rate), joined_at)

    def _take(self, intent: str, end: float, joined_at: float) -> None:
        if end > joined_at:
            self.schedule(events.NodeLost(end, intent, RECLAIMED))
        self.schedule(events.InstanceGone(end, intent, end, RECLAIMED))

    def _in(self, name: PoolName) -> list[str]:
        """Return the intents with instances in a pool, in the order of their requests."""
        return [
            intent
            for intent, asked in self._by_pool[name].items()
            if asked.state in {"launched", "releasing"}
        ]

    def _answer(
        self, event: events.InstanceLaunched
    ) -> events.InstanceLaunched | events.LaunchFailed:
        """Return a launch, or its refusal if the pool has no room."""
        asked = self.intents.get(event.intent)
        name = None if asked is None else pool(asked.rentable.offer)
        if name is None or name not in self.pools:
            return event
        if len(self._in(name)) < self.pools[name].room(event.at):
            return event
        return events.LaunchFailed(event.at, event.intent, *_NO_ROOM, kind="capacity")

    def _watch(self, name: PoolName, at: float) -> None:
        """Schedule a look at when a pool has room for fewer instances than are held."""
        trace = self.pools.get(name)
        due = math.inf if trace is None else trace.below(len(self._in(name)), at)
        if due < min(math.inf, self._shrinks.get(name, math.inf)):
            self._shrinks[name] = due
            heapq.heappush(self._heap, (due, next(self._order), _Shrinks(due, name)))

    def _shrink(self, due: _Shrinks) -> None:
        """Interrupt the instances that a pool has no room for any more, newest first."""
        if self._shrinks.get(due.pool) != due.at:
            return  # with more instances held, a look was due sooner
        del self._shrinks[due.pool]
        self.now = max(self.now, due.at)
        held = self._in(due.pool)
        for intent in held[self.pools[due.pool].room(due.at) :]:
            self._take(intent, due.at, self.intents[intent].joined_at)
        self._watch(due.pool, due.at)

    def _release(self, intent: str) -> None:
        asked = self.intents.get(intent)
        if asked is None or asked.state not in {"asked", "launched"}:
            return
        at = self.now + self._draw(asked.rentable.profile.release)
        if asked.state == "launched":
            asked.state = "releasing"
            self.schedule(events.InstanceGone(at, intent, at, "released"))
        else:
            asked.state = "dropped"
            self.schedule(events.LaunchFailed(at, intent, "Released", "given back before launch"))

    def _start(self, command: commands.StartTrial) -> None:
        if command.session in self.sessions:
            return
        profile = self._profiles[command.placement[0].instance]
        delay = profile.start if command.start_epoch == 0 else profile.resize
        session = _Session(command, profile, command.start_epoch, command.until_epoch)
        self.sessions[command.session] = session
        seconds = self._draw(delay)
        begins = self.now
        if self._cores is not None:
            begins = max(begins, self._cores[0])
            heapq.heapreplace(self._cores, begins + seconds)
        self.schedule(events.TrialStarted(begins + seconds, command.session))


def synthetic_metric(mode: str, seed: int) -> Curve:
    """Return seeded learning curves for simulations: made up, the same for the same config.

    A configuration's hash determines its level and pace; its metric approaches the level
    exponentially: 0 … 1 for mode max, mirrored for min.
    """
    # Keyed by id; each entry keeps its configuration alive, so that the id stays unique.
    curves: dict[int, tuple[Mapping[str, object], float, float]] = {}

    def draw_config(config: Mapping[str, object]) -> tuple[Mapping[str, object], float, float]:
        key = f"{seed}:{sorted(config.items())!r}".encode()
        bits = hashlib.sha256(key).digest()
        return config, 0.5 + bits[0] / 512, 0.1 + bits[1] / 512

    def metric(config: Mapping[str, object], epoch: int) -> float:
        curve = curves.get(id(config))
        if curve is None:
            curve = curves[id(config)] = draw_config(config)
        _, level, pace = curve
        value = level * (1 - math.exp(-pace * epoch))
        return value if mode == "max" else 1 - value

    return metric
