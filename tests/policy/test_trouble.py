"""Trials and instances that fail, event by event."""

import math

import pytest

from cloudtune.model import commands, events
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason, Slice
from cloudtune.policy.base import Brakes, TrialRules
from tests.builders import Setting, begun, epoch, join, launches_of, play, scripted, staged, starts
from tests.builders.events import dry, launch, tick


@pytest.mark.parametrize("has_trained", [False, True])
def test_the_first_trials_that_fail_alike_end_the_run(has_trained: bool) -> None:
    """Other trials would pay for the same error; not once one has finished an epoch."""
    policy = scripted(staged((6, 0, 2, 1, 4.0)), rules=TrialRules(max_failures=3))
    begun(policy, "i000")
    if has_trained:
        policy.handle(epoch(11.0, "t00.1", 1))
    for number in range(3):
        assert policy.ending is None
        error = f"FileNotFoundError: /tmp/run-{number}/data"
        policy.handle(events.TrialFailed(12.0 + number, f"t{number:02d}.1", error, ""))
    assert (policy.ending is EndReason.FAILED) is not has_trained
    assert policy.failed_alike == (0 if has_trained else 3)


@pytest.mark.parametrize(("saving", "slower"), [(29.0, 1.0), (0.0, 30 / 8)])
def test_a_storage_that_stalls_is_not_slow_training(saving: float, slower: float) -> None:
    """An epoch of 8 seconds that takes 30: in saving, or in training."""
    policy = scripted(staged((6, 0, 2, 1, 4.0)))
    begun(policy, "i000")
    score = {"score": 0.5}
    policy.handle(events.EpochDone(40.0, "t00.1", 1, score, "t00/1", 30.0, saving=saving))
    rentable = policy.state.rentables[0]
    assert policy.state.epoch_seconds("t00", rentable.offer, 4.0) == pytest.approx(8.0 * slower)


def test_errors_of_different_kinds_do_not_end_the_run() -> None:
    policy = scripted(staged((6, 0, 2, 1, 4.0)), rules=TrialRules(max_failures=3))
    begun(policy, "i000")
    for number, error in enumerate(["KeyError: 'a'", "KeyError: 'b'", "KeyError: 'c'"]):
        policy.handle(events.TrialFailed(12.0 + number, f"t{number:02d}.1", error, ""))
    assert policy.ending is None


@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf])
def test_a_trial_that_diverges_wins_nothing(metric: float) -> None:
    """Not even by an epoch before it diverged: that is no model to go on with."""
    policy = scripted(staged((2, 0, 4, 2, 4.0)))
    begun(policy, "i000", "i001")
    policy.handle(epoch(12.0, "t00.1", 1, 0.9))
    policy.handle(epoch(12.0, "t01.1", 1, 0.2))
    assert policy.best is not None
    assert policy.best.trial == "t00"
    assert policy.handle(epoch(13.0, "t00.1", 2, metric)) == (commands.StopTrial("t00.1"),)
    policy.handle(events.TrialStopped(13.5, "t00.1"))
    trial = policy.trials["t00"]
    assert (trial.status, trial.error) == ("diverged", f"score was {metric:g} at epoch 2")
    assert policy.best is not None
    assert (policy.best.trial, policy.best.metric) == ("t01", 0.2)
    assert policy.best_lost is None


def test_a_script_that_ends_by_itself_has_finished() -> None:
    policy = scripted(staged((2, 0, 4, 2, 4.0)))
    begun(policy, "i000", "i001")
    policy.handle(epoch(12.0, "t00.1", 1, 0.9))
    policy.handle(events.TrialStopped(12.5, "t00.1", by_itself=True))
    trial = policy.trials["t00"]
    assert (trial.status, trial.error, trial.epoch) == ("finished", "", 1)
    assert policy.best is not None
    assert policy.best.trial == "t00"


def test_a_failed_trial_keeps_its_traceback_others_go_on() -> None:
    policy = scripted(staged((2, 0, 1, 1, 2.0), (1, 1, 2, 1, 2.0)))
    begun(policy, "i000")
    assert policy.handle(events.TrialFailed(11.0, "t00.1", "ValueError: lr", "Traceback …")) == ()
    assert policy.handle(epoch(12.0, "t01.1", 1)) == (commands.ExtendTrial("t01.1", 2),)
    failed = policy.first_error()
    assert failed is policy.trials["t00"]
    assert (failed.status, failed.error) == ("failed", "ValueError: lr")
    assert failed.traceback == "Traceback …"
    policy.handle(epoch(13.0, "t01.1", 2))
    assert policy.ending is EndReason.DONE


