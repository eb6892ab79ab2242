"""Whatever decides, and however promptly the cloud answers: no fleet flaps, and every run ends."""

from dataclasses import replace
from functools import cache

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.compare.benchmark import Benchmark, Delays, benchmark
from benchmarks.compare.case import Case, play
from benchmarks.compare.speeds import Scaling
from cloudtune.model.plans import Limits
from cloudtune.policy.registry import ALLOCATORS, FLEETS, STRATEGIES, has_stages
from tests.builders import offer
from tests.builders.curves import curves

DELAYS = st.sampled_from([0.0, 20.0])
SUBLINEAR = Scaling({1.0: 1.0, 2.0: 1.22, 4.0: 2.04, 8.0: 2.44})
NON_MONOTONE = Scaling({1.0: 1.0, 2.0: 1.7, 4.0: 3.2, 8.0: 2.1})


@cache
def ground(delays: Delays, epoch_seconds: float, minimum: float) -> Benchmark:
    """Return what runs are played on: one instance has two GPUs."""
    place = replace(offer(2, 12.0), minimum_seconds=minimum)
    made, scaling = curves(60, 27), [NON_MONOTONE]
    return benchmark(
        made, scaling, [place], epoch_seconds=epoch_seconds, delays=delays, max_instances=12
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Delays, float, float, Case]:
    """Give delays, the seconds of an epoch and of the minimum charge, and a way to run."""
    strategy = draw(st.sampled_from(["seer", "seer", *STRATEGIES]))
    own = strategy.startswith("seer") or has_stages(strategy)
    deadline = draw(st.sampled_from([400.0, 1500.0]))
    instances = draw(st.sampled_from([2.5, 5.7, 10.7]))
    case = Case(
        strategy,
        Limits(deadline, instances * deadline * 12.0 / 3600.0),
        allocator="" if own else draw(st.sampled_from([*ALLOCATORS])),
        fleet="" if own else draw(st.sampled_from(["naive", "consolidating", *FLEETS])),
        seed=draw(st.integers(0, 99)),
        max_trials=draw(st.sampled_from([12, 40, 60])),
    )
    delays = Delays(
        launch=draw(DELAYS),
        boot=draw(DELAYS),
        start=draw(st.sampled_from([0.0, 2.0])),
        resize=draw(st.sampled_from([0.0, 5.0])),
        release=draw(DELAYS),
        spread=draw(st.sampled_from([0.0, 0.02])),
    )
    return delays, draw(st.sampled_from([3.0, 20.0])), draw(st.sampled_from([0.0, 60.0])), case


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(made=cases())
def test_no_fleet_flaps_and_every_run_ends(made: tuple[Delays, float, float, Case]) -> None:
    *place, case = made
    result = play(ground(*place), case)
    assert result.flaps == ()
    assert result.violations == ()


def test_decisions_at_one_instant_end() -> None:
    """Launch, release before launch, refusal, launch: the budget's end came and went with each."""
    place, scaling = replace(offer(2, 12.0), minimum_seconds=0.0), SUBLINEAR
    prompt = Delays(launch=0.0, boot=0.0, start=2.0, resize=0.0, release=0.0, spread=0.0)
    given = benchmark(
        curves(60, 27), [scaling], [place], epoch_seconds=3.0, delays=prompt, max_instances=32
    )
    limits = Limits(200.0, 10.7 * 200.0 * 12.0 / 3600.0)
    result = play(given, Case("seer", limits, seed=57, max_trials=60))
    assert result.violations == result.flaps == ()
