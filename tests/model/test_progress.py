import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.progress import BestResult, LiveTrials, Record, Status, TrialProgress
from cloudtune.model.trial import EndReason, Mode, Trial, better, rank_key
from tests.builders import epoch


def test_a_trial_falls_back_to_its_last_checkpoint() -> None:
    trial = TrialProgress(Trial("t0", {}))
    trial.losses = 2
    trial.record(epoch(1.0, "t0.1", 1), 0.4)
    trial.record(epoch(2.0, "t0.1", 2, saved=False), 0.6)
    assert (trial.epoch, trial.metric, trial.losses) == (2, 0.6, 0)
    assert (trial.checkpoint, trial.checkpoint_epoch) == ("t0/1", 1)
    trial.rewind()
    assert (trial.epoch, trial.metric) == (1, 0.4)


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


def test_saved_result_beats_unsaved() -> None:
    record = Record("max")
    record.offer(BestResult("a", 1, 0.9, None))
    record.offer(BestResult("b", 1, 0.2, "b/1"))
    record.offer(BestResult("c", 1, 0.95, None))
    assert record.best == BestResult("b", 1, 0.2, "b/1")
    record.offer(BestResult("d", 2, 0.3, "d/2"))
    record.offer(BestResult("e", 2, 0.25, "e/2"))
    assert record.best == BestResult("d", 2, 0.3, "d/2")
    assert record.seen == BestResult("c", 1, 0.95, None)


def test_dropped_trial_yields_its_place() -> None:
    record = Record("max")
    results = [BestResult(n, e, m, c) for n, e, m, c in (
        ("a", 1, 0.9, "a/1"), ("b", 1, 0.2, "b/1"), ("b", 2, 0.7, None), ("c", 1, 0.3, "c/1")
    )]  # fmt: skip
    for result in results:
        record.offer(result)
    record.drop("a")
    assert (record.best, record.seen) == (results[3], results[2])
    record.drop("c")
    record.drop("d")
    assert record.best == results[1]


def test_endings_have_own_exit_codes() -> None:
    codes = {reason: reason.exit_code for reason in EndReason}
    assert codes[EndReason.DONE] == 0
    assert len(set(codes.values())) == len(EndReason)


CHANGES: tuple[Status, ...] = ("training", "at rung", "stopping")


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from([*CHANGES, "over"]),
            st.sampled_from([0.25, 1.0, 4.0]),
        ),
        max_size=60,
    )
)
def test_live_counts_match_a_pass(
    steps: list[tuple[int, Literal["training", "at rung", "stopping", "over"], float]],
) -> None:
    live = LiveTrials()
    known = [TrialProgress(Trial(f"t{number}", {})) for number in range(6)]
    order: list[TrialProgress] = []
    for number, change, width in steps:
        trial = known[number]
        if trial not in order:
            trial.status, trial.width = "starting", width
            live.add(trial)
            order.append(trial)
        elif change == "over":
            live.remove(trial)
            trial.status = "parked"
            order.remove(trial)
        else:
            live.become(trial, change)
        resting = [item for item in order if item.status == "at rung"]
        assert list(live) == order
        assert (len(live), live.at_rung) == (len(order), len(resting))
        assert [item in live for item in known] == [item.live for item in known]
        assert live.gpus == sum(item.width for item in order)
        assert live.busy_gpus == live.gpus - sum(item.width for item in resting)
