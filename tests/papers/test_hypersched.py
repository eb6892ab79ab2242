import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Limits
from cloudtune.model.progress import TrialProgress
from cloudtune.model.trial import EndReason, Trial
from cloudtune.papers.hypersched import HyperSched
from cloudtune.papers.hypersched_rules import Switches
from cloudtune.papers.hypersched_widths import POLICIES, HyperSchedAllocator
from cloudtune.strategies.base import Decision, Go, Sampler, Strategy, Verdict, View
from tests.builders import (
    Build,
    Given,
    Played,
    Setting,
    by_name,
    final,
    offer,
    play,
    profile,
    trials,
)
from tests.contracts.strategy import StrategyContract

WIDTHS = profile(
    {1.0: 8.0, 2.0: 8 / 1.870, 3.0: 8 / 2.6455, 4.0: 8 / 3.421, 8.0: 8 / 5.598},
    start=2.0,
    resize=2.0,
)
"""ResNet-50's speed-ups, that of 3 GPUs interpolated."""
KILLING = Switches(use_pausing=False)


class TestHyperSched(StrategyContract):
    name = "hypersched"


class TestPatientHyperSched(StrategyContract):
    name = "hypersched-patient"


class TestHyperSchedWithItsAllocator(StrategyContract):
    name = "hypersched"

    @pytest.fixture(params=[False, True], ids=["constant", "naive"])
    def game(self, request: pytest.FixtureRequest) -> Setting:
        return Setting(12, naive=request.param, allocator=HyperSchedAllocator)


class TestKillingHyperSched(StrategyContract):
    """H16: the same without pauses."""

    name = "hypersched"

    def build(self, sampler: Sampler, game: Setting) -> Strategy:
        return make_hypersched(max_epochs=9, eta=3, switches=KILLING)(sampler, game)


def make_hypersched(**options: object) -> Build:
    """Return a way to build the strategy; its last epoch is 100 and eta 2, unless set otherwise."""

    def build(sampler: Sampler, game: Setting) -> HyperSched:
        given = {"min_epochs": 1, "max_epochs": 100, "eta": 2, **options}
        return HyperSched(sampler, mode=game.mode, **given)  # type: ignore[arg-type]

    return build


@pytest.mark.parametrize("epoch", [1, 2, 3, 7, 8, 9, 32, 64, 128, 199])
def test_h1_trials_are_compared_at_powers_of_eta(epoch: int) -> None:
    """A bad epoch matters at a rung, and nowhere else."""
    known: dict[str, TrialProgress] = {}
    plenty = {"seconds_left": math.inf, "setups": [], "limits": Limits(1000.0, None)}
    view = cast("View", SimpleNamespace(mode="max", trials=known, **plenty))
    build = make_hypersched(min_epochs=2, max_epochs=200, eta=4)
    strategy = build(Given(trials(9)), Setting(12))

    def says(name: str, at: int, metric: float) -> Decision:
        trial = known.setdefault(name, TrialProgress(Trial(name, {}), status="training"))
        trial.epoch, trial.metric, trial.epoch_seconds = at, metric, 1.0
        return strategy.on_result(view, trial)

    for item in range(1, 200):
        says("good", item, 0.9)
        says("as good", item, 0.9)
    said = [says("bad", item, 0.1 if item == epoch else 0.9) for item in range(1, epoch + 1)]
    assert said[:-1] == [Go(200)] * (epoch - 1)
    assert (said[-1] is Verdict.PAUSE) == (epoch in {2, 8, 32, 128})


def test_h4_paused_trial_keeps_its_atoms() -> None:
    """Three on eight GPUs: the second is paused again and again, and there is nothing new."""
    game = replace(ONE_BY_ONE, caps={}, limits=Limits(600.0), trials=3)
    played = play(game, by_name("hypersched", max_epochs=100, eta=2))
    second = widths(played, "t01")
    assert len(second) > 20
    assert second == [1.0] + [3.0] * (len(second) - 1)


