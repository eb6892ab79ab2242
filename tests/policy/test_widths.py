"""Widths that are of no use: several models on several GPUs, and moves that lose all."""

import pytest

from cloudtune.model.commands import ExtendTrial, StopTrial
from cloudtune.model.events import TrialFailed
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import TrialRules
from tests.builders import begun, epoch, play, scripted, staged
from tests.builders.runs import Setting


def unsynced(at: float, session: str) -> TrialFailed:
    return TrialFailed(at, session, "no gradients", "", unsynced=True)


@pytest.mark.parametrize("by", [None, "asha", "hyperband", "hypersched", "seer"])
def test_trials_that_train_copies_go_on_with_one_gpu(by: str | None) -> None:
    plain = Setting(trials=4, max_epochs=8, max_instances=1, limits=Setting().limits, by=by)
    wide = play(plain)
    played = play(plain.but(copies=True))
    assert played.policy.ending is EndReason.DONE
    assert played.furthest == wide.furthest
    if max(wide.widths) > 1:
        first = next(n for n, width in enumerate(played.widths) if width > 1)
        began = played.starts[first]
        assert set(played.widths[first + wide_at_once(played.widths, first) :]) == {1.0}
        assert played.policy.state.why_narrow == f"{began.trial}: no gradients"
        assert not any(trial.error for trial in played.policy.trials.values())


def wide_at_once(widths: list[float], first: int) -> int:
    """Return how many sessions in a row are wider than a GPU."""
    return next((n for n, width in enumerate(widths[first:]) if width <= 1), len(widths) - first)


def test_a_run_requiring_sync_ends_and_says_why() -> None:
    policy = scripted(
        staged((1, 0, 2, 1, 2.0), (1, 2, 3, 1, 1.0)), rules=TrialRules(sync_required=True)
    )
    begun(policy, "i000")
    policy.handle(unsynced(12.0, "t00.1"))
    assert policy.ending is EndReason.FAILED
    assert policy.trouble == (
        "the workers of t00 don't train one model: no gradients. Give the model to "
        "cloudtune.prepare_model, or to DistributedDataParallel; or let trials have one GPU each "
        "(trial.gpus.max: 1)"
    )


def test_a_trial_without_a_save_is_not_widened() -> None:
    policy = scripted(staged((2, 0, 1, 1, 1.0), (1, 1, 4, 1, 2.0)))
    begun(policy, "i000")
    policy.handle(epoch(12.0, "t01.1", 1, 0.1, saved=False))
    said = policy.handle(epoch(13.0, "t00.1", 1, 0.9, saved=False))
    assert said == (StopTrial("t01.1"), ExtendTrial("t00.1", 4))


def test_no_epoch_of_a_script_without_checkpoints_is_trained_twice() -> None:
    setting = Setting(trials=4, max_epochs=8, max_instances=1, saves_every=99)
    assert max(play(setting.but(saves_every=1)).widths) > 1
    played = play(setting)
    assert len(played.starts) == 4, "each trial is started once"
    assert played.policy.ending is EndReason.DONE
