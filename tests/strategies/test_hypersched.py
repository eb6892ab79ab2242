import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest

from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Limits
from cloudtune.model.progress import Status, TrialProgress
from cloudtune.model.trial import EndReason, Mode, Trial
from cloudtune.policy.base import Brakes
from cloudtune.policy.context import BuildContext
from cloudtune.policy.registry import chosen, components
from cloudtune.strategies.allocators.hypersched import POLICIES, HyperSchedAllocator
from cloudtune.strategies.base import Decision, Go, Sampler, Strategy, Verdict, View
from cloudtune.strategies.hypersched import HyperSched
from cloudtune.strategies.hypersched_rules import Switches
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
GO = Go(100)
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
        return hypersched(max_epochs=9, eta=3, switches=KILLING)(sampler, game)


def hypersched(**options: object) -> Build:
    """Return a way to build the strategy; its last epoch is 100 and eta 2, unless set otherwise."""

    def build(sampler: Sampler, game: Setting) -> HyperSched:
        given = {"min_epochs": 1, "max_epochs": 100, "eta": 2, **options}
        return HyperSched(sampler, mode=game.mode, **given)  # type: ignore[arg-type]

    return build


@dataclass
class Script:
    """A strategy that gets results by hand; time is plenty, until it is set."""

    options: Mapping[str, object] = field(default_factory=dict)
    trials: tuple[Trial, ...] = field(default_factory=lambda: trials(9))
    mode: Mode = "max"

    def __post_init__(self) -> None:
        self.known: dict[str, TrialProgress] = {}
        self.state = SimpleNamespace(
            mode=self.mode,
            trials=self.known,
            running=(),
            free_gpus=0.0,
            seconds_left=math.inf,
            setups=[],
            limits=Limits(1000.0, None),
        )
        game = Setting(12, mode=self.mode)
        self.strategy = hypersched(**self.options)(Given(self.trials), game)

    @property
    def view(self) -> View:
        return cast("View", self.state)

    def says(self, name: str, epoch: int, metric: float, seconds: float = 1.0) -> Decision:
        """Report an epoch; a trial that is paused is parked at once."""
        trial = self.known.setdefault(name, TrialProgress(Trial(name, {}), width=1.0))
        trial.epoch, trial.metric, trial.epoch_seconds = epoch, metric, seconds
        trial.seconds += seconds
        trial.status = "training"
        decision = self.strategy.on_result(self.view, trial)
        if decision is Verdict.PAUSE:
            trial.status = "parked"
        return decision

    def asks(self, room: int = 9) -> dict[str, list[str]]:
        groups = self.strategy.requests(self.view, room)
        return {group.name: [task.trial.id for task in group.tasks] for group in groups}


@pytest.mark.parametrize("epoch", [1, 2, 3, 7, 8, 9, 32, 64, 128, 199])
def test_h1_trials_are_compared_at_powers_of_eta(epoch: int) -> None:
    """A bad epoch matters at a rung, and nowhere else."""
    script = Script({"min_epochs": 2, "max_epochs": 200, "eta": 4})
    for item in range(1, 200):
        script.says("good", item, 0.9)
        script.says("as good", item, 0.9)
    said = [script.says("bad", item, 0.1 if item == epoch else 0.9) for item in range(1, epoch + 1)]
    assert said[:-1] == [Go(200)] * (epoch - 1)
    assert (said[-1] is Verdict.PAUSE) == (epoch in {2, 8, 32, 128})


def test_h5_a_bad_trial_ends_at_the_last_epoch() -> None:
    script = Script({"max_epochs": 4})
    for epoch in (1, 2, 3):
        script.says("t0", epoch, 0.9)
        script.says("t1", epoch, 0.1)
    assert script.says("t0", 4, 0.9) is Verdict.FINISH
    assert script.says("t1", 4, 0.1) is Verdict.FINISH


def test_h17_where_less_is_better_the_greater_is_paused() -> None:
    script = Script(mode="min")
    script.says("t0", 1, 0.5)
    script.says("t1", 1, 0.9)
    assert script.says("t2", 1, 0.8) is Verdict.PAUSE
    assert script.says("t3", 1, 0.1) == GO
    assert script.says("t0", 2, 0.1) == GO


def test_what_is_trained_a_second_time_is_not_judged_again() -> None:
    """So a trial that was paused between two checkpoints gets further when it comes back."""
    script = Script()
    script.says("t0", 1, 0.9)
    script.says("t1", 1, 0.5)
    assert script.says("t1", 1, 0.5) == GO
    assert script.says("t1", 2, 0.5) is Verdict.PAUSE


@pytest.mark.parametrize("patient", [False, True])
def test_h4_a_paused_trial_another_rung_would_pause_again(patient: bool) -> None:
    """It is good enough where it was paused, the highest rung that it is below; but not at another.

    As published it is promoted; with patience it waits.
    """
    script = Script({"patient": patient})
    for name, first, second in (("a", 0.5, 0.5), ("b", 0.9, 0.9)):
        script.says(name, 1, first)
        script.says(name, 2, second)
    assert script.says("a", 3, 0.5) is Verdict.PAUSE
    for name, first in (("c", 0.95), ("d", 0.96)):
        assert script.says(name, 1, first) == GO
        assert script.says(name, 2, 0.1) is Verdict.PAUSE, "the rung at 2 asks for 0.3 in the end"
    assert script.asks().get("promoted", []) == ([] if patient else ["a"])
    if not patient:
        assert script.says("a", 4, 0.5) is Verdict.PAUSE, "by the rung at 1"


