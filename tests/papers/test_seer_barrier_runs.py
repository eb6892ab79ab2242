"""The run of the SEER reconstruction, promise by promise (SE1-SE6), and what it learns on line."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cloudtune.engine.resume import replay
from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Provenance
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import InfeasibleError
from cloudtune.policy.base import Brakes
from cloudtune.policy.speed_estimates import DOUBT, SpeedEstimates
from tests.builders import (
    LINEAR,
    NODE_BOUNDARY,
    SUBLINEAR,
    Played,
    Setting,
    itinerary_of,
    jobs,
    offer,
    plan_of,
    play,
    profile,
    troubles,
    widths,
)

DEAL = Setting(
    32,
    max_epochs=16,
    limits=Limits(700.0, 8.0),
    profile=profile(SUBLINEAR),
    max_instances=8,
    by="seer-barrier",
    heartbeat=False,
)


@st.composite
def deals(draw: st.DrawFn) -> Setting:
    """Give jobs of all shapes, in worlds that are slower or faster than their profiles."""
    spread = st.sampled_from([0.0, 0.0, 0.1, 0.3])
    epoch, release = st.floats(0.5, 20.0), st.floats(0.0, 5.0)
    setting: Setting = draw(jobs(max_epochs=9, epoch=epoch, release=release, spread=spread))
    wrong = draw(st.sampled_from([0.6, 1.0, 1.0, 1.5, 3.0]))
    deal = setting.but(
        by="seer-barrier",
        limits=Limits(draw(st.none() | st.floats(60.0, 900.0)), draw(st.floats(0.5, 20.0))),
        caps=draw(st.dictionaries(st.integers(0, 9), st.integers(1, 9), max_size=4)),
        pace=lambda config, _: wrong * (1 + 0.02 * (int(str(config["x"])) % 3)),
        trouble=draw(st.lists(troubles(st.floats(0.0, 400.0), interrupted=False), max_size=5)),
        heartbeat=draw(st.booleans()),
    )
    try:
        deal.policy()
    except InfeasibleError:
        assume(False)
    return deal


@settings(
    max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(deal=deals())
def test_se1_limits_hold_and_instances_return(deal: Setting) -> None:
    show = play(deal)
    seconds, dollars = show.bill()
    assert show.policy.ended
    assert deal.limits.deadline is None or seconds <= deal.limits.deadline
    assert deal.limits.budget is None or dollars <= deal.limits.budget + 1e-9
    assert show.policy.fleet.alive() == []
    keeps_caps(show)
    replays(show)


def keeps_caps(show: Played) -> None:
    """No session trains past its trial's own last epoch."""
    for event in (entry.event for entry in show.entries):
        if isinstance(event, EpochDone):
            trial = show.policy.trials[event.session.partition(".")[0]].trial
            assert event.epoch <= (trial.epochs or event.epoch)


def replays(show: Played) -> None:
    """The same events lead to the same commands, new plans and all."""
    policy = show.setting.policy()
    replay(policy, show.entries)
    assert plan_of(policy) == plan_of(show.policy)


@settings(max_examples=12)
@given(
    scaling=st.sampled_from([LINEAR, SUBLINEAR, NODE_BOUNDARY]),
    deadline=st.floats(120.0, 1500.0),
    budget=st.floats(0.8, 20.0),
    longer=st.floats(1.0, 3.0),
    more=st.floats(1.0, 3.0),
)
def test_se2_more_limits_keep_more_trials(
    *, scaling: dict[float, float], deadline: float, budget: float, longer: float, more: float
) -> None:
    deal = DEAL.but(profile=profile(scaling))
    first = [
        first_trials(deal.but(limits=Limits(deadline * t, budget * b)))
        for t, b in [(1.0, 1.0), (longer, 1.0), (1.0, more)]
    ]
    assert first[0] <= min(first)


