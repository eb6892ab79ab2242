"""SEER's promises (SE1-SE7) as `best` keeps them, and what a hostile reader would try on it."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.compare.audit import Audit
from benchmarks.compare.benchmark import Benchmark
from benchmarks.compare.case import Case, Result
from benchmarks.compare.case import play as tried
from benchmarks.compare.speeds import Scaling
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import Brakes
from cloudtune.strategies.best import BestSearch
from tests.builders import (
    LINEAR,
    NODE_BOUNDARY,
    SUBLINEAR,
    Given,
    Played,
    Setting,
    gone,
    offer,
    play,
    profile,
    refused,
)
from tests.builders.curves import curves, small_benchmark
from tests.builders.trials import Watched
from tests.contracts.strategy import StrategyContract
from tests.strategies.best_games import own, seer

BOTH = ["seer", "seer-constant"]
FLAT = {1.0: 8.0, 2.0: 7.6, 4.0: 7.4}


class TestSeerOnGivenFleets(StrategyContract):
    name = "seer"


class TestSeer(StrategyContract):
    """With its own allocator and its own fleet."""

    name = "seer"

    @pytest.fixture
    def game(self) -> Setting:
        return own(max_epochs=9)

    def play(self, game: Setting) -> Played:
        return play(game, self.name if game.by else self.build)


class TestSeerConstant(TestSeer):
    name = "seer-constant"


class TestSeerFull(TestSeer):
    name = "seer-full"


@st.composite
def games(draw: st.DrawFn) -> Setting:
    """Give jobs on one or two offers, with all that can go wrong."""
    seconds = st.floats(0.0, 25.0)
    scaling = st.sampled_from([LINEAR, SUBLINEAR, NODE_BOUNDARY, {0.5: 9.0, **LINEAR}, {2.0: 6.0}])

    def made(name: str) -> Mapping[str, object]:
        delays = {k: draw(seconds) for k in ("launch", "boot", "start", "resize", "release")}
        return {**delays, "spread": draw(st.sampled_from([0.0, 0.2])), "name": name}

    spot = offer(draw(st.sampled_from([2, 4])), 20.0, name="h.4x", interruptions_per_hour=20.0)
    other = Rentable(spot, profile(draw(scaling), **made("h.4x")), 2)  # type: ignore[arg-type]
    intents = [f"i{n:03d}" for n in range(5)]
    return own(
        draw(st.integers(1, 24)),
        mode=draw(st.sampled_from(["min", "max"])),
        offer=offer(draw(st.sampled_from([2, 4]))),
        max_instances=draw(st.integers(1, 3)),
        profile=profile(draw(scaling), **made("g.4x")),  # type: ignore[arg-type]
        limits=Limits(
            draw(st.none() | st.floats(1.0, 900.0)), draw(st.none() | st.floats(0.1, 12.0))
        ),
        seed=draw(st.integers(0, 99)),
        saves_every=draw(st.integers(1, 3)),
        trouble=[
            *gone(
                draw(st.dictionaries(st.sampled_from(intents), st.floats(30.0, 300.0), max_size=3))
            ),
            *refused(
                draw(st.dictionaries(st.sampled_from(intents), st.floats(0.0, 4.0), max_size=3))
            ),
        ],
        max_epochs=draw(st.integers(1, 12)),
        others=draw(st.sampled_from([(), (other,)])),
        price=draw(st.sampled_from([36.0, 36.0, 10.0, 0.0])),
        slower=draw(st.sampled_from([1.0, 1.5])),
    )


@pytest.mark.parametrize("name", BOTH)
@given(game=games())
@settings(max_examples=30)
def test_se1_neither_limit_is_ever_passed(name: str, game: Setting) -> None:
    played, took = seer(game, name)
    assert took.violations(game.limits) == ()
    assert took.not_returned == ()
    assert took.dollars == pytest.approx(played.policy.spent(played.policy.now))
    if game.limits == Limits():
        assert played.policy.ending in set(EndReason) - {EndReason.DEADLINE, EndReason.BUDGET}


def sublinear(count: int) -> Benchmark:
    """Return n curves, which 8 GPUs train 2.3 times as fast as one."""
    return small_benchmark(
        curves(count, 27, 3), scaling=Scaling({1.0: 1.0, 2.0: 1.5, 4.0: 2.0, 8.0: 2.3})
    )


STUDY = sublinear(120)


def results(strategy: str, deadline: float, budget: float, made: Benchmark = STUDY) -> list[Result]:
    """Return four runs on the same curves, each with its own luck."""
    limits = Limits(deadline, budget)
    wanted = [Case(strategy, limits, seed=seed, sampler="random") for seed in range(4)]
    return [tried(made, one) for one in wanted]


def regret(result: list[Result]) -> float:
    """Return the mean regret; nothing reached is the worst."""
    return fmean(1.0 if item.regret is None else item.regret for item in result)


@pytest.mark.parametrize(
    ("cells", "slack"),
    [
        ([(3000, 5), (3000, 10), (3000, 20), (3000, 40)], 1.0),
        ([(1000, 1000), (1500, 1000), (2500, 1000)], 1.0),
        # The same money, more slowly: with fewer GPUs at once new trials may begin deeper.
        ([(1500, 10), (3000, 10), (6000, 10)], 0.5),
    ],
    ids=["money", "time", "time for the same money"],
)
def test_se2_more_is_never_clearly_worse(cells: list[tuple[float, float]], slack: float) -> None:
    before: list[Result] = []
    for deadline, budget in cells:
        result = results("seer", deadline, budget)
        assert all(item.violations == () for item in result)
        if before:
            assert fmean(o.trials for o in result) >= slack * fmean(o.trials for o in before)
            assert regret(result) <= regret(before) + 0.01
        before = result


TIGHT = own(60, max_instances=4, profile=profile(SUBLINEAR), limits=Limits(200.0, None))
LOOSE = replace(TIGHT, limits=Limits(6000.0, 24.0))


def widest_share(took: Audit) -> float:
    """Return the part of the GPU-seconds held that was held at more than one GPU."""
    held = [((span.end - span.begin) * span.width, span.width) for span in took.spans]
    return sum(item for item, width in held if width > 1) / sum(item for item, _ in held)


def test_se4_trials_are_wide_where_the_deadline_needs_it() -> None:
    """Loose: one GPU each, but for the last before the money ends."""
    _, tight = seer(TIGHT)
    _, loose = seer(LOOSE)
    assert widest_share(loose) < 0.05 < widest_share(tight)


@pytest.mark.parametrize(("boot", "width"), [(0.0, 2.0), (30.0, 4.0)])
def test_se4_a_boot_leaves_less_time_and_widens(boot: float, width: float) -> None:
    game = own(12, limits=Limits(100.0, 100.0))
    slow = replace(game.profile, boot=replace(game.profile.boot, mean=boot))
    played, _ = seer(game.but(profile=slow))
    assert played.starts[0].width == width


def drawn(seed: int, slower: float = 1.0) -> Setting:
    """Return a job whose limits are 1.02 to 2.5 times what one trial's whole schedule takes.

    In the cheapest way there is, and with the time in which a run gives everything back.
    """
    luck, brakes = random.Random(seed), Brakes()
    known = profile(luck.choice([LINEAR, SUBLINEAR, NODE_BOUNDARY, FLAT]))
    world, late = known.slow_down(slower), brakes.tick + brakes.drain
    ways = []
    for width, epoch in world.epoch.items():
        boxes = math.ceil(width / 4)
        lived = world.boot.mean + world.start.mean + 27 * epoch.mean + world.release.mean + late
        ways.append((boxes * lived * 0.01, lived + world.launch.mean))
    dollars, seconds = min(ways)
    factors = luck.uniform(1.02, 2.5), luck.uniform(1.02, 2.5)
    return own(
        luck.choice([4, 12, 30, 60]),
        seed=seed,
        max_instances=4,
        profile=known,
        limits=Limits(factors[0] * seconds, factors[1] * dollars),
        slower=slower,
    )


@pytest.mark.parametrize("slower", [1.0, 1.1])
def test_se5_the_winner_ends_whenever_one_schedule_fits(slower: float) -> None:
    """40 of 40, by a right profile and by one that is wrong by what exploring keeps room for."""
    for seed in range(40):
        game = drawn(seed, slower=slower)
        played, took = seer(game, "seer-full")
        assert took.violations(game.limits) == ()
        assert max(played.epochs.values(), default=0) == 27, (seed, game.limits)


def test_se6_it_stops_widening_where_wide_is_slower() -> None:
    """Once it has seen how slow a width is, no trial gets it any more."""
    slower = profile({1.0: 8.0, 2.0: 9.0, 4.0: 10.0, 8.0: 11.0})
    for seed in range(6):
        takes = slower.launch.mean + slower.boot.mean + slower.start.mean + 27 * 8.0 + 12.0
        limits = Limits(2.0 * takes, 2.5 * takes * 0.01)
        game = own(60, seed=seed, max_instances=4, profile=profile(LINEAR), limits=limits)
        real = tuple(replace(rentable, profile=slower) for rentable in game.rentables)
        played, took = seer(game.but(real=real), "seer-full")
        for width in (2.0, 4.0, 8.0):
            spans = [span for span in took.spans if span.width == width]
            result = [span.end for span in spans if span.trained]
            assert [s.begin for s in spans if s.begin > min(result, default=math.inf)] == []
        assert max(played.epochs.values()) == 27


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_se3_whoever_is_ahead_is_at_least_as_wide(seed: int) -> None:
    game = drawn(seed)
    played = play(game, "seer-full")
    again = game.but(by="seer-full").policy(sampler=Given(game.given))
    strategy = cast("BestSearch", cast("Watched", again.strategy).inner)
    for entry in played.entries:
        again.handle(entry.event)
        widths = [seat.width for seat in strategy.seats.values()]
        assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("scaling", [LINEAR, SUBLINEAR, NODE_BOUNDARY, FLAT])
def test_se4_wide_only_as_far_as_the_deadline_needs_it(scaling: Mapping[float, float]) -> None:
    """One trial: ever more time, ever narrower, and at last no wider than is cheapest."""
    result = []
    for factor in (1.1, 2.0, 4.0, 30.0):
        known = profile(scaling)
        fastest = 27 * min(item.mean for item in known.epoch.values())
        limits = Limits(40.0 + factor * fastest, None)
        played, took = seer(own(1, max_instances=4, profile=known, limits=limits))
        assert max(played.epochs.values()) == 27
        result.append(max(span.width for span in took.spans))
    assert result == sorted(result, reverse=True)
    assert result[-1] == 1.0


def test_se5_nothing_continues_that_could_not_finish_an_epoch() -> None:
    """Neither time nor money is left for one when the run ends."""
    for seed in range(12):
        game = own(
            40,
            seed=seed,
            max_instances=4,
            profile=profile(SUBLINEAR),
            limits=Limits(260.0, 3.0),
        )
        _, took = seer(game)
        late = [span for span in took.spans if not span.trained and span.end > took.seconds - 15.0]
        assert late == []


@pytest.mark.parametrize("budget", [20.0, 24.0, 30.0])
def test_se5_the_winner_ends_if_only_two_are_fast_enough(budget: float) -> None:
    """27 epochs take 1,080 s on one instance, and $10.8 on two; there are 1,050 s."""
    wide = profile({1.0: 80.0, 2.0: 50.0, 4.0: 40.0, 8.0: 20.0})
    limits = Limits(wide.launch.mean + wide.boot.mean + 1050.0, budget)
    played, took = seer(own(40, max_instances=4, profile=wide, limits=limits))
    assert took.violations(limits) == ()
    assert max(played.epochs.values()) == 27
    assert len(played.policy.trials) > 8


CELLS = [(1500, 10), (6000, 40)]


@pytest.mark.parametrize(("count", "more"), [(60, 0.0), (120, 0.002)])
def test_se7_beats_asha_over_a_grid_of_limits_or_ties(count: int, more: float) -> None:
    """Where configurations run out ASHA can't use what is left; where they don't, they tie."""
    made = sublinear(count)
    ours = [regret(results("seer", *cell, made)) for cell in CELLS]
    theirs = [regret(results("asha", *cell, made)) for cell in CELLS]
    assert fmean(ours) <= fmean(theirs) + more
