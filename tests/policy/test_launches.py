"""Launches that come to nothing: each offer has its own troubles, and nothing goes on for ever."""

import heapq
import itertools

import pytest

from cloudtune.model import events
from cloudtune.model.commands import Launch, Release, SetTimer, StopTrial
from cloudtune.model.plans import Plan
from cloudtune.model.trial import EndReason
from cloudtune.policy.run import RunPolicy
from tests.builders import begun, by_hand, epoch, group, grouped, join, offer, scripted, staged
from tests.builders.events import returned, tick

A = offer(1, name="g.1x")
B = offer(1, name="p.1x")
SPOT = offer(4, market="spot")


def refused(at: float, intent: str, *, permanent: bool = False) -> events.LaunchFailed:
    kind: events.RefusalKind = "denied" if permanent else "capacity"
    return events.LaunchFailed(at, intent, "Refused", "no", permanent, kind)


def launches(policy: RunPolicy, event: events.Event) -> list[str]:
    return [c.intent for c in policy.handle(event) if isinstance(c, Launch)]


def dying(plan: Plan) -> tuple[RunPolicy, int]:
    """Play an hour in which every instance ends 5 to 8 s after its launch."""
    policy, order, bought = scripted(plan), itertools.count(1), 0
    coming: list[tuple[float, int, events.Event]] = [(0.0, 0, events.RunStarted(0.0))]
    while coming and not policy.ended:
        at, _, event = heapq.heappop(coming)
        if at > 3600.0:
            break
        for command in policy.handle(event):
            if isinstance(command, SetTimer):
                timer = events.TimerFired(command.at, command.name)
                heapq.heappush(coming, (command.at, next(order), timer))
            elif isinstance(command, Launch):
                bought += 1
                born, end = at + 1.0, at + 6.0 + bought % 4
                came = events.InstanceLaunched(born, command.intent, f"i-{bought}", born)
                gone = events.InstanceGone(end, command.intent, end, "it ended itself")
                heapq.heappush(coming, (born, next(order), came))
                heapq.heappush(coming, (end, next(order), gone))
    return policy, bought


@pytest.mark.parametrize("size", [1, 2, 4])
def test_instances_dying_at_boot_are_bought_in_three_rounds(size: int) -> None:
    policy, bought = dying(staged((4, 0, 2, size, 1.0)))
    assert policy.ended
    assert policy.ending is EndReason.FAILED
    assert 3 <= bought <= 3 * size
    assert "ended before it joined" in policy.trouble


def test_spot_taken_back_at_boot_is_a_lack_of_capacity() -> None:
    policy, _ = dying(by_hand(grouped(0, 2, group(SPOT, 2, 1.0, 4))))
    assert policy.ending is EndReason.NO_CAPACITY


def two_offers() -> RunPolicy:
    policy = scripted(by_hand(grouped(0, 3, group(A, 1, 1.0, 1), group(B, 1, 1.0, 1))))
    policy.handle(events.RunStarted(0.0))
    return policy


def test_one_offer_refused_for_good_leaves_the_other() -> None:
    for first, second in (("i000", "i001"), ("i001", "i000")):
        policy = two_offers()
        policy.handle(refused(1.0, first, permanent=True))
        policy.handle(refused(1.1, second))
        assert policy.ending is None
        # Only the one that may have capacity later is asked for again.
        assert launches(policy, tick(17.0)) == ["i002"]
        assert policy.fleet["i002"].offer == (B if first == "i000" else A)


def test_what_is_refused_for_good_is_not_asked_again() -> None:
    policy = two_offers()
    policy.handle(refused(1.0, "i000", permanent=True))
    join(policy, 5.0, "i001")
    asked = [intent for n in range(100) for intent in launches(policy, tick(20.0 * n + 6.0))]
    assert asked == []
    assert policy.ending is None


def test_a_return_that_none_confirms_is_repeated() -> None:
    policy = scripted(
        by_hand(grouped(0, 1, group(A, 1, 1.0, 1)), grouped(1, 2, group(B, 1, 1.0, 1)))
    )
    begun(policy, "i000")
    said = policy.handle(epoch(20.0, "t00.1", 1))
    assert StopTrial("t00.1") in said
    assert Release("i000") in policy.handle(events.TrialStopped(20.0, "t00.1"))
    assert Release("i000") not in policy.handle(tick(49.0))
    assert Release("i000") in policy.handle(tick(50.0))
    assert Release("i000") not in policy.handle(tick(51.0))
    assert Release("i000") in policy.handle(tick(80.0))


def test_what_the_cloud_takes_is_not_held_against_a_trial() -> None:
    policy = scripted(by_hand(grouped(0, 2, group(SPOT, 1, 4.0, 1))))
    begun(policy, "i000")
    for number in range(6):
        at, intent = 20.0 + 20.0 * number, f"i{number:03d}"
        policy.handle(events.NodeLost(at, intent, "reclaimed"))
        policy.handle(events.InstanceGone(at + 1.0, intent, at + 1.0, "reclaimed"))
        join(policy, at + 10.0, f"i{number + 1:03d}")
    assert policy.trials["t00"].live
    for number in range(4):
        policy.handle(
            events.TrialLost(200.0 + number, policy.trials["t00"].session, "its worker died")
        )
    assert policy.trials["t00"].status == "failed"


def test_a_hand_over_waits_for_a_vcpu_quota() -> None:
    plan = by_hand(grouped(0, 1, group(A, 1, 1.0, 1)), grouped(1, 2, group(B, 1, 1.0, 1)))
    tight = Plan(**{**vars(plan), "vcpu_quotas": {"on-demand g": 16, "on-demand p": 16}})
    shared = by_hand(
        grouped(0, 1, group(A, 1, 1.0, 1)), grouped(1, 2, group(offer(1, name="g.9x"), 1, 1.0, 1))
    )
    bound = Plan(**{**vars(shared), "vcpu_quotas": {"on-demand g": 16}})
    for made, at_once in ((tight, True), (bound, False)):
        policy = scripted(made)
        begun(policy, "i000")
        said = [*policy.handle(epoch(20.0, "t00.1", 1))]
        said += policy.handle(events.TrialStopped(20.0, "t00.1"))
        assert any(isinstance(command, Launch) for command in said) is at_once
        later = policy.handle(returned(22.0))
        assert any(isinstance(command, Launch) for command in later) is not at_once
