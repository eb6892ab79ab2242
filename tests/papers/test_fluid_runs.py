"""Fluid's allocators in whole runs, played in virtual time: F1 to F22 as far as they are decisions.

What concerns processes and GPUs (F12 to F14, F18, F22) is shown elsewhere: docs/allocators.md.
"""

from collections.abc import Callable
from functools import partial

import pytest

from cloudtune.model.events import EpochDone
from cloudtune.model.trial import EndReason, Trial, TrialId, Width
from cloudtune.papers.fluid import PublishedDynamicFluid, StaticFluid
from cloudtune.policy.registry import ALLOCATORS
from cloudtune.strategies.allocators.fluid import DynamicFluid
from cloudtune.strategies.allocators.same import SameWidth
from cloudtune.strategies.base import Allocator, Task, TrialGroup
from cloudtune.strategies.grid import Sequential
from tests.builders import Played, Setting, by_name, final, offer, play, profile

LINEAR = {0.25: 32.0, 0.5: 16.0, 1.0: 8.0, 2.0: 4.0, 3.0: 8 / 3, 4.0: 2.0}
FREE = profile(LINEAR, start=0.0, resize=0.0, boot=0.0, launch=0.0, release=0.0)
GRID = by_name("grid", max_epochs=100)


def make_allocator(name: str) -> Allocator:
    return ALLOCATORS[name].build(None)  # type: ignore[arg-type]


def game(budgets: list[int], *, allocator: Callable[[], Allocator], **changes: object) -> Setting:
    """Return a game in which trial n is trained for n epochs, on one instance of 5 GPUs."""
    caps = dict(enumerate(budgets))
    base = Setting(len(budgets), caps=caps, offer=offer(5), max_instances=1, profile=FREE)
    return base.but(allocator=allocator, **changes)


def widths(played: Played) -> dict[TrialId, list[Width]]:
    result: dict[TrialId, list[Width]] = {}
    for start in played.starts:
        result.setdefault(start.trial, []).append(start.width)
    return result


def ends(played: Played) -> float:
    return max(e.event.at for e in played.entries if isinstance(e.event, EpochDone))


def test_f01_groups_hold_budgeted_trials() -> None:
    trial = Trial("t0", {})
    assert TrialGroup("g", (Task(trial, 3),)).tasks[0].until == 3
    with pytest.raises(ValueError, match="holds no trial"):
        TrialGroup("g", ())
    with pytest.raises(ValueError, match="needs a budget"):
        TrialGroup("g", (Task(trial, 0),))


def test_f03_the_golden_toy_as_a_run() -> None:
    """Budgets of 4, 4, 12 and 30 on five GPUs: half a GPU, half, one, three; done after 12."""
    packed = profile(
        {0.5: 2.0, 1.0: 1.0, 2.0: 0.5, 3.0: 1 / 3, 4.0: 0.25},
        start=0.0,
        resize=0.0,
        boot=0.0,
        launch=0.0,
        release=0.0,
    )
    played = play(game([4, 4, 12, 30], allocator=StaticFluid, profile=packed), GRID)
    assert widths(played) == {"t00": [0.5], "t01": [0.5], "t02": [1.0], "t03": [3.0]}
    assert ends(played) == pytest.approx(12.0)


@pytest.mark.parametrize("name", ["static-fluid", "fluid", "dynamic-fluid:published"])
def test_f04_the_longest_begin_first(name: str) -> None:
    """Two GPUs: both short ones and then the long one would take 30 s."""
    alone = profile({1.0: 1.0}, start=0.0, resize=0.0, boot=0.0, launch=0.0, release=0.0)
    three = game(
        [10, 10, 20], allocator=lambda: make_allocator(name), offer=offer(2), profile=alone
    )
    assert ends(play(three, GRID)) == pytest.approx(20.0)
    as_given = play(three.but(allocator=SameWidth), GRID)
    assert ends(as_given) == pytest.approx(30.0)
    by_groups = partial(Sequential, max_epochs=100, size=3)
    assert ends(play(three, lambda sampler, _: by_groups(sampler))) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("budgets", "plannings"),
    [
        ([18, 20, 32, 50, 80], 5),  # the group, and each end but the last
        ([20], 1),
    ],
)
def test_f08_it_plans_when_trials_or_gpus_change(budgets: list[int], plannings: int) -> None:
    allocator = DynamicFluid()
    played = play(game(budgets, allocator=lambda: allocator), GRID)
    assert allocator.plannings == plannings, f"{played.policy.resizes} resizes count for none"


