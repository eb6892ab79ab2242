"""One run of a strategy on recorded curves: what it comes to, and that it keeps its limits."""

import itertools
import math
import sys

import pytest

from benchmarks.compare.benchmark import Delays, benchmark
from benchmarks.compare.case import Case, play, policy_of
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.model.plans import Limits
from cloudtune.policy.registry import STRATEGIES
from tests.builders import offer
from tests.builders.curves import SUBLINEAR, curves, small_benchmark

STUDY = small_benchmark()
HOUR = Limits(3600.0, 12.0)
LISTED = ("random", "asha", "hyperband", "median", "hypersched", "rubberband", "seer-barrier")


@pytest.mark.parametrize("strategy", LISTED)
def test_compared_run_says_its_cost(strategy: str) -> None:
    result = play(STUDY, Case(strategy, HOUR))
    assert result.violations == ()
    assert result.metric is not None
    assert result.regret == pytest.approx(STUDY.curves.best - result.metric)
    assert 0 < result.seconds <= 3600.0
    assert 0 < result.dollars <= 12.0
    assert result.trials > 0
    assert result.epochs > 0
    assert 0 < result.trained <= result.held <= result.gpu_seconds
    assert result.idle == pytest.approx(result.gpu_seconds - result.held)
    winner = next(curve for curve in STUDY.curves.curves if curve.name == result.winner)
    assert result.metric == max(winner.metrics[: result.epochs])


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("limits", [Limits(3600.0, 0.0), Limits(20.0, 40.0), Limits(1.0, None)])
def test_on_too_little_there_is_no_result(strategy: str, limits: Limits) -> None:
    result = play(STUDY, Case(strategy, limits, max_trials=9))
    assert (result.metric, result.regret, result.winner, result.epochs) == (None, None, None, 0)
    assert result.path == ()
    assert result.violations == ()
    assert result.dollars <= (math.inf if limits.budget is None else limits.budget)


def calls_an_event(strategy: str, trials: int) -> float:
    """Return the Python calls that a run takes for each of its events, on ever larger fleets."""
    delays = Delays(launch=5.0, boot=60.0, start=4.0, resize=6.0, release=2.0, spread=0.02)
    place = benchmark(
        curves(trials), [SUBLINEAR], [offer(4, 12.0)], epoch_seconds=60.0, delays=delays
    )
    seconds = 900.0 * 4 if strategy == "sha" else 900.0  # in less it plans again and again
    case = Case(strategy, Limits(seconds, 0.4 * trials), max_trials=trials)
    policy, ledger = policy_of(place, case), MemoryLedger()
    world, calls = place.world(0), itertools.count()
    sys.setprofile(lambda _frame, what, _arg: next(calls) if what == "call" else None)
    try:
        run(policy, world, ledger)
    finally:
        sys.setprofile(None)
    return next(calls) / len(ledger.entries)


@pytest.mark.parametrize(
    ("strategy", "most"), [("asha", 1.15), ("random", 1.1), ("seer", 1.2), ("sha", 1.1)]
)
def test_event_work_doesnt_grow_with_trials(strategy: str, most: float) -> None:
    few, many = (calls_an_event(strategy, trials) for trials in (32, 128))
    assert many < most * few, f"{few:.0f} calls an event with 32 trials, {many:.0f} with 128"