@pytest.mark.parametrize(
    ("name", "least", "most"), [("hypersched", 200, 999), ("hypersched-patient", 12, 60)]
)
def test_p9_once_there_is_nothing_new(name: str, least: int, most: int) -> None:
    """As published paused trials begin again and again; with patience most GPUs are the best's."""
    game = Setting(
        12,
        metric=lambda number, epoch: (7 * number) % 12 + epoch / 100,
        offer=offer(8),
        max_instances=1,
        profile=profile({1.0: 8.0, 2.0: 4.5, 4.0: 2.6, 8.0: 1.6}, start=2.0, resize=2.0),
        limits=Limits(1200.0),
        allocator=HyperSchedAllocator,
    )
    played = play(game, by_name(name, max_epochs=100, eta=4))
    assert least <= len(played.starts) <= most


def widths(played: Played, trial: str) -> list[float]:
    """Return how wide each session of a trial was."""
    return [start.width for start in played.starts if start.trial == trial]


ONE_BY_ONE = Setting(
    8,
    caps={n: 20 + 30 * (7 - n) for n in range(1, 8)},
    metric=final([0.9 - n / 10 for n in range(8)]),
    offer=offer(8),
    max_instances=1,
    profile=WIDTHS,
    allocator=HyperSchedAllocator,
)
"""Trials that end one after the other, the worst first; no rung stands in their way."""


def test_h18_the_winner_grows_as_the_others_end() -> None:
    played = play(ONE_BY_ONE, make_hypersched(min_epochs=1000, max_epochs=1000))
    assert widths(played, "t00") == [1.0, 2.0, 3.0, 4.0, 8.0]
    assert played.policy.resizes > 4


def test_h11_growth_waits_until_the_gpus_are_free() -> None:
    """When t0 first may grow, t1 to t3 have all of what is not its own; t1 ends after 16 epochs."""
    game = replace(
        ONE_BY_ONE,
        trials=4,
        caps=dict.fromkeys((1, 2, 3), 16),
        allocator=lambda: HyperSchedAllocator(policy="TOP_JOB"),
        offer=offer(4),
    )
    played = play(game, make_hypersched(min_epochs=1000, max_epochs=40))
    assert widths(played, "t00") == [1.0, 4.0]
    grown = next(e for e in played.entries for c in e.commands if _starts(c, "t00.2"))
    ended = [
        e.event.at
        for e in played.entries
        if isinstance(e.event, EpochDone) and e.event.epoch == 16 and "t00" not in e.event.session
    ]
    assert len(ended) == 3
    assert grown.event.at >= max(ended)


def _starts(command: object, session: str) -> bool:
    return isinstance(command, StartTrial) and command.session == session


@pytest.mark.parametrize("policy", list(POLICIES))
def test_h8_h11_no_policy_overdraws(policy: str) -> None:
    """The policy checks at each event that no GPU is given twice."""
    game = replace(
        ONE_BY_ONE,
        trials=14,
        metric=None,
        limits=Limits(600.0, None),
        allocator=lambda: HyperSchedAllocator(policy=policy, seed=3, recharge=1),
    )
    played = play(game, make_hypersched(max_epochs=60))
    assert played.policy.ending is EndReason.DONE
    assert (played.policy.resizes > 0) == (policy != "NONE")


@pytest.mark.parametrize("deadline", [90.0, 200.0, 700.0])
def test_h15_nothing_runs_after_the_deadline(deadline: float) -> None:
    game = replace(ONE_BY_ONE, trials=40, metric=None, limits=Limits(deadline, None))
    played = play(game, make_hypersched(min_epochs=2, eta=4))
    seconds, _ = played.bill()
    assert seconds <= deadline
    assert not played.policy.state.running
    assert played.policy.best is not None
    assert played.policy.best.checkpoint is not None
