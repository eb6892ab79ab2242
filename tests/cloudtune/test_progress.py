from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from cloudtune.progress import Best, Record, TrialProgress
from cloudtune.trial import EndReason, Trial, better, rank_key
from tests.builders import epoch

if TYPE_CHECKING:
    from cloudtune.trial import Mode


def test_a_trial_falls_back_to_its_last_checkpoint() -> None:
    trial = TrialProgress(Trial("t0", {}))
    trial.losses = 2
    trial.record(epoch(1.0, "t0.1", 1), 0.4)
    trial.record(epoch(2.0, "t0.1", 2, saved=False), 0.6)
    assert (trial.epoch, trial.metric, trial.losses) == (2, 0.6, 0)
    assert (trial.checkpoint, trial.checkpoint_epoch) == ("t0/1", 1)
    trial.rewind()
    assert (trial.epoch, trial.metric) == (1, 0.4)


def test_a_trial_without_a_checkpoint_falls_back_to_the_start() -> None:
    trial = TrialProgress(Trial("t0", {}))
    trial.record(epoch(1.0, "t0.1", 1, saved=False), 0.4)
    trial.rewind()
    assert (trial.epoch, trial.metric, trial.checkpoint) == (0, None, None)


@pytest.mark.parametrize(("mode", "order"), [("max", [0.9, 0.5, 0.1]), ("min", [0.1, 0.5, 0.9])])
def test_the_best_comes_first_and_nan_last(mode: Mode, order: list[float]) -> None:
    ranked = sorted([0.5, math.nan, 0.1, None, 0.9], key=lambda metric: rank_key(mode, metric))
    assert ranked[:3] == order
    assert better(mode, order[0], order[1])
    assert better(mode, order[2], math.nan)
    assert better(mode, order[2], None)
    assert not better(mode, math.nan, order[2])
    assert not better(mode, None, None)
    assert not better(mode, 0.5, 0.5), "the first one found stays"


def test_a_result_that_was_saved_beats_any_that_was_not() -> None:
    record = Record("max")
    record.offer(Best("a", 1, 0.9, None))
    record.offer(Best("b", 1, 0.2, "b/1"))
    record.offer(Best("c", 1, 0.95, None))
    assert record.best == Best("b", 1, 0.2, "b/1")
    record.offer(Best("d", 2, 0.3, "d/2"))
    record.offer(Best("e", 2, 0.25, "e/2"))
    assert record.best == Best("d", 2, 0.3, "d/2")


def test_every_ending_has_an_exit_code_of_its_own() -> None:
    codes = {reason: reason.exit_code for reason in EndReason}
    assert codes[EndReason.DONE] == 0
    assert len(set(codes.values())) == len(EndReason)
