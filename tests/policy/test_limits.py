"""A run that is ended: by its limits, by a person, and by a cloud that doesn't answer."""

from types import SimpleNamespace
from typing import cast

import pytest

from cloudtune.model import events
from cloudtune.model.commands import EndRun, Launch, Release, SetTimer, StartTrial, StopTrial
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import Brakes
from cloudtune.policy.limits import LimitKeeper, Spender
from tests.builders import (
    begun,
    by_hand,
    epoch,
    group,
    grouped,
    join,
    launches_of,
    offer,
    scripted,
    staged,
)
from tests.builders.events import launch, returned, tick

ONE_TRIAL = staged((1, 0, 9, 1, 4.0))


def test_the_deadline_leaves_time_to_give_everything_back() -> None:
    policy = scripted(ONE_TRIAL, Limits(deadline=100.0), Brakes(tick=1.0, drain=6.0))
    begun(policy, "i000")
    assert policy.handle(tick(92.9)) == (SetTimer("tick", 93.9),)
    said = policy.handle(tick(93.0))
    assert said == (StopTrial("t00.1"), Release("i000"), SetTimer("cleanup", 123.0))
    assert policy.handle(returned(95.0)) == (EndRun(EndReason.DEADLINE),)


@pytest.mark.parametrize(("last", "ending"), [(9, EndReason.DONE), (8, EndReason.DEADLINE)])
def test_a_winner_that_finished_before_the_stop_has_won(last: int, ending: EndReason) -> None:
    policy = scripted(ONE_TRIAL, Limits(deadline=100.0))
    begun(policy, "i000")
    assert StopTrial("t00.1") in policy.handle(events.RunResumed(200.0)), "behind the deadline"
    for number in range(1, last + 1):
        policy.handle(epoch(200.0, "t00.1", number))
    policy.handle(events.TrialStopped(200.0, "t00.1"))
    gone = events.InstanceGone(201.0, "i000", 201.0, "its lease was over")
    assert policy.handle(gone) == (EndRun(ending),)
    assert (policy.trials["t00"].status == "finished") == (ending is EndReason.DONE)


def test_reports_at_a_runs_end_count_when_it_goes_on() -> None:
    policy = scripted(ONE_TRIAL, Limits(deadline=100.0))
    begun(policy, "i000")
    policy.handle(events.RunResumed(200.0))
    policy.handle(epoch(200.0, "t00.1", 8))
    policy.handle(events.TrialStopped(200.0, "t00.1"))
    policy.handle(events.InstanceGone(201.0, "i000", 201.0, "its lease was over"))
    assert policy.ended
    assert policy.why_over() == ""
    assert policy.handle(events.TimerFired(230.0, "cleanup")) == ()
    (asked,) = launches_of(policy.handle(events.RunContinued(300.0, 600.0, None)))
    assert isinstance(asked, Launch)
    (start,) = [c for c in join(policy, 310.0, asked.intent) if isinstance(c, StartTrial)]
    assert (start.start_epoch, start.until_epoch) == (8, 9)
    assert policy.handle(events.TimerFired(311.0, "cleanup")) == (), "it is the first leg's"
    assert not policy.fleet[asked.intent].released


def test_a_deadline_that_has_passed_already_rents_nothing() -> None:
    policy = scripted(ONE_TRIAL, Limits(deadline=5.0))
    assert policy.handle(events.RunStarted(0.0)) == (EndRun(EndReason.DEADLINE),)


def test_a_lease_lasts_as_long_as_the_budget_pays() -> None:
    policy = scripted(ONE_TRIAL, Limits(budget=0.65))
    begun(policy, "i000", at=10.0)
    until = policy.safe_until()
    assert policy.spent(until) <= 0.65 < policy.spent(until + 1.0)
    assert policy.spent(10.0) == pytest.approx(0.6), "a minute is paid for at once"


