"""A run that goes as planned, event by event."""

from cloudtune.model.commands import EndRun, ExtendTrial, Release, SetTimer, StartTrial, StopTrial
from cloudtune.model.events import (
    InstanceGone,
    RunStarted,
    TimerFired,
    TrialFailed,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.trial import EndReason, Slice
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


def test_survivors_grow_from_their_checkpoints() -> None:
    policy = scripted(staged((4, 0, 2, 1, 1.0), (1, 2, 5, 1, 4.0)))
    begun(policy, "i000")
    for number in (0, 1, 2):
        policy.handle(epoch(12.0, f"t0{number}.1", 2, 0.1 * number))
    stops = policy.handle(epoch(13.0, "t03.1", 2, 0.9))
    assert set(stops) == {StopTrial(f"t0{n}.1") for n in range(4)}
    for number in (0, 1, 2):
        assert policy.handle(TrialStopped(13.2, f"t0{number}.1")) == (), "t03 needs all the GPUs"
    assert policy.handle(TrialStopped(13.5, "t03.1")) == (
        StartTrial("t03.2", "t03", {"x": 3}, 4.0, (Slice("i-000", 4.0),), "t03/2", 2, 5),
    )
    policy.handle(TrialStarted(15.0, "t03.2"))
    assert policy.handle(epoch(16.0, "t03.2", 3)) == ()


def test_a_survivor_on_a_surplus_instance_moves() -> None:
    policy = scripted(staged((4, 0, 1, 2, 2.0), (2, 1, 2, 1, 2.0)))
    begun(policy, "i000", "i001")
    for name, score in [("t00.1", 0.8), ("t01.1", 0.1), ("t02.1", 0.9)]:
        policy.handle(epoch(12.0, name, 1, score))
    # One survivor on each: the older instance goes.
    assert policy.handle(epoch(13.0, "t03.1", 1, 0.2)) == (
        StopTrial("t01.1"),
        StopTrial("t03.1"),
        StopTrial("t00.1"),
        ExtendTrial("t02.1", 2),
    )
    assert policy.handle(TrialStopped(13.2, "t01.1")) == ()
    assert policy.handle(TrialStopped(13.3, "t00.1")) == (Release("i000"),), "t03 isn't out yet"
    assert policy.handle(TrialStopped(13.4, "t03.1")) == (
        StartTrial("t00.2", "t00", {"x": 0}, 2.0, (Slice("i-001", 2.0),), "t00/1", 1, 2),
    )


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


def test_a_report_before_the_last_worker_is_ready_counts() -> None:
    policy = scripted(staged((1, 0, 1, 1, 4.0), (1, 1, 2, 1, 4.0)))
    begun(policy, "i000")
    assert policy.handle(epoch(12.0, "t00.1", 1)) == (ExtendTrial("t00.1", 2),)
    assert policy.handle(TrialStarted(12.1, "t00.1")) == ()
    stop, *_ = policy.handle(epoch(13.0, "t00.1", 2))
    assert stop == StopTrial("t00.1")
    policy = scripted(staged((2, 0, 1, 1, 2.0)))
    begun(policy, "i000")
    policy.handle(epoch(12.0, "t00.1", 1))
    policy.handle(TrialStarted(12.1, "t00.1"))
    assert policy.trials["t00"].status == "at rung"


def test_what_past_sessions_say_is_ignored() -> None:
    policy = scripted(staged((2, 0, 2, 1, 4.0), (1, 2, 4, 1, 4.0)))
    begun(policy, "i000")
    policy.handle(epoch(12.0, "t00.1", 2, 0.9))
    policy.handle(TrialStopped(12.5, "t00.1"))
    policy.handle(epoch(13.0, "t01.1", 2, 0.1))
    policy.handle(TrialStopped(13.5, "t01.1"))
    assert policy.trials["t00"].session == "t00.2"
    for late in (
        TrialStarted(14.0, "t00.1"),
        epoch(14.0, "t00.1", 3, 0.99),
        TrialStopped(14.0, "t00.1"),
        TrialFailed(14.0, "t00.1", "boom", ""),
    ):
        assert policy.handle(late) == ()
    assert (policy.trials["t00"].status, policy.trials["t00"].epoch) == ("starting", 2)