def test_a_trial_lost_four_times_without_epoch_has_failed() -> None:
    policy = scripted(staged((1, 0, 4, 1, 4.0)))
    begun(policy, "i000")
    for session in (1, 2):
        policy.handle(events.TrialLost(12.0, f"t00.{session}", "a worker died"))
    policy.handle(epoch(13.0, "t00.3", 1))
    for session in (3, 4, 5):
        lost = policy.handle(events.TrialLost(14.0, f"t00.{session}", "a worker died"))
        assert set(starts(lost)) == {f"t00.{session + 1}"}, "an epoch sets the count back"
    assert commands.Release("i000") in policy.handle(
        events.TrialLost(15.0, "t00.6", "a worker died")
    )
    assert policy.trials["t00"].error == "lost 4 times: a worker died"
    assert policy.ending is EndReason.FAILED


def test_a_lost_instance_is_replaced_and_its_trials_continue() -> None:
    policy = scripted(staged((2, 0, 4, 2, 4.0)))
    begun(policy, "i000", "i001")
    policy.handle(epoch(12.0, "t00.1", 1))
    said = policy.handle(events.InstanceGone(13.0, "i000", 12.9, "spot"))
    assert said == (commands.StopTrial("t00.1"), launch("i002"))
    assert policy.handle(events.TrialStopped(13.1, "t00.1")) == ()
    assert join(policy, 20.0, "i002") == (
        commands.StartTrial("t00.2", "t00", {"x": 0}, 4.0, (Slice("i-002", 4.0),), "t00/1", 1, 4),
    )


def test_a_refused_launch_is_tried_again_after_a_pause() -> None:
    policy = scripted(staged((1, 0, 1, 1, 4.0)))
    policy.handle(events.RunStarted(0.0))
    assert policy.handle(dry(2.0, "i000")) == ()
    for at in range(3, 17):
        assert policy.handle(tick(at)) == (commands.SetTimer("tick", at + 1.0),), (
            f"too early at {at} s"
        )
    assert policy.handle(tick(17.0)) == (launch("i001"), commands.SetTimer("tick", 18.0))
    assert policy.spent(20.0) == pytest.approx(0.60), "what was refused costs nothing"


def test_with_something_rented_the_run_makes_do() -> None:
    policy = scripted(staged((2, 0, 1, 2, 4.0)))
    policy.handle(events.RunStarted(0.0))
    assert set(starts(join(policy, 1.0, "i000"))) == {"t00.1"}
    policy.handle(dry(2.0, "i001"))
    for number in range(2, 7):
        at = 20.0 * number
        assert policy.handle(tick(at))[:-1] == (launch(f"i00{number}"),)
        assert policy.handle(dry(at + 1.0, f"i00{number}")) == ()
    said = policy.handle(epoch(150.0, "t00.1", 1))
    assert said == (commands.StopTrial("t00.1"),), (
        "t01 takes its place; another one would have no use"
    )


def test_what_no_asking_helps_ends_the_run_at_once() -> None:
    policy = scripted(staged((1, 0, 1, 1, 4.0)))
    policy.handle(events.RunStarted(0.0))
    denied = events.LaunchFailed(2.0, "i000", "Denied", "not you", permanent=True, kind="denied")
    assert policy.handle(denied) == (commands.EndRun(EndReason.FAILED),)
    assert policy.trouble == "Denied: not you"


def zoned(intent: str, zone: str) -> commands.Launch:
    return commands.Launch(intent, "g.4x", "on-demand", zone)


def test_a_quota_holds_in_every_zone() -> None:
    policy = scripted(staged((1, 0, 1, 1, 4.0)), brakes=Brakes(), zones=("a", "b"))
    policy.handle(events.RunStarted(0.0))
    full = events.LaunchFailed(2.0, "i000", "Full", "you have enough", kind="quota")
    assert policy.handle(full) == ()
    assert launches_of(policy.handle(tick(182.0))) == [zoned("i001", "")]


def test_after_a_notice_a_trial_moves_at_its_epoch_end() -> None:
    policy = scripted(staged((2, 0, 3, 2, 4.0)))
    begun(policy, "i000", "i001")
    policy.handle(events.InterruptionNotice(11.0, "i001", 131.0))
    join(policy, 12.0, "i002")
    assert policy.handle(epoch(13.0, "t01.1", 1)) == (commands.StopTrial("t01.1"),)
    said = policy.handle(events.TrialStopped(13.2, "t01.1"))
    assert commands.Release("i001") in said, "what is to go and is empty isn't paid for"
    assert starts(said) == {"t01.2": (Slice("i-002", 4.0),)}
    (moved,) = (command for command in said if isinstance(command, commands.StartTrial))
    assert moved.start_epoch == 1