def test_the_budget_is_kept_with_everything_given_back() -> None:
    policy = scripted(ONE_TRIAL, Limits(budget=1.00), Brakes(tick=1.0, drain=6.0))
    begun(policy, "i000", at=10.0)
    assert Release("i000") not in policy.handle(tick(103.0)), "until 110 it costs $1.00"
    assert Release("i000") in policy.handle(events.TimerFired(104.0, "brake")), "a tick later"
    assert policy.handle(returned(109.0)) == (EndRun(EndReason.BUDGET),)
    assert policy.spent(200.0) == pytest.approx(0.99)


def test_a_budget_below_one_minimum_charge_rents_nothing() -> None:
    policy = scripted(ONE_TRIAL, Limits(budget=0.59))
    assert policy.handle(events.RunStarted(0.0)) == (EndRun(EndReason.BUDGET),)


def test_a_budget_for_some_of_the_instances_rents_those() -> None:
    policy = scripted(staged((3, 0, 1, 3, 4.0)), Limits(budget=1.50))
    assert launches_of(policy.handle(events.RunStarted(0.0))) == [launch("i000"), launch("i001")]
    assert policy.handle(tick(1.0)) == (SetTimer("tick", 2.0),)


def test_a_lost_instance_is_not_replaced_beyond_the_budget() -> None:
    policy = scripted(staged((2, 0, 9, 2, 4.0)), Limits(budget=1.50))
    begun(policy, "i000", "i001", at=10.0)
    assert policy.handle(events.InstanceGone(12.0, "i000", 12.0, "gone")) == (StopTrial("t00.1"),)
    policy.handle(events.TrialStopped(12.1, "t00.1"))
    assert policy.ending is None, "t01 still has its GPUs"


def test_without_a_minimum_a_request_costs_its_return() -> None:
    by_second = by_hand(grouped(0, 9, group(offer(minimum_seconds=0.0), 1, 4.0, 1)))
    policy = scripted(by_second, Limits(budget=0.07), Brakes(tick=1.0, drain=6.0))
    assert launches_of(policy.handle(events.RunStarted(0.0))) == [launch("i000")]
    policy = scripted(by_second, Limits(budget=0.06), Brakes(tick=1.0, drain=6.0))
    assert policy.handle(events.RunStarted(0.0)) == (EndRun(EndReason.BUDGET),)


def test_interrupted_before_the_start() -> None:
    policy = scripted(ONE_TRIAL)
    assert policy.handle(events.Interrupted(0.0)) == (EndRun(EndReason.INTERRUPTED),)
    assert policy.handle(events.RunStarted(0.1)) == ()


def test_interrupted_before_the_launch_is_answered() -> None:
    policy = scripted(ONE_TRIAL)
    policy.handle(events.RunStarted(0.0))
    assert policy.handle(events.Interrupted(0.5)) == (Release("i000"), SetTimer("cleanup", 30.5))
    refused = events.LaunchFailed(2.0, "i000", "Released", "given back before it was launched")
    assert policy.handle(refused) == (EndRun(EndReason.INTERRUPTED),)
    assert policy.spent(100.0) == 0.0


def test_interrupted_while_the_launch_is_on_its_way() -> None:
    policy = scripted(ONE_TRIAL)
    policy.handle(events.RunStarted(0.0))
    policy.handle(events.Interrupted(0.5))
    assert policy.handle(events.InstanceLaunched(1.0, "i000", "i-000", 0.9)) == ()
    assert policy.handle(events.NodeJoined(5.0, "i000")) == (), "it gets no trial"
    gone = events.InstanceGone(6.0, "i000", 5.9, "released")
    assert policy.handle(gone) == (EndRun(EndReason.INTERRUPTED),)


@pytest.mark.parametrize(
    "before",
    [
        (),
        (events.TrialStarted(11.0, "t00.1"),),
        (events.TrialStarted(11.0, "t00.1"), epoch(12.0, "t00.1", 1)),
        (epoch(12.0, "t00.1", 9),),  # at the rung, the other one trains
    ],
)
def test_interrupted_in_training(before: tuple[events.Event, ...]) -> None:
    policy = scripted(staged((2, 0, 9, 1, 2.0), (1, 9, 18, 1, 4.0)))
    begun(policy, "i000")
    for event in before:
        policy.handle(event)
    assert policy.handle(events.Interrupted(20.0)) == (
        StopTrial("t00.1"),
        StopTrial("t01.1"),
        Release("i000"),
        SetTimer("cleanup", 50.0),
    )
    assert policy.handle(epoch(20.1, "t01.1", 9)) == (), "too late to count"
    assert policy.handle(events.Interrupted(20.2)) == (), "once is enough"
    assert policy.handle(returned(22.0)) == (EndRun(EndReason.INTERRUPTED),)


