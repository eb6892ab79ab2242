"""A run that goes as planned, event by event."""

from cloudtune.model.commands import EndRun, ExtendTrial, Release, SetTimer, StopTrial
from cloudtune.model.events import (
    InstanceGone,
    RunStarted,
    TimerFired,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.trial import EndReason
from tests.builders import begun, epoch, itinerary_of, scripted, staged
from tests.builders.events import launch


def test_the_start_asks_for_all_instances_of_the_first_stage() -> None:
    policy = scripted(staged((8, 0, 1, 2, 1.0)))
    assert policy.handle(RunStarted(0.0)) == (launch("i000"), launch("i001"), SetTimer("tick", 1.0))
    assert policy.handle(TimerFired(1.0, "tick")) == (SetTimer("tick", 2.0),), "and only once"


def test_the_barrier_waits_then_the_best_go_on() -> None:
    policy = scripted(staged((4, 0, 1, 1, 1.0), (2, 1, 3, 1, 1.0)))
    begun(policy, "i000")
    for name, score in [("t00.1", 0.1), ("t01.1", 0.9), ("t02.1", 0.5)]:
        assert policy.handle(TrialStarted(12.0, name)) == ()
        assert policy.handle(epoch(13.0, name, 1, score)) == ()
    assert policy.handle(epoch(14.0, "t03.1", 1, 0.7)) == (
        StopTrial("t00.1"),
        StopTrial("t02.1"),
        ExtendTrial("t01.1", 3),
        ExtendTrial("t03.1", 3),
    )
    assert itinerary_of(policy).stage == 1
    assert itinerary_of(policy).stage_began == [0.0, 14.0]
    assert policy.handle(TrialStopped(14.5, "t00.1")) == ()
    assert policy.trials["t00"].status == "cut"
    assert policy.trials["t01"].status == "training"


def test_the_end_comes_only_when_the_cloud_confirms_it() -> None:
    policy = scripted(staged((1, 0, 2, 1, 4.0)))
    begun(policy, "i000")
    assert policy.handle(epoch(12.0, "t00.1", 1, 0.4)) == ()
    said = policy.handle(epoch(13.0, "t00.1", 2, 0.6))
    assert said == (StopTrial("t00.1"), Release("i000"), SetTimer("cleanup", 43.0))
    assert policy.handle(TrialStopped(13.5, "t00.1")) == ()
    assert not policy.ended
    gone = InstanceGone(15.0, "i000", 14.5, "released")
    assert policy.handle(gone) == (EndRun(EndReason.DONE),)
    assert policy.handle(gone) == (), "nothing is said after the end"
    assert policy.trials["t00"].status == "finished"
    assert policy.best is not None
    assert (policy.best.epoch, policy.best.checkpoint) == (2, "t00/2")
