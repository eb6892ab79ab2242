"""A world of virtual seconds: the same policy, without a cloud, in milliseconds."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never

from cloudtune.commands import (
    Command,
    EndRun,
    ExtendTrial,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.events import (
    EpochDone,
    Event,
    InstanceGone,
    InstanceLaunched,
    Interrupted,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialLost,
    TrialStarted,
    TrialStopped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudtune.scaling import Measurement, ScalingProfile

    Curve: TypeAlias = Callable[[Mapping[str, object], int], float]


@dataclass
class _Session:
    """A trial's workers: busy with being set up or with an epoch, or waiting at `until`."""

    command: StartTrial
    epoch: int
    until: int
    alive: bool = True
    busy: bool = True


_Intent: TypeAlias = Literal["asked", "dropped", "launched", "releasing", "gone"]
_RUNNING = ("launched", "releasing")


class SimWorld:
    """Plays launches, training and releases at the speeds of a profile.

    Durations are normal with the profile's spread, at least zero, from a generator of our own
    seeded with `seed`; with no spread they are the profile's means exactly. Metrics come from
    `metric_of(config, epoch)`.
    """

    def __init__(
        self, profile: ScalingProfile, metric_name: str, metric_of: Curve, seed: int = 0
    ) -> None:
        self.now = 0.0
        self._profile = profile
        self._metric_name = metric_name
        self._metric_of = metric_of
        self._random = random.Random(seed)  # noqa: S311  not for secrets
        self._heap: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._sessions: dict[str, _Session] = {}
        self._intents: dict[str, _Intent] = {}
        self._timers: dict[str, float] = {}
        self._ended = False
        self.schedule(RunStarted(0.0))

    def schedule(self, event: Event) -> None:
        """Let an event happen at its time, if it still can by then; tests inject trouble so."""
        heapq.heappush(self._heap, (event.at, next(self._order), event))

    def next_event(self) -> Event | None:
        """Return the next event that still holds, and move the clock to it."""
        while self._heap and not self._ended:
            at, _, event = heapq.heappop(self._heap)
            if self._holds(event):
                self.now = at
                self._follow(event)
                return event
        return None

    def _holds(self, event: Event) -> bool:
        """Whether nothing has overtaken a scheduled event."""
        match event:
            case EpochDone() | TrialStarted() | TrialFailed() | TrialLost():
                session = self._sessions.get(event.session)
                return session is not None and session.alive
            case InstanceLaunched():
                return self._intents[event.intent] == "asked"
            case LaunchFailed():
                return self._intents.get(event.intent) in {"asked", "dropped"}
            case NodeJoined() | NodeLost() | InstanceGone():
                return self._intents.get(event.intent) in _RUNNING
            case TimerFired():
                return self._timers.get(event.name) == event.at
            case RunStarted() | TrialStopped() | Interrupted():
                return True
            case _:
                assert_never(event)

    def _follow(self, event: Event) -> None:
        match event:
            case InstanceLaunched():
                self._intents[event.intent] = "launched"
            case InstanceGone() | LaunchFailed():
                self._intents[event.intent] = "gone"
            case TrialStarted():
                session = self._sessions[event.session]
                session.busy = False
                self._train(session)
            case EpochDone():
                session = self._sessions[event.session]
                session.epoch, session.busy = event.epoch, False
                self._train(session)
            case TrialFailed() | TrialLost():
                self._sessions[event.session].alive = False
            case TimerFired():
                del self._timers[event.name]
            case RunStarted() | NodeJoined() | NodeLost() | TrialStopped() | Interrupted():
                pass
            case _:
                assert_never(event)

    def _train(self, session: _Session) -> None:
        """Schedule the next epoch of workers that have one to train and aren't busy."""
        if session.busy or session.epoch >= session.until:
            return
        session.busy = True
        command, epoch = session.command, session.epoch + 1
        seconds = self._draw(self._profile.epoch[command.width])
        metrics = {self._metric_name: self._metric_of(command.config, epoch)}
        checkpoint = f"sim://{command.trial}/{epoch}"
        at = self.now + seconds
        in_sync = True if command.width > 1 else None
        self.schedule(EpochDone(at, command.session, epoch, metrics, checkpoint, seconds, in_sync))

    def _draw(self, measured: Measurement) -> float:
        if measured.sd == 0:
            return measured.mean
        return max(0.0, self._random.gauss(measured.mean, measured.sd))

    def apply(self, command: Command) -> None:
        """Schedule what comes of a command."""
        match command:
            case Launch():
                self._launch(command.intent)
            case Release():
                self._release(command.intent)
            case StartTrial():
                self._start(command)
            case ExtendTrial():
                session = self._sessions[command.session]
                session.until = max(session.until, command.until_epoch)
                self._train(session)
            case StopTrial():
                self._stop(command.session)
            case SetTimer():
                self._timers[command.name] = command.at
                self.schedule(TimerFired(command.at, command.name))
            case EndRun():
                self._ended = True
            case _:
                assert_never(command)

    def _launch(self, intent: str) -> None:
        if intent in self._intents:
            return
        self._intents[intent] = "asked"
        at = self.now + self._draw(self._profile.launch)
        self.schedule(InstanceLaunched(at, intent, f"sim-{intent}", at))
        self.schedule(NodeJoined(at + self._draw(self._profile.boot), intent))

    def _release(self, intent: str) -> None:
        at = self.now + self._draw(self._profile.release)
        if self._intents.get(intent) == "launched":
            self._intents[intent] = "releasing"
            self.schedule(InstanceGone(at, intent, at, "released"))
        elif self._intents.get(intent) == "asked":
            self._intents[intent] = "dropped"
            self.schedule(LaunchFailed(at, intent, "Released", "given back before launch"))

    def _start(self, command: StartTrial) -> None:
        if command.session in self._sessions:
            return
        delay = self._profile.start if command.start_epoch == 0 else self._profile.resize
        session = _Session(command, command.start_epoch, command.until_epoch)
        self._sessions[command.session] = session
        self.schedule(TrialStarted(self.now + self._draw(delay), command.session))

    def _stop(self, session: str) -> None:
        if self._sessions[session].alive:
            self._sessions[session].alive = False
            self.schedule(TrialStopped(self.now, session))


def synthetic_metric(mode: str, seed: int) -> Curve:
    """Return seeded learning curves for simulations: made up, the same for the same config.

    Each configuration gets a level and a pace from a hash of it, and approaches the level
    exponentially: 0 … 1 for mode max, mirrored for min.
    """

    def metric(config: Mapping[str, object], epoch: int) -> float:
        key = f"{seed}:{sorted(config.items())!r}".encode()
        bits = hashlib.sha256(key).digest()
        level, pace = 0.5 + bits[0] / 512, 0.1 + bits[1] / 512
        value = level * (1 - math.exp(-pace * epoch))
        return value if mode == "max" else 1 - value

    return metric