def first_trials(deal: Setting) -> tuple[int, int]:
    """Return with how many trials a run begins, and how far the best is to be trained."""
    try:
        policy = deal.policy()
    except InfeasibleError:
        return 0, 0
    return len(itinerary_of(policy).trials), plan_of(policy).stages[-1].stage.end_epoch


def test_se4_spare_time_keeps_trials_narrow() -> None:
    deal = DEAL.but(offer=offer(1), max_instances=16, trials=8)
    slow = play(deal.but(limits=Limits(4000.0, 9.0)))
    assert slow.furthest == 16
    assert set(slow.widths) == {1.0}, "one GPU an instance: width 1 is the cheapest throughout"
    fast = play(deal.but(limits=Limits(210.0, 40.0)))
    assert fast.furthest == 16
    assert set(fast.widths) > {1.0}
    assert fast.bill()[1] > slow.bill()[1]


def test_se3_se4_late_run_widens() -> None:
    """Plan.groups have one width each, so it is the stages that differ, not ranks in a stage."""
    deal = DEAL.but(offer=offer(1), max_instances=16, trials=8, limits=Limits(330.0, 40.0))
    on_time, late = play(deal), play(deal.but(pace=lambda _config, _epoch: 1.3))
    assert widths(plan_of(on_time.policy))[0] == widths(plan_of(late.policy))[0]
    assert sum(widths(plan_of(late.policy))) > sum(widths(plan_of(on_time.policy)))
    assert late.furthest == 16
    assert late.bill()[0] <= 330.0


@settings(max_examples=10)
@given(
    scaling=st.sampled_from([LINEAR, SUBLINEAR, NODE_BOUNDARY]),
    deadline=st.floats(150.0, 900.0),
    budget=st.floats(1.0, 12.0),
    spread=st.sampled_from([0.0, 0.02]),
    seed=st.integers(0, 99),
)
def test_se5_winner_trains_in_full(
    *, scaling: dict[float, float], deadline: float, budget: float, spread: float, seed: int
) -> None:
    """With 5% of what is left in reserve, and epochs that vary by 2% at most."""
    curve = profile(scaling, spread=spread)
    deal = DEAL.but(profile=curve, limits=Limits(deadline, budget), seed=seed)
    assume(first_trials(deal) >= (1, 16))
    show = play(deal)
    assert show.furthest == 16
    assert show.policy.ending is EndReason.DONE
    assert plan_of(show.policy).stages[-1].stage.end_epoch == 16


def test_se5_winner_needs_no_reserve() -> None:
    """All, with 1.02 to 2.5 times what one trial's whole schedule takes.

    A plan leaves a twentieth of the limits; what is left for the last epochs may take that too.
    """
    for seed in range(12):
        luck, brakes = random.Random(seed), Brakes()
        known = profile(luck.choice([LINEAR, SUBLINEAR, NODE_BOUNDARY]))
        late, ways = brakes.tick + brakes.drain, []
        for width, epoch in known.epoch.items():
            lived = known.boot.mean + known.start.mean + 16 * epoch.mean + late
            lived += known.release.mean
            ways.append((math.ceil(width / 4) * max(60.0, lived) * 0.01, lived + 1.0))
        dollars, seconds = min(ways)
        limits = Limits(luck.uniform(1.02, 2.5) * seconds, luck.uniform(1.02, 2.5) * dollars)
        show = play(DEAL.but(profile=known, limits=limits, seed=seed))
        spent = show.bill()
        assert spent[0] <= seconds * 2.5
        assert spent[1] <= (limits.budget or 0.0) + 1e-9
        assert show.furthest == 16, (seed, limits)


def test_unfinishable_trial_trains_until_limits() -> None:
    show = play(DEAL.but(max_epochs=64, limits=Limits(700.0, 1.2)))
    assert len(show.policy.trials) == 1
    assert 8 <= show.furthest < 64
    assert show.policy.ending is EndReason.BUDGET
    assert plan_of(show.policy).stages[-1].stage.end_epoch < 64
    assert 0.9 * 1.2 < show.bill()[1] <= 1.2, "what one more epoch would not fit into is left"
    hurried = play(DEAL.but(max_epochs=64, limits=Limits(120.0, 90.0)))
    assert hurried.policy.ending is EndReason.DEADLINE
    assert hurried.policy.best is not None
    assert hurried.policy.best.checkpoint is not None


