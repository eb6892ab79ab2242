from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason, Mode
from cloudtune.strategies.base import Sampler
from cloudtune.strategies.successive_halving import Halving, SuccessiveHalving
from tests.builders import (
    LINEAR,
    Build,
    Setting,
    by_name,
    final,
    gone,
    offer,
    play,
    profile,
    trials,
)
from tests.contracts.strategy import OrderedContract


class TestHalving(OrderedContract):
    name = "sha"

    @pytest.mark.parametrize("most", [1, 3, 5])
    def test_who_goes_on_depends_on_results_alone(self, game: Setting, most: int) -> None:
        expected = self.play(Setting(12)).epochs
        for saves_every in (1, 2, 5):
            shaken = game.but(
                max_instances=most,
                profile=profile(LINEAR, spread=0.3),
                saves_every=saves_every,
                trouble=gone({"i000": 55.0, "i001": 80.0}),
                max_concurrent=most,
            )
            assert self.play(shaken).epochs == expected


class TestRepeatedHalving(OrderedContract):
    name = "sha"
    trials: ClassVar[int] = 5

    def build(self, sampler: Sampler, game: Setting) -> Halving:
        return Halving(
            sampler, trials=5, min_epochs=2, max_epochs=9, eta=2, mode=game.mode, repeat=True
        )


def halving(trials: int, min_epochs: int, max_epochs: int, eta: int) -> Build:
    return lambda sampler, game: Halving(
        sampler,
        trials=trials,
        min_epochs=min_epochs,
        max_epochs=max_epochs,
        eta=eta,
        mode=game.mode,
    )


def sha_epochs(sha: SuccessiveHalving, metric: Callable[[int, int], float]) -> dict[str, int]:
    """Return how far each trial comes by the strategy that knows its stages beforehand."""
    going, reached = [t.id for t in trials(sha.trials)], {}
    for number, stage in enumerate(sha.stages()):
        results = {name: metric(int(name[1:]), stage.end_epoch) for name in going}
        reached.update(dict.fromkeys(going, stage.end_epoch))
        going = list(sha.promote(number, results))
    return reached


@given(
    trials=st.integers(1, 40),
    first=st.integers(1, 4),
    last=st.integers(1, 30),
    eta=st.integers(2, 4),
    mode=st.sampled_from(["min", "max"]),
    scores=st.lists(st.integers(0, 12), min_size=40, max_size=40),
    gpus=st.sampled_from([1, 4]),
    naive=st.booleans(),
)
def test_the_same_trials_go_on_as_with_known_stages(
    trials: int,
    first: int,
    last: int,
    eta: int,
    mode: Mode,
    scores: Sequence[int],
    gpus: int,
    naive: bool,
) -> None:
    def metric(number: int, epoch: int) -> float:
        return scores[number] + ((number * 5 + epoch) % 7) / 4

    game = Setting(trials, metric=metric, mode=mode, offer=offer(gpus), naive=naive)
    sha = SuccessiveHalving(trials, first, last, eta, mode)
    assert play(game, halving(trials, first, last, eta)).epochs == sha_epochs(sha, metric)


def test_a_trial_at_its_last_epoch_keeps_its_place() -> None:
    game = Setting(6, caps={5: 1, 4: 2}, metric=final([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    played = play(game, halving(6, 1, 4, 2))
    assert played.epochs == {"t00": 1, "t01": 1, "t02": 1, "t03": 2, "t04": 2, "t05": 1}
    statuses = {n: t.status for n, t in played.policy.trials.items() if t.status != "cut"}
    assert statuses == {"t04": "finished", "t05": "finished"}


def test_brackets_that_are_repeated_use_what_they_are_given() -> None:
    game = Setting(500, limits=Limits(deadline=400.0))
    played = play(game, by_name("sha"))
    assert played.policy.ending is EndReason.DONE
    assert 330.0 < played.bill()[0] <= 400.0
    once = play(game, by_name("sha", trials=500))
    assert once.policy.ending is EndReason.DEADLINE
