"""What a ledger tells of how long things took, held against what happened by hand."""

import pytest

from cloudtune.engine.ledger import Entry
from cloudtune.engine.record.actuals import delay_times, epoch_times
from cloudtune.engine.record.timeline import Timeline, read
from cloudtune.model import events
from cloudtune.model.commands import Launch, Release, StartTrial, StopTrial
from cloudtune.model.trial import Slice

TYPE = "p3.8xlarge"


def started(session: str, trial: str, width: float, at_epoch: int) -> StartTrial:
    return StartTrial(session, trial, {}, width, (Slice("i-1", width),), None, at_epoch, 9)


def done(at: float, session: str, epoch: int, seconds: float) -> events.EpochDone:
    return events.EpochDone(at, session, epoch, {}, None, seconds)


def a_run(*between: events.Event) -> Timeline:
    """Return a run: an instance, a trial that is widened, its return; all delays differ."""
    result: list[tuple[events.Event, tuple[object, ...]]] = [
        (events.RunStarted(0.0), (Launch("n0", TYPE, "spot", ""),)),
        (events.InstanceLaunched(11.0, "n0", "i-1", 7.0), ()),
        (events.NodeJoined(47.0, "n0"), (started("s0", "t0", 1.0, 0),)),
        (events.TrialStarted(50.0, "s0"), ()),
        (done(65.0, "s0", 1, 15.0), ()),
        (done(75.0, "s0", 2, 10.0), ()),
        (done(87.0, "s0", 3, 12.0), (StopTrial("s0"),)),
        (events.TrialStopped(89.0, "s0"), (started("s1", "t0", 2.0, 3),)),
        (events.TrialStarted(93.0, "s1"), ()),
        (done(99.0, "s1", 4, 6.0), (Release("n0"),)),
        *((event, ()) for event in between),
        (events.InstanceGone(110.0, "n0", 104.0, "given back"), ()),
    ]
    return read(Entry(event, commands) for event, commands in result)  # type: ignore[arg-type]


def delays(timeline: Timeline) -> dict[str, float]:
    result = delay_times(timeline)
    assert {(item.instance_type, item.market) for item in result} == {(TYPE, "spot")}
    return {item.delay: item.seconds.mean for item in result}


def test_each_delay_is_what_a_profile_calls_so() -> None:
    assert delays(a_run()) == pytest.approx(
        {
            "launch": 7.0,
            "boot": 40.0,
            "start": 3.0 + (15.0 - 11.0),  # what its first epoch took longer
            "resize": 2.0 + 4.0,  # its stop included
            "release": 5.0,
        }
    )


def test_what_the_cloud_took_was_not_given_back() -> None:
    result = delays(a_run(events.InterruptionNotice(100.0, "n0", 120.0)))
    assert "release" not in result
    assert "boot" in result


def test_none_timed_what_went_on_without_a_controller() -> None:
    assert "release" not in delays(a_run(events.RunResumed(103.0)))


def test_epochs_are_those_after_the_first_of_a_start() -> None:
    narrow, wide = epoch_times(a_run())["t0"]
    assert (narrow.instance_type, narrow.width, narrow.first) == (TYPE, 1.0, False)
    assert (narrow.seconds.mean, narrow.seconds.n) == (11.0, 2)
    assert (wide.width, wide.seconds.mean, wide.first) == (2.0, 6.0, True)
