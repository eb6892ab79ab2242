"""What an elastic run does when its money, its fleet or its trials give trouble, event by event."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cloudtune.model import events
from cloudtune.model.commands import Command, EndRun, Launch, Release, SetTimer
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import EndReason, Slice, Width
from cloudtune.policy.base import Brakes, Metric
from cloudtune.policy.run import RunPolicy
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.base import ByWidth, Task, View
from cloudtune.strategies.fleets import ConstantFleet, NaiveFleet
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


@pytest.mark.parametrize("anytime", [False, True])
def test_an_anytime_strategy_ends_well_when_the_money_ends(anytime: bool) -> None:
    run = policy(limits=Limits(None, 1.0), anytime=anytime)
    begun(run, "i000")
    run.handle(epoch(18.0, "t00.1", 1))
    said = run.handle(events.InstanceGone(50.0, "i000", 50.0, "taken back"))
    assert said[-1] == EndRun(EndReason.DONE if anytime else EndReason.BUDGET)


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


def test_an_instance_has_twice_what_a_boot_takes_to_join() -> None:
    """As measured, or as another one took in this run; while it is queued, as long as ever."""
    quick = Rentable(FOUR, profile(LINEAR, launch=2.0, boot=60.0), 4)
    run = policy(rentables=(quick,), max_instances=3, fleet_rule=ConstantFleet(FOUR, 2))
    run.handle(events.RunStarted(0.0))
    run.handle(events.InstanceLaunched(2.0, "i000", "i-000", 2.0))
    assert Release("i000") not in run.handle(tick(123.0))
    said = run.handle(tick(125.0))
    assert Release("i000") in said
    assert launches(said) == ["i002"], "another one is asked for at once"
    assert run.trouble == "i-000 has not joined in 2m 4s"
    run.handle(events.InstanceGone(126.0, "i000", 126.0, "returned", "no route to host"))
    assert run.trouble.endswith("no route to host")
    join(run, 300.0, "i002")
    said = run.handle(tick(590.0))
    assert Release("i001") not in said, "it was never launched"
    assert Release("i001") in run.handle(tick(601.0))
    launched = events.InstanceLaunched(610.0, "i003", "i-003", 610.0)
    run.handle(launched)
    assert Release("i003") not in run.handle(tick(900.0)), "i002 took 175 s"
    assert Release("i003") in run.handle(tick(960.0))


def test_after_the_second_no_show_another_zone_is_asked() -> None:
    run = policy(brakes=Brakes(join=60.0), zones=("a", "b"), max_instances=1)
    assert [launch.zone for launch in asked_after_no_shows(run)] == ["", "a"]


def asked_after_no_shows(run: RunPolicy) -> list[Launch]:
    """Return what is asked for in place of two instances that never join."""
    run.handle(events.RunStarted(0.0))
    launches: list[Launch] = []
    for number in range(2):
        at = 100.0 * number + 1.0
        run.handle(events.InstanceLaunched(at, f"i00{number}", f"i-00{number}", at))
        said = [
            *run.handle(tick(at + 90.0)),
            *run.handle(returned(at + 91.0, f"i00{number}")),
        ]
        launches += [command for command in said if isinstance(command, Launch)]
    return launches


def test_instances_of_trials_that_span_them_are_asked_for_in_one_zone() -> None:
    """In another one only if that refuses; what is free to choose is left to the cloud."""
    for widths, expected in [({4.0: 1.0, 8.0: 0.7}, ["a", "a", "b"]), (LINEAR, ["", "", "a"])]:
        rented = Rentable(FOUR, profile(widths), 4)
        run = policy(
            rentables=(rented,),
            zones=("a", "b"),
            max_instances=4,
            fleet_rule=ConstantFleet(FOUR, 2),
        )
        said = [*run.handle(events.RunStarted(0.0))]
        dry = events.LaunchFailed(
            2.0, "i001", "InsufficientInstanceCapacity", "none", kind="capacity"
        )
        said += run.handle(dry)
        assert [it.zone for it in said if isinstance(it, Launch)] == expected


def test_after_the_second_no_show_another_type_is_asked() -> None:
    other = offer(4, 20.0, name="other.4x")
    rule = ConstantFleet(FOUR, 1, (other,))
    rentables = (RENTABLE, Rentable(other, profile(LINEAR, name="other.4x"), 4))
    run = policy(brakes=Brakes(join=60.0), rentables=rentables, max_instances=1, fleet_rule=rule)
    types = [launch.instance_type for launch in asked_after_no_shows(run)]
    assert types == [FOUR.instance_type.name, "other.4x"]


def test_a_strategy_that_waits_rents_nothing_and_isn_t_broke() -> None:
    run = policy(kind=Restless, fleet_rule=NaiveFleet(FOUR, 1))
    assert run.handle(events.RunStarted(0.0)) == (SetTimer("wake", 100.0),)
    assert launches(run.handle(events.TimerFired(100.0, "wake"))) == ["i000"]


@pytest.mark.parametrize(("asked", "given"), [(8.0, 4.0), (3.0, 2.0), (0.5, 1.0)])
def test_a_width_out_of_reach_gives_way_to_a_narrower(asked: Width, given: Width) -> None:
    run = policy(1, allocator=Widths(asked), max_instances=1)
    assert starts(begun(run, "i000")) == {"t00.1": (Slice("i-000", given),)}


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