def test_a_release_that_is_not_confirmed_is_repeated() -> None:
    policy = scripted(ONE_TRIAL)
    begun(policy, "i000")
    assert SetTimer("cleanup", 50.0) in policy.handle(events.Interrupted(20.0))
    again = policy.handle(events.TimerFired(50.0, "cleanup"))
    assert again == (Release("i000"), SetTimer("cleanup", 80.0))
    assert policy.handle(returned(51.0)) == (EndRun(EndReason.INTERRUPTED),)


def test_patience_ends() -> None:
    policy = scripted(ONE_TRIAL, brakes=Brakes(cleanup=30.0, patience=2))
    begun(policy, "i000")
    policy.handle(events.Interrupted(20.0))
    for at in (50.0, 80.0):
        assert policy.handle(events.TimerFired(at, "cleanup"))[0] == Release("i000")
    *_, end = policy.handle(events.TimerFired(110.0, "cleanup"))
    assert end == EndRun(EndReason.INTERRUPTED)


def test_what_was_released_before_the_end_is_cleaned_up_too() -> None:
    policy = scripted(ONE_TRIAL, Limits(budget=1.00))
    begun(policy, "i000", at=10.0)
    lost = policy.handle(events.NodeLost(12.0, "i000", "heartbeat"))
    assert lost == (StopTrial("t00.1"), Release("i000"), SetTimer("cleanup", 42.0))
    assert Release("i000") in policy.handle(events.TimerFired(42.0, "cleanup"))


def test_nothing_is_rented_that_would_join_too_late() -> None:
    """The first took 40 s to join, where none were expected: the next may well take 20 s."""
    for lost_at, again in ((70.0, True), (76.0, False)):
        policy = scripted(ONE_TRIAL, Limits(deadline=100.0), Brakes(tick=1.0, drain=6.0))
        policy.handle(events.RunStarted(0.0))
        policy.handle(events.InstanceLaunched(1.0, "i000", "i-000", 1.0))
        policy.handle(events.NodeJoined(41.0, "i000"))
        said = policy.handle(events.InstanceGone(lost_at, "i000", lost_at, "reclaimed"))
        assert bool(launches_of(said)) == again, f"lost at {lost_at:g} s"


def keeper(limits: Limits, rented: int = 0) -> LimitKeeper:
    """Return what keeps limits at second 0, with instances at a cent a second each."""
    bills = {"usd_per_second": 0.01, "minimum_seconds": 60.0, "granularity_seconds": 10.0}
    item = SimpleNamespace(offer=SimpleNamespace(**bills))
    state = SimpleNamespace(
        limits=limits,
        brakes=Brakes(tick=1.0, drain=6.0),
        charges=Charges(),
        fleet=SimpleNamespace(alive=lambda: [item] * rented),
        now=0.0,
        spent=lambda at: 0.01 * rented * max(60.0, at),
    )
    return LimitKeeper(cast("Spender", state))


@pytest.mark.parametrize(("deadline", "budget"), [(100.0, 50.0), (10_000.0, 1.0)])
def test_the_nearer_of_both_limits_is_looked_at_in_time(deadline: float, budget: float) -> None:
    """The next look is no later than either limit alone would have it."""
    both = keeper(Limits(deadline=deadline, budget=budget), rented=1).next_look()
    alone = (Limits(deadline=deadline), Limits(budget=budget))
    assert both == min(keeper(limits, rented=1).next_look() for limits in alone)


def test_with_nothing_that_bills_a_budget_ends_no_lease() -> None:
    assert keeper(Limits(budget=1.0)).safe_until() == float("inf")