def test_se6_fast_run_keeps_more_trials() -> None:
    expected = play(DEAL)
    faster = play(DEAL.but(pace=lambda _config, _epoch: 0.7))
    assert faster.members[0] == expected.members[0]
    assert sum(faster.members) > sum(expected.members)
    assert faster.furthest == 16


def speeds(*epochs: tuple[str, float, float]) -> SpeedEstimates:
    """Return what is learned from epochs of (trial, width, seconds) on a linear profile."""
    result = SpeedEstimates()
    for trial, width, seconds in epochs:
        result.note(trial, profile(LINEAR), width, seconds)
    return result


def corrections(result: SpeedEstimates, *trials: str) -> Mapping[float, float]:
    made = result.corrected(Rentable(offer(), profile(LINEAR), 1), trials).profile
    return {width: made.epoch_seconds(width) for width in made.widths}


def test_measured_width_replaces_profile() -> None:
    """What a doubling went wrong by, the next one does by half of that: it was seen once."""
    result = speeds(("a", 1.0, 16.0), ("a", 2.0, 12.0), ("b", 1.0, 8.0))
    wider = 1.5 * 1.5**0.5
    assert corrections(result, "a") == pytest.approx({1.0: 16.0, 2.0: 12.0, 4.0: 4.0 * wider})
    assert corrections(result, "b") == pytest.approx({1.0: 8.0, 2.0: 6.0, 4.0: 2.0 * wider})


def test_another_programs_figures_stay_doubted_at_one_width() -> None:
    published = [
        replace(profile(LINEAR, name=name), provenance=Provenance("published"))
        for name in ("one", "two")
    ]
    estimates = SpeedEstimates()
    for trial, there in zip("ab", published, strict=True):
        estimates.note(trial, there, 1.0, 8.0)
    for there in published:
        rentable = Rentable(offer(), there, 1)
        slower = estimates.epoch_seconds("a", rentable, 4.0) / there.epoch_seconds(4.0)
        assert slower == pytest.approx(DOUBT**2), "two doublings"


@pytest.mark.parametrize(("spread", "trust"), [(0.1, 0.5), (0.05, 0.8)])
def test_a_noisy_epoch_is_believed_in_part(spread: float, trust: float) -> None:
    """Epochs that vary as much as paces do say as much of the trial as of chance."""
    result, noisy = SpeedEstimates(), profile({1.0: 10.0}, spread=spread)
    for trial in "abc":
        result.note(trial, noisy, 1.0, 10.0)
    result.note("d", noisy, 1.0, 14.0)
    assert result.pace(["d"]) == pytest.approx(1.1 + 0.3 * trust)
    assert result.pace(["a"]) == pytest.approx(1.1 - 0.1 * trust)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([1.0, 2.0]), st.floats(4, 30))),
    st.sampled_from(["", "a", "abc", "cdefg"]),
)
def test_the_slowest_is_the_slowest(epochs: list[tuple[str, float, float]], names: str) -> None:
    """Kept from epoch to epoch it is the same, to the last bit, as worked out from all trials."""
    estimates, noisy, trials = SpeedEstimates(), profile(LINEAR, spread=0.1), tuple(names)
    for epoch in epochs:
        estimates.note(epoch[0], noisy, *epoch[1:])
        slowest = estimates.corrected(Rentable(offer(), noisy, 1), trials).profile
        for width in slowest.widths:
            assert estimates.slowest_epoch(trials, noisy, width) == slowest.epoch_seconds(width)


def test_what_changes_is_followed() -> None:
    result = speeds(*[("a", 1.0, 8.0)] * 20, *[("a", 1.0, 16.0)] * 20)
    assert corrections(result, "a")[1.0] == pytest.approx(16.0, rel=0.02)