def test_at_risk_takes_what_nothing_else_will_have_room_for() -> None:
    policy = scripted(staged((9, 0, 1, 2, 1.0)))
    begun(policy, "i001")
    policy.handle(events.RebalanceRecommended(11.0, "i001"))
    policy.handle(epoch(12.0, "t00.1", 1))
    assert starts(policy.handle(events.TrialStopped(12.1, "t00.1"))) == {
        "t08.1": (Slice("i-001", 1.0),)
    }, "four of the five that wait have room on i-000, which boots"
    policy.handle(events.LaunchFailed(13.0, "i000", "Dry", "none left", kind="capacity"))
    policy.handle(epoch(14.0, "t01.1", 1))
    again = policy.handle(events.TrialStopped(14.1, "t01.1"))
    assert starts(again) == {"t04.1": (Slice("i-001", 1.0),)}, "nothing is coming any more"


def test_a_recommendation_in_time_saves_a_search_its_losses() -> None:
    """The instance at risk is the first that a shrinking fleet gives back, before its end."""
    taken = (events.NodeLost(120.0, "i000", "gone"), events.InstanceGone(120.0, "i000", 120.0, ""))
    warned = (events.RebalanceRecommended(60.0, "i000"), *taken)
    job = Setting(16, 1, 9, 3, by="random", max_instances=3)
    first, second = (play(job.but(trouble=trouble)) for trouble in (taken, warned))
    sessions = [sum(t.sessions for t in it.policy.trials.values()) for it in (first, second)]
    assert sessions == [20, 16], "four were lost with it and started again, or none"
    later = [e.commands for e in second.entries if e.event.at > 60.0]
    places = [p.instance for said in later for pieces in starts(said).values() for p in pieces]
    assert set(places) == {"sim-i001"}
    assert second.policy.over_at < first.policy.over_at


def test_out_of_memory_a_packed_trial_gets_a_wider_share() -> None:
    policy = scripted(staged((4, 0, 2, 1, 0.25)))
    begun(policy, "i000")
    full = events.TrialFailed(11.0, "t01.1", "out of memory", "…", out_of_memory=True)
    started = starts(policy.handle(full))
    assert started["t01.2"] == (Slice("i-000", 0.5, 1),), "its share is doubled"
    policy.handle(events.TrialStarted(12.0, "t01.2"))
    again = events.TrialFailed(13.0, "t01.2", "out of memory", "…", out_of_memory=True)
    assert starts(policy.handle(again))["t01.3"] == (Slice("i-000", 1.0),)
    last = events.TrialFailed(14.0, "t01.3", "out of memory", "…", out_of_memory=True)
    assert starts(policy.handle(last)) == {}
    assert policy.trials["t01"].status == "failed", "a whole GPU isn't enough"


def test_a_deadline_full_of_refusals_is_lack_of_capacity() -> None:
    """Whenever it comes: between two rounds of requests, or in the middle of one."""
    for pause in (0.4, 1.1, 2.7):
        policy = scripted(staged((1, 0, 1, 1, 4.0)), limits=Limits(60.0), zones=tuple("abc"))
        said, at = policy.handle(events.RunStarted(0.0)), 0.0
        while policy.ending is None:
            at += pause
            asked = [command for command in said if isinstance(command, commands.Launch)]
            said = policy.handle(dry(at, asked[0].intent) if asked else tick(at))
        assert policy.ending is EndReason.NO_CAPACITY
        assert at > 30.0, "asked for as long as there is time"


def test_a_better_unsaved_result_is_shown_beside_the_best() -> None:
    policy = scripted(staged((2, 0, 4, 1, 4.0)))
    begun(policy, "i000")
    policy.handle(epoch(12.0, "t00.1", 1, 0.3))
    before = policy.best_lost
    policy.handle(epoch(13.0, "t00.1", 2, 0.9, saved=False))
    best, lost = policy.best, policy.best_lost
    assert before is None
    assert best is not None
    assert (best.metric, best.checkpoint) == (0.3, "t00/1")
    assert lost is not None
    assert (lost.metric, lost.epoch) == (0.9, 2)
