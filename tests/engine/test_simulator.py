import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from cloudtune.engine.simulator import SimWorld
from cloudtune.model.commands import (
    Command,
    EndRun,
    ExtendTrial,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.model.events import (
    EpochDone,
    Event,
    InstanceGone,
    InstanceLaunched,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    RunStarted,
    TimerFired,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.plans import Rentable
from cloudtune.model.trial import EndReason, Slice
from tests.builders import LINEAR, offer, profile
from tests.contracts.world import SETTING, WorldContract

LAUNCH = Launch("i000", "g.4x", "on-demand")
START = StartTrial("t00.1", "t00", {}, 4.0, (Slice("sim-i000", 4.0),), None, 0, 2)


def by_epoch(_: Mapping[str, object], epoch: int) -> float:
    return epoch / 10


def world(spread: float = 0.0, seed: int = 0) -> SimWorld:
    """Return a world past its start: launch 1 s, boot 20, start 4, resize 6, release 2."""
    made = SimWorld((rentable(spread=spread),), "score", by_epoch, seed)
    assert made.next_event() == RunStarted(0.0)
    return made


def rentable(*, launch: float = 1.0, boot: float = 20.0, spread: float = 0.0) -> Rentable:
    return Rentable(offer(), profile(LINEAR, launch=launch, boot=boot, spread=spread), 1)


def running(reports: Sequence[int] = (), parts: float = 1.0) -> SimWorld:
    """Return a world that an instance has joined already, at 0 s."""
    nodes = (rentable(launch=0.0, boot=0.0),)
    made = SimWorld(nodes, "score", by_epoch, reports=reports, parts=parts)
    made.apply(LAUNCH)
    kinds = [type(made.next_event()) for _ in range(3)]
    assert kinds == [RunStarted, InstanceLaunched, NodeJoined]
    return made


def after(made: SimWorld, *commands: Command, count: int | None = None) -> list[Event]:
    """Apply commands and return what comes of them: all, or the next few events."""
    for command in commands:
        made.apply(command)
    events: list[Event] = []
    while count is None or len(events) < count:
        event = made.next_event()
        if event is None:
            break
        events.append(event)
    return events


class TestSimWorld(WorldContract):
    def world(self) -> SimWorld:
        return SETTING.world()


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
class TestCommands:
    """What comes of each command; applying it twice changes nothing."""

    def test_launch(self, times: int) -> None:
        assert after(world(), *[LAUNCH] * times) == [
            InstanceLaunched(1.0, "i000", "sim-i000", 1.0),
            NodeJoined(21.0, "i000"),
        ]

    def test_release(self, times: int) -> None:
        made = world()
        after(made, LAUNCH)
        gone = InstanceGone(23.0, "i000", 23.0, "released")
        assert after(made, *[Release("i000")] * times) == [gone]
        assert after(made, Release("i000")) == [], "nor later"

    def test_release_before_the_launch_is_answered(self, times: int) -> None:
        made = world()
        refused = LaunchFailed(2.0, "i000", "Released", "given back before launch")
        assert after(made, LAUNCH, *[Release("i000")] * times) == [refused]
        assert after(made, LAUNCH) == [], "an intent is spent"

    def test_release_of_what_was_never_asked_for(self, times: int) -> None:
        assert after(world(), *[Release("i007")] * times) == []

    def test_start(self, times: int) -> None:
        started, first, second = after(running(), *[START] * times)
        assert started == TrialStarted(4.0, "t00.1")
        assert first == EpochDone(6.0, "t00.1", 1, {"score": 0.1}, "sim://t00/1", 2.0)
        assert second == EpochDone(8.0, "t00.1", 2, {"score": 0.2}, "sim://t00/2", 2.0)

    def test_extend(self, times: int) -> None:
        made = running()
        after(made, START)
        events = after(made, *[ExtendTrial("t00.1", 4)] * times)
        assert [(e.at, e.epoch) for e in events if isinstance(e, EpochDone)] == [(10, 3), (12, 4)]
        assert len(events) == 2

    def test_stop(self, times: int) -> None:
        made = running()
        after(made, START, count=2)
        assert after(made, *[StopTrial("t00.1")] * times) == [TrialStopped(6.0, "t00.1")]
        assert after(made, StopTrial("t00.1"), ExtendTrial("t00.1", 9)) == []

    def test_timer(self, times: int) -> None:
        assert after(world(), *[SetTimer("tick", 5.0)] * times) == [TimerFired(5.0, "tick")]

    def test_end(self, times: int) -> None:
        made = world()
        assert after(made, LAUNCH, *[EndRun(EndReason.DONE)] * times) == []


def test_a_timer_set_again_fires_at_its_new_time_only() -> None:
    later = after(world(), SetTimer("tick", 5.0), SetTimer("tick", 7.0), SetTimer("other", 6.0))
    assert later == [TimerFired(6.0, "other"), TimerFired(7.0, "tick")]


def test_with_spread_a_seed_decides_and_no_duration_is_negative() -> None:
    def times(seed: int, spread: float) -> list[float]:
        return [event.at for event in after(world(spread, seed), LAUNCH, START)]

    assert times(1, 0.2) == times(1, 0.2) != times(2, 0.2)
    assert all(at >= 0.0 for seed in range(50) for at in times(seed, 5.0))


def lives(per_hour: float, count: int = 400, seed: int = 0) -> list[float]:
    """Return how long instances live when they aren't given back."""
    taken_back = offer(market="spot", interruptions_per_hour=per_hour)
    shy = Rentable(taken_back, profile(LINEAR, launch=0.0, boot=60.0), count)
    made = SimWorld((shy,), "score", by_epoch, seed)
    launches = [Launch(f"i{n:03d}", "g.4x", "spot") for n in range(count)]
    events = after(made, *launches)
    lost = {e.intent: e.at for e in events if isinstance(e, NodeLost)}
    gone = {e.intent: e.at for e in events if isinstance(e, InstanceGone)}
    joined = {e.intent for e in events if isinstance(e, NodeJoined)}
    assert lost == {intent: at for intent, at in gone.items() if intent in joined}
    return sorted(gone.values())


def test_spot_instances_live_for_a_time_that_none_knows() -> None:
    result = lives(4.0)
    assert len(result) == 400
    assert sum(result) / 400 == pytest.approx(900.0, rel=0.15), "four an hour"
    assert result[200] == pytest.approx(900.0 * math.log(2), rel=0.2), "exponential"
    assert result == lives(4.0) != lives(4.0, seed=1)
    assert lives(0.0) == []


@pytest.mark.parametrize(
    ("reports", "parts", "kept"), [((), 1.0, 0.0), ((1, 5), 1.0, 2.0), ((1, 5), 4.0, 2.25)]
)
def test_a_stopped_trial_continues_after_what_it_has_not_reported(
    reports: tuple[int, ...], parts: float, kept: float
) -> None:
    made = running(reports, parts)
    started = after(made, replace(START, until_epoch=5), count=2 if reports else 4)
    last = started[-1]
    assert isinstance(last, EpochDone)
    epoch = last.seconds
    reported = last.epoch
    # 2.4 epochs after its first report; without `reports` it has reported two of these.
    stop_at = last.at + (2.4 if reports else 0.4) * epoch
    after(made, SetTimer("stop", stop_at), count=1)
    (stopped,) = after(made, StopTrial("t00.1"), count=1)
    assert stopped == TrialStopped(stop_at, "t00.1")
    again = replace(START, session="t00.2", start_epoch=reported, until_epoch=5)
    *_, end = after(made, again, count=2 if reports else 3)
    assert isinstance(end, EpochDone)
    assert end.epoch == 5
    assert end.at == pytest.approx(stop_at + 6.0 + (5 - reported - kept) * epoch)