def test_h4_a_paused_trial_waits_for_its_atoms() -> None:
    script = Script()
    for name, metric in (("a", 0.5), ("b", 0.9)):
        script.says(name, 1, metric)
    assert script.says("a", 2, 0.5) is Verdict.PAUSE
    for name, metric in (("c", 0.3), ("d", 0.2)):
        assert script.says(name, 1, metric) is Verdict.PAUSE
    script.known["a"].width = 4.0
    script.state.running = (script.known["b"],)
    assert script.asks(3) == {"new": ["t00", "t01", "t02"]}
    assert script.asks(5) == {"promoted": ["a"], "new": ["t00"]}
    script.state.free_gpus = 4.0
    assert script.asks(1) == {"promoted": ["a"]}, "no more than the maximum at once"


def test_h4_a_paused_trial_goes_on_with_its_atoms() -> None:
    """Three on eight GPUs: the second is paused again and again, and there is nothing new."""
    game = replace(ONE_BY_ONE, caps={}, limits=Limits(600.0), trials=3)
    played = play(game, by_name("hypersched", max_epochs=100, eta=2))
    second = widths(played, "t01")
    assert len(second) > 20
    assert second == [1.0] + [3.0] * (len(second) - 1)


def test_p9_patience_begins_a_likely_pause_only_if_idle() -> None:
    script = Script({"patient": True}, trials=())
    for name, metric in (("a", 0.2), ("b", 0.9), ("c", 0.1), ("d", 0.3)):
        script.says(name, 1, metric)
    script.says("a", 2, 0.2)
    script.state.running = (script.known["b"],)
    assert script.asks() == {}
    script.state.running = ()
    script.known["b"].status = "finished"
    assert script.asks() == {"paused": ["a"]}, "the furthest"


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


@pytest.mark.parametrize("status", ["starting", "stopping", "failed"])
def test_only_what_is_parked_is_asked_for(status: Status) -> None:
    script = Script()
    script.says("a", 1, 0.9)
    script.says("b", 1, 0.5)
    script.known["b"].status = status
    assert "paused" not in script.asks()


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
    played = play(ONE_BY_ONE, hypersched(min_epochs=1000, max_epochs=1000))
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
    played = play(game, hypersched(min_epochs=1000, max_epochs=40))
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
def test_h8_h11_no_policy_takes_more_than_there_is(policy: str) -> None:
    """The policy checks at each event that no GPU is given twice."""
    game = replace(
        ONE_BY_ONE,
        trials=14,
        metric=None,
        limits=Limits(600.0, None),
        allocator=lambda: HyperSchedAllocator(policy=policy, seed=3, recharge=1),
    )
    played = play(game, hypersched(max_epochs=60))
    assert played.policy.ending is EndReason.DONE
    assert (played.policy.resizes > 0) == (policy != "NONE")


@pytest.mark.parametrize("deadline", [90.0, 200.0, 700.0])
def test_h15_nothing_runs_after_the_deadline(deadline: float) -> None:
    game = replace(ONE_BY_ONE, trials=40, metric=None, limits=Limits(deadline, None))
    played = play(game, hypersched(min_epochs=2, eta=4))
    seconds, _ = played.bill()
    assert seconds <= deadline
    assert not played.policy.state.running
    assert played.policy.best is not None
    assert played.policy.best.checkpoint is not None


def test_the_furthest_is_the_widest_when_time_runs_out() -> None:
    game = replace(ONE_BY_ONE, trials=60, metric=None, limits=Limits(700.0, None))
    played = play(game, hypersched(min_epochs=2, eta=4, max_epochs=500))
    assert played.starts[-1].width > 1.0
    assert max(played.epochs.values()) > 3 * sorted(played.epochs.values())[-9]
    assert len(played.epochs) < 60


def test_a_paused_trial_gets_further_though_checkpoints_are_rare() -> None:
    played = play(
        Setting(12, saves_every=4, offer=offer(1), max_instances=1), hypersched(max_epochs=9, eta=3)
    )
    assert set(played.epochs.values()) == {9}


def test_the_run_tells_how_long_setups_and_trials_took() -> None:
    """A start takes 4 s and an epoch 8; a start from a checkpoint takes 6."""
    game = Setting(3, metric=final([0.9, 0.8, 0.5]), offer=offer(1), max_instances=1)
    played = play(game, hypersched(max_epochs=2))
    assert played.policy.state.setups == [4.0, 4.0, 4.0, 6.0]
    assert [t.seconds for t in played.policy.trials.values()] == [20.0, 20.0, 26.0]
    assert {t.epoch_seconds for t in played.policy.trials.values()} == {8.0}


def test_without_a_deadline_all_are_trained_to_the_end() -> None:
    played = play(Setting(12), by_name("hypersched"))
    assert set(played.epochs.values()) == {9}


def context(game: Setting) -> BuildContext:
    return BuildContext(game.rentables, 3, Limits(3600.0, 1000.0), "max", 1, 9)


def test_its_name_brings_its_allocator_on_a_constant_fleet() -> None:
    made = components(context(Setting(12)), Given(()), chosen("hypersched"), Brakes())
    assert made.strategy.name == made.allocator.name == "hypersched"
    assert made.fleet_rule.name == "constant"
    other = components(
        context(Setting(12)), Given(()), chosen("asha", "hypersched:TOP_JOB", "naive:2"), Brakes()
    )
    assert (other.allocator.name, other.fleet_rule.name) == ("hypersched:TOP_JOB", "naive")
