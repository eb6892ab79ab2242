"""What an elastic run does when its money, its fleet or its trials give trouble, event by event."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cloudtune.model import events
from cloudtune.model.commands import Command, EndRun, Launch, Release, SetTimer, StopTrial
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import EndReason, Slice, Width
from cloudtune.policy.base import Brakes, Metric
from cloudtune.policy.run import RunPolicy
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.base import ByWidth, Task, View
from cloudtune.strategies.fleets import ConstantFleet, NaiveFleet, Unplanned, emptied
from cloudtune.strategies.random_search import RandomSearch
from tests.builders import (
    LINEAR,
    Given,
    begun,
    epoch,
    join,
    offer,
    policy_with,
    profile,
    starts,
    trials,
)
from tests.builders.events import returned, tick

FOUR = offer(4)
RENTABLE = Rentable(FOUR, profile(LINEAR), 4)


@dataclass
class Widths(ByWidth):
    """An allocator by hand: the width of whatever starts, and of what has just reported."""

    start: Width = 1.0
    then: Width = 0.0
    name: str = "by hand"

    def min_width(self, view: View) -> Width:
        return min(1.0, self.start)

    def widths(self, view: View, tasks: Sequence[Task]) -> Sequence[Width]:
        return [self.start] * len(tasks)

    def resized(self, view: View, trial: TrialProgress) -> Width:
        return self.then or trial.width


@dataclass(frozen=True)
class Packed(Unplanned):
    """A fleet that is exactly as large as is needed, and consolidates for it."""

    name: str = "packed"

    def max_gpus(self, view: View) -> int:
        return 8

    def target(self, view: View, needed: float) -> dict[Any, int]:
        return {FOUR: math.ceil(min(needed, 8) / 4 - 1e-6)}

    def leaving(self, view: View, needed: float) -> Collection[str]:
        return tuple(emptied(view, self.target(view, needed)))


class Restless(RandomSearch):
    """Random search that wants to look again at 100 s, and has nothing to do before."""

    anytime = False

    def requests(self, view: View, room: int) -> Any:
        return super().requests(view, room) if view.now >= 100 else ()

    def wake_at(self, view: View) -> float | None:
        return 100.0


def policy(count: int = 2, last: int = 3, **changes: Any) -> RunPolicy:
    """Return a policy that trains n trials, on one instance of four GPUs unless set otherwise."""
    kind, anytime = changes.pop("kind", RandomSearch), changes.pop("anytime", False)
    strategy = kind(Given(trials(count)), max_epochs=last)
    strategy.anytime = anytime
    given: dict[str, Any] = {
        "strategy": strategy,
        "allocator": SameWidth(),
        "fleet_rule": ConstantFleet(FOUR, 1),
        "rentables": (RENTABLE,),
        "max_instances": 4,
        "metric": Metric("score", "max"),
        "limits": Limits(),
        "brakes": Brakes(avoid=15.0),
        "heartbeat": False,
    }
    return policy_with(**{**given, **changes})


def launches(commands: Sequence[Command]) -> list[str]:
    return [c.intent for c in commands if isinstance(c, Launch)]


def alarms(commands: Sequence[Command], name: str) -> list[float]:
    return [c.at for c in commands if isinstance(c, SetTimer) and c.name == name]


@pytest.mark.parametrize("granularity", [0.0, 3600.0])
def test_the_limits_are_looked_at_once_a_tick_at_most(granularity: float) -> None:
    """A budget of exactly the charge that is due leaves nothing, for as long as it covers."""
    rented = replace(FOUR, minimum_seconds=60.0, granularity_seconds=granularity)
    budget = rented.charge(60.0)
    run = policy(
        limits=Limits(None, budget),
        rentables=(replace(RENTABLE, offer=rented),),
        fleet_rule=ConstantFleet(rented, 1),
    )
    begun(run, "i000")
    said, looks = run.handle(events.TimerFired(11.0, "brake")), 0
    while run.ending is None and run.now < 65.0 and looks < 200:
        at = alarms(said, "brake")[-1]
        assert at >= run.now + run.state.brakes.tick
        said, looks = run.handle(events.TimerFired(at, "brake")), looks + 1
        assert granularity or run.spent(run.now + run.state.brakes.drain) <= budget
    assert run.ending is (None if granularity else EndReason.BUDGET)
    assert looks <= 65


def test_a_lost_instance_needs_money_for_another_boot() -> None:
    """It has 20 s to boot, and the rest of the budget pays for less."""
    rented = replace(FOUR, minimum_seconds=0.0)
    run = policy(
        limits=Limits(None, 1.0),
        rentables=(replace(RENTABLE, offer=rented),),
        fleet_rule=ConstantFleet(rented, 1),
    )
    begun(run, "i000")
    said = run.handle(events.InstanceGone(90.0, "i000", 90.0, "taken back"))
    assert said[-1] == EndRun(EndReason.BUDGET)
    assert not launches(said)


@pytest.mark.parametrize("anytime", [False, True])
def test_an_anytime_strategy_ends_well_when_the_money_ends(anytime: bool) -> None:
    run = policy(limits=Limits(None, 1.0), anytime=anytime)
    begun(run, "i000")
    run.handle(epoch(18.0, "t00.1", 1))
    said = run.handle(events.InstanceGone(50.0, "i000", 50.0, "taken back"))
    assert said[-1] == EndRun(EndReason.DONE if anytime else EndReason.BUDGET)


def test_with_nothing_trained_no_limit_is_a_good_end() -> None:
    run = policy(limits=Limits(60.0, None), anytime=True)
    begun(run, "i000")
    assert Release("i000") in run.handle(events.TimerFired(53.0, "brake"))
    assert run.ending is EndReason.DEADLINE


def test_instances_that_never_join_are_not_rented_for_ever() -> None:
    """Each is paid for until it is given up: after as many as `refusals` the run has failed."""
    run = policy(brakes=Brakes(join=60.0, refusals=2))
    run.handle(events.RunStarted(0.0))
    for number, at in enumerate((1.0, 100.0)):
        run.handle(events.InstanceLaunched(at, f"i00{number}", f"i-00{number}", at))
        said = run.handle(tick(at + 61.0))
        assert Release(f"i00{number}") in said
        assert launches(said) == ([f"i00{number + 1}"] if number == 0 else [])
        said = run.handle(returned(at + 63.0, f"i00{number}"))
    assert said == (EndRun(EndReason.FAILED),)


def test_a_strategy_that_waits_rents_nothing_and_isn_t_broke() -> None:
    run = policy(kind=Restless, fleet_rule=NaiveFleet(FOUR, 1))
    assert run.handle(events.RunStarted(0.0)) == (SetTimer("wake", 100.0),)
    assert launches(run.handle(events.TimerFired(100.0, "wake"))) == ["i000"]


def test_a_lost_nodes_instance_is_returned_and_replaced() -> None:
    run = policy(1)
    begun(run, "i000")
    said = run.handle(events.NodeLost(20.0, "i000", "no heartbeat"))
    assert said[:3] == (StopTrial("t00.1"), Release("i000"), Launch("i001", "g.4x", "on-demand"))
    assert run.handle(events.TrialStopped(20.5, "t00.1")) == ()
    assert starts(join(run, 40.0, "i001")) == {"t00.2": (Slice("i-001", 1.0),)}
    assert Release("i000") in run.handle(tick(51.0)), "it was not confirmed"


def test_trials_that_were_lost_alike_go_on_together() -> None:
    run = policy(4)
    begun(run, "i000")
    run.handle(events.NodeLost(20.0, "i000", "no heartbeat"))
    for number in range(4):
        assert run.handle(events.TrialStopped(20.5, f"t0{number}.1")) == ()
    assert set(starts(join(run, 40.0, "i001"))) == {f"t0{number}.2" for number in range(4)}


def test_an_instance_is_emptied_before_it_goes() -> None:
    run = policy(5, fleet_rule=Packed())
    said = begun(run, "i000", "i001")
    assert starts(said)["t04.1"] == (Slice("i-001", 1.0),)
    run.handle(events.TrialFailed(15.0, "t00.1", "boom", ""))
    assert run.handle(epoch(20.0, "t04.1", 1)) == (StopTrial("t04.1"),)
    said = run.handle(events.TrialStopped(21.0, "t04.1"))
    assert starts(said) == {"t04.2": (Slice("i-000", 1.0),)}
    assert Release("i001") in said


@pytest.mark.parametrize(("asked", "given"), [(8.0, 4.0), (3.0, 2.0), (0.5, 1.0)])
def test_a_width_out_of_reach_gives_way_to_a_narrower(asked: Width, given: Width) -> None:
    run = policy(1, allocator=Widths(asked), max_instances=1)
    assert starts(begun(run, "i000")) == {"t00.1": (Slice("i-000", given),)}


def test_a_lost_wide_trial_shrinks_and_grows_again() -> None:
    """Eight GPUs were two instances: its ranks go on as four until there are two again."""
    wide = Rentable(FOUR, profile({4.0: 2.0, 8.0: 1.0}), 4)
    run = policy(
        count=1, allocator=Widths(8.0, 8.0), fleet_rule=ConstantFleet(FOUR, 2), rentables=(wide,)
    )
    begun(run, "i000", "i001")
    run.handle(epoch(20.0, "t00.1", 1))
    said = run.handle(events.InstanceGone(25.0, "i001", 25.0, "taken back"))
    assert (said[0], launches(said)) == (StopTrial("t00.1"), ["i002"])
    assert starts(said) == {"t00.2": (Slice("i-000", 4.0),)}
    join(run, 60.0, "i002")
    assert run.handle(epoch(61.0, "t00.2", 2)) == (StopTrial("t00.2"),)
    said = run.handle(events.TrialStopped(61.1, "t00.2"))
    assert starts(said) == {"t00.3": (Slice("i-000", 4.0), Slice("i-002", 4.0))}


def test_a_run_on_whose_fleet_nothing_fits_ends() -> None:
    """It would pay for an idle instance to the end of its budget."""
    only = Rentable(FOUR, profile({8.0: 1.0}), 4)
    run = policy(1, allocator=Widths(8.0), rentables=(only,))
    run.handle(events.RunStarted(0.0))
    said = join(run, 10.0, "i000")
    assert said == (Release("i000"), SetTimer("cleanup", 40.0))
    assert run.ending is EndReason.FAILED
    assert run.trouble == "no trial that is left to train fits on the rented instances"


def test_the_forecast_is_the_bill_at_deadline_or_the_budget() -> None:
    run = policy(limits=Limits(600.0, 5.0))
    begun(run, "i000")
    assert run.forecast(20.0) == 5.0
    run = policy(limits=Limits(200.0, 50.0))
    begun(run, "i000")
    assert run.forecast(20.0) == pytest.approx(run.spent(200.0))
    run.handle(events.Interrupted(20.0))
    assert run.forecast(20.0) == run.spent(20.0)
