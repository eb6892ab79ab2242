"""Trials that tell nothing any more are ended, and the run goes on without them."""

from dataclasses import replace

import pytest

from cloudtune.engine.resume import replay
from cloudtune.model.commands import ExtendTrial, SetTimer, StopTrial
from cloudtune.model.events import RunResumed, TimerFired, TrialStarted, TrialStopped
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import TrialRules
from tests.builders import begun, epoch, play, scripted, staged
from tests.builders.runs import Setting

RULES = TrialRules(stall_factor=10.0, stall_least=60.0)


def hangs(config: object, number: int) -> float:
    """Trial 0 never finishes its second epoch."""
    return 1e9 if (config, number) == ({"x": 0}, 2) else 1.0


@pytest.mark.parametrize("by", [None, "asha", "hyperband"])
def test_a_trial_that_hangs_ends_and_the_run_continues(by: str | None) -> None:
    setting = Setting(trials=4, min_epochs=2, max_epochs=4, rules=RULES, pace=hangs, by=by)
    played = play(setting)
    stuck = played.policy.trials["t00"]
    assert (stuck.status, stuck.epoch) == ("failed", 1)
    assert stuck.error.startswith("stalled: it reported nothing for 1m 20s, where 8s were")
    ended = [c for said in played.commands for c in said if isinstance(c, StopTrial) and c.stacks]
    assert ended == [StopTrial("t00.1", stacks=True)]
    assert played.policy.ending is EndReason.DONE
    assert played.furthest == 4
    again = setting.policy()
    if by is None:
        replay(again, played.entries)
        assert again.trials["t00"].error == stuck.error


def test_none_is_ended_who_is_only_slow() -> None:
    played = play(Setting(rules=RULES, pace=lambda _config, _epoch: 7.4))
    assert not any(trial.error for trial in played.policy.trials.values())
    assert played.seconds == play(Setting(pace=lambda _config, _epoch: 7.4)).seconds


def test_an_epoch_should_take_what_the_run_has_seen() -> None:
    """Ten times as slow as the profile from the first epoch on, all trials are still in time."""
    rules = replace(RULES, stall_least=100.0)
    played = play(Setting(rules=rules, pace=lambda _config, epoch: 9.0 if epoch == 1 else 60.0))
    assert not any(trial.error for trial in played.policy.trials.values())


def test_a_trials_time_begins_when_asked_to_train() -> None:
    policy = scripted(staged((1, 0, 1, 1, 4.0), (1, 1, 2, 1, 4.0)), rules=RULES)
    said = begun(policy, "i000")
    setting_up = 6.0
    due = 10.0 + 10 * (8.0 + setting_up)
    assert SetTimer("stall", due) in said
    said = policy.handle(TrialStarted(50.0, "t00.1"))
    assert SetTimer("stall", 130.0) in said, "8 s an epoch"
    assert policy.handle(epoch(120.0, "t00.1", 1)) == (ExtendTrial("t00.1", 2),)
    (again,) = policy.handle(TimerFired(130.0, "stall"))
    assert again == SetTimer("stall", 180.0), "a second an epoch, as seen, and 60 s in any case"
    assert StopTrial("t00.1", stacks=True) in policy.handle(TimerFired(180.0, "stall"))
    policy.handle(TrialStopped(181.0, "t00.1"))
    assert policy.ending is EndReason.FAILED
    assert "stalled" in policy.trials["t00"].error


def test_what_none_heard_of_is_no_stall() -> None:
    policy = scripted(staged((1, 0, 1, 1, 4.0)), rules=RULES)
    begun(policy, "i000")
    policy.handle(TrialStarted(20.0, "t00.1"))
    policy.handle(RunResumed(900.0))
    assert policy.handle(TimerFired(900.0, "stall")) == (SetTimer("stall", 980.0),)


def test_nothing_is_expected_where_none_knows_the_script() -> None:
    """By published figures of another script: until the run has seen an epoch of this one."""
    setting = Setting(trials=2, max_instances=1, pace=lambda _c, epoch: 1e3 if epoch == 1 else 1.0)
    published = replace(setting.profile, script_hash="")
    played = play(setting.but(profile=published, rules=RULES))
    assert not any(trial.error for trial in played.policy.trials.values())
    assert any(trial.error for trial in play(setting.but(rules=RULES)).policy.trials.values())
