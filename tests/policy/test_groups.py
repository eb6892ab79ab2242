"""A run on several offers: from stage to stage, and in one stage."""

from cloudtune.model.commands import Launch, Release, StopTrial
from cloudtune.model.events import RunStarted, TrialStopped
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import Brakes
from cloudtune.policy.run import RunPolicy
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
    starts,
)
from tests.builders.events import dry, returned, tick

SMALL = offer(1, name="g.1x")
BIG = offer(4, 144.0, name="p.4x", market="spot", zone="us-east-1b")
BOTH = grouped(0, 1, group(SMALL, 2, 1.0, 2), group(BIG, 1, 2.0, 2))


def small(intent: str) -> Launch:
    return Launch(intent, "g.1x", "on-demand")


def big(intent: str) -> Launch:
    return Launch(intent, "p.4x", "spot", "us-east-1b")


def test_what_a_lost_group_leaves_goes_to_the_others() -> None:
    policy = scripted(by_hand(BOTH), brakes=Brakes(avoid=1000.0))
    policy.handle(RunStarted(0.0))
    policy.handle(dry(1.0, "i002"))
    assert set(starts(join(policy, 5.0, "i000", "i001"))) == {"t00.1", "t01.1"}
    assert policy.handle(epoch(6.0, "t00.1", 1)) == (StopTrial("t00.1"),)
    assert set(starts(policy.handle(TrialStopped(6.1, "t00.1")))) == {"t02.1"}


def handed_over(max_instances: int, then: int = 1) -> tuple[RunPolicy, list[Launch]]:
    """Return a policy that hands two small instances over for big ones, and what it launches."""
    stages = (grouped(0, 1, group(SMALL, 2, 1.0, 2)), grouped(1, 2, group(BIG, then, 4.0, then)))
    policy = scripted(by_hand(*stages, max_instances=max_instances))
    begun(policy, "i000", "i001")
    policy.handle(epoch(12.0, "t00.1", 1, 0.9))
    said = [*policy.handle(epoch(13.0, "t01.1", 1, 0.8))]
    said += [*policy.handle(TrialStopped(13.1, "t00.1")), *policy.handle(tick(14.0))]
    return policy, [command for command in said if isinstance(command, Launch)]


def test_a_launch_waits_until_there_is_room_for_all() -> None:
    policy, launches = handed_over(3, then=2)
    assert launches == []
    policy.handle(TrialStopped(14.1, "t01.1"))
    assert policy.handle(returned(15.0)) == (big("i002"), big("i003"))


def test_what_is_affordable_is_launched_group_by_group() -> None:
    """A minute of the big one is $2.40, of a small one $0.60."""
    both = by_hand(grouped(0, 1, group(BIG, 1, 4.0, 1), group(SMALL, 2, 1.0, 2)))
    said = scripted(both, Limits(budget=1.30)).handle(RunStarted(0.0))
    assert launches_of(said) == [small("i000"), small("i001")]
    said = scripted(both, Limits(budget=3.10)).handle(RunStarted(0.0))
    assert launches_of(said) == [big("i000"), small("i001")]


CHARGED = by_hand(
    grouped(0, 9, group(SMALL, 2, 1.0, 2)), charges=Charges(usd_per_launch=0.5, usd_per_second=0.01)
)


def test_the_budget_is_kept_with_all_charges() -> None:
    """Two minimum charges and launches are $2.20; every second is a cent more."""
    policy = scripted(CHARGED, Limits(budget=2.285), Brakes(tick=1.0, drain=6.0))
    assert launches_of(policy.handle(RunStarted(0.0))) == [small("i000"), small("i001")]
    assert Release("i000") not in policy.handle(tick(1.4)), "in 7 seconds it is $2.284"
    assert Release("i000") in policy.handle(tick(2.5)), "a tick later"
    assert policy.ending is EndReason.BUDGET
    slower = scripted(CHARGED, Limits(budget=2.285), Brakes(tick=1.0, drain=8.0))
    assert launches_of(slower.handle(RunStarted(0.0))) == [small("i000")], (
        "in 9 seconds it is $2.29"
    )
