"""Measurements in the simulated world."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.model.commands import (
    Command,
    EndRun,
    Launch,
    SetTimer,
    StartTrial,
)
from cloudtune.model.events import (
    EpochDone,
    Event,
    InstanceLaunched,
    NodeJoined,
    RunStarted,
    TrialFailed,
)
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import ScalingProfile
from cloudtune.policy.measure import MeasurePolicy
from tests.builders import NO_LIMITS, SUBLINEAR, offer, profile, trials

TRUTH = profile(SUBLINEAR, launch=1.5, boot=20.0, start=4.25, resize=6.5, release=2.5)


SHARES = {0.25: 26.0, 0.5: 14.0, 1.0: 8.0, 2.0: 5.0, 4.0: 4.0}


SHARED = profile(SHARES, start=4.25, resize=6.5)


WIDE = profile(
    {1.0: 24.0, 2.0: 13.0, 3.0: 9.0, 4.0: 7.0, 6.0: 5.5, 8.0: 6.0, 12.0: 5.0},
    launch=1.5,
    boot=20.0,
    start=4.0,
    resize=6.5,
    release=2.5,
)


def measuring(
    limits: Limits = NO_LIMITS, *, gpus: int = 4, count: int = 8, **more: Any
) -> MeasurePolicy:
    return MeasurePolicy(trials=trials(count), offer=offer(gpus), limits=limits, **more)


def measure(
    policy: MeasurePolicy, *trouble: Event, truth: ScalingProfile = TRUTH, pace: Any = None
) -> tuple[Entry, ...]:
    """Run a measurement in the simulated world, and check that it leaves nothing there."""
    rentables, ledger = (Rentable(policy.offer, truth, 4),), MemoryLedger()
    world = SimWorld(rentables, "score", synthetic_metric("max", 0), pace_of=pace)
    for event in trouble:
        world.schedule(event)
    run(policy, world, ledger)
    *_, last = ledger.entries[-1].commands
    assert isinstance(last, EndRun)
    assert last.reason is policy.ending
    assert policy.fleet.alive() == []
    return tuple(ledger.entries)


def profile_of(policy: MeasurePolicy) -> ScalingProfile:
    return policy.figures.profile("g.4x", "abc", "2026-01-01", "made up")


def starts_in(entries: Sequence[Entry]) -> list[list[StartTrial]]:
    """Return the sessions of each phase, which begin together."""
    result = [[c for c in e.commands if isinstance(c, StartTrial)] for e in entries]
    return [phase for phase in result if phase]


def crews(entries: Sequence[Entry]) -> list[tuple[float, int]]:
    """Return the width and the number of the trials of each phase."""
    return [(phase[0].width, len(phase)) for phase in starts_in(entries)]


def begun(policy: MeasurePolicy) -> dict[str, StartTrial]:
    """Start a measurement, let its instance join at 30 s; returns the sessions started."""
    said = policy.handle(RunStarted(0.0))
    assert said == (SetTimer("tick", 1.0), Launch("i000", "g.4x", "on-demand"))
    assert policy.handle(InstanceLaunched(5.0, "i000", "i-1", 4.0)) == ()
    said = policy.handle(NodeJoined(30.0, "i000"))
    return {c.session: c for c in said if isinstance(c, StartTrial)}


def epoch_done(
    at: float, session: str, number: int, seconds: float, mib: float | None = None
) -> EpochDone:
    return EpochDone(at, session, number, {}, f"{session}/{number}", seconds, memory_mib=mib)


def failing(
    policy: MeasurePolicy,
    fails: Callable[[StartTrial], TrialFailed | None],
    truth: ScalingProfile = TRUTH,
) -> tuple[Entry, ...]:
    """Run a measurement in which each session that `fails` says so does, as soon as it began."""
    ledger = MemoryLedger()
    world = SimWorld((Rentable(policy.offer, truth, 1),), "score", synthetic_metric("max", 0))

    class Failing:
        def handle(self, event: Event) -> tuple[Command, ...]:
            commands = policy.handle(event)
            for command in commands:
                if isinstance(command, StartTrial) and (failed := fails(command)):
                    world.schedule(replace(failed, at=event.at + 1.0, session=command.session))
            return commands

    run(Failing(), world, ledger)
    assert policy.fleet.alive() == []
    return tuple(ledger.entries)


BOOM = TrialFailed(0.0, "", "boom", "Tb")