def test_f09_freed_gpus_are_shared() -> None:
    """One and three GPUs by their shares of five; one is idle, and then those of who is done."""
    static = play(game([10, 30], allocator=StaticFluid), GRID)
    dynamic = play(game([10, 30], allocator=DynamicFluid), GRID)
    assert widths(static) == {"t00": [1.0], "t01": [3.0]}
    assert widths(dynamic)["t01"] == [3.0, 4.0]
    assert ends(dynamic) < ends(static)


def test_f10_unprofiled_trial_gets_one_gpu() -> None:
    played = play(game([30, 30], allocator=PublishedDynamicFluid), GRID)
    assert all(result[0] == 1.0 for result in widths(played).values())
    assert any(result[-1] > 1.0 for result in widths(played).values()), "then by what it measured"
    ours = play(game([30, 30], allocator=DynamicFluid), GRID)
    assert all(result[0] == 2.0 for result in widths(ours).values()), "the profile is good enough"


def test_f11_times_are_converted_by_the_curve() -> None:
    """Measured at half a GPU, reckoned at one: the shares are those of the budgets alone."""
    narrow = {0.5: 12.0, 1.0: 8.0, 2.0: 5.0, 4.0: 4.0}
    curved = profile(narrow, start=0.0, resize=0.0)
    played = play(
        game([6, 6, 6, 6, 6, 6, 6, 6, 6, 6], allocator=DynamicFluid, profile=curved), GRID
    )
    first = [result[0] for result in widths(played).values()]
    assert first.count(0.5) == 10


def test_f18_failed_trials_gpus_are_shared() -> None:
    def trouble(trial: str, _session: int, epoch: int) -> str:
        return "failed" if (trial, epoch) == ("t00", 2) else ""

    played = play(game([30, 30], allocator=DynamicFluid, mishap=trouble), GRID)
    assert played.policy.trials["t00"].status == "failed"
    assert widths(played)["t01"][-1] == 4.0
    assert played.epochs["t01"] == 30


@pytest.mark.parametrize("kind", [StaticFluid, DynamicFluid])
def test_f02_survivors_of_a_rung_are_a_group(kind: Callable[[], Allocator]) -> None:
    """Nine on eight GPUs have one each; three that go on share the eight; the last has four."""
    many = Setting(
        9, metric=final([n / 9 for n in range(9)]), offer=offer(4), max_instances=2, profile=FREE
    ).but(allocator=kind)
    played = play(many, by_name("sha", eta=3, max_epochs=9, trials=9))
    (best,) = (name for name, epochs in played.epochs.items() if epochs == 9)
    result = widths(played)[best]
    assert result[0] == 1.0
    assert result[-1] == 4.0
    assert sorted(played.epochs.values()) == [1] * 6 + [3] * 2 + [9]


def test_f20_longest_at_one_gpu() -> None:
    """On one and three of five GPUs 30 epochs end sooner than 20, and are longer at one GPU."""
    idle = game([20, 30], allocator=lambda: make_allocator("dynamic-fluid:published-idle"))
    beside = [(s.trial, s.width) for s in play(idle, GRID).starts if s.start_epoch < 15]
    assert ("t01", 4.0) in beside
    assert ("t00", 2.0) not in beside


def test_f21_no_more_run_at_once_than_may() -> None:
    played = play(game([5] * 10, allocator=DynamicFluid, max_concurrent=3), GRID)
    assert played.max_at_once() == 3
    assert sorted(played.epochs.values()) == [5] * 10


def test_f14_resize_repeats_no_epoch() -> None:
    played = play(game([10, 20], allocator=DynamicFluid), GRID)
    later = [start for start in played.starts if start.trial == "t00"][1:]
    assert later
    assert all(start.start_epoch > 0 and start.checkpoint for start in later)
    assert sum(isinstance(e.event, EpochDone) for e in played.entries) == 30


def test_f16_a_target_ends_the_whole_run() -> None:
    played = play(game([30, 30], allocator=DynamicFluid, target=0.01), GRID)
    assert played.policy.ending is EndReason.DONE
    assert sum(played.epochs.values()) < 60
