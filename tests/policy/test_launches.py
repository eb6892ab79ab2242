"""Launches that come to nothing: each offer has its own troubles, and nothing goes on for ever."""

import heapq
import itertools

import pytest

from cloudtune.model import events
from cloudtune.model.commands import Launch, SetTimer
from cloudtune.model.plans import Plan
from cloudtune.model.trial import EndReason
from cloudtune.policy.run import RunPolicy
from tests.builders import by_hand, group, grouped, offer, scripted, staged
from tests.builders.events import tick

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
