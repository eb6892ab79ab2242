from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.commands import ExtendTrial, Release
from cloudtune.plan import Limits
from cloudtune.strategies.halving import Halving
from cloudtune.strategies.sha import SuccessiveHalving
from cloudtune.trial import EndReason
from tests.builders import LINEAR, profile
from tests.contracts.strategy import OrderedContract
from tests.strategy_builders import Game, by_name, final, numbered, play

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloudtune.strategies.base import Sampler
    from cloudtune.trial import Mode
    from tests.strategy_builders import Build


class TestHalving(OrderedContract):
    name = "sha"

    @pytest.mark.parametrize("most", [1, 3, 5])
    def test_who_goes_on_depends_on_neither_fleet_nor_losses(self, game: Game, most: int) -> None:
        expected = self.play(Game()).epochs
        for saves_every in (1, 2, 5):
            shaken = game.but(
                instances=most,
                profile=profile(LINEAR, spread=0.3),
                saves_every=saves_every,
                gone={"i000": 55.0, "i001": 80.0},
                most_concurrent=most,
            )
            assert self.play(shaken).epochs == expected


class TestRepeatedHalving(OrderedContract):
    name = "sha"
    trials: ClassVar[int] = 5

    def build(self, sampler: Sampler, game: Game) -> Halving:
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
    going, reached = [t.id for t in numbered(sha.trials)], {}
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
def test_the_same_trials_go_on_as_where_the_stages_are_known_beforehand(
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

    game = Game(numbered(trials), metric=metric, mode=mode, gpus=gpus, naive=naive)
    sha = SuccessiveHalving(trials, first, last, eta, mode)
    assert play(halving(trials, first, last, eta), game).epochs == sha_epochs(sha, metric)


def test_a_rung_is_a_group() -> None:
    game = Game(numbered(27), metric=final([n / 27 for n in range(27)]), instances=1)
    played = play(halving(27, 1, 27, 3), game)
    assert played.parts("") == {
        "bracket 0, rung 0": 27,
        "bracket 0, rung 1": 9,
        "bracket 0, rung 2": 3,
        "bracket 0, rung 3": 1,
    }
    far = {name: epochs for name, epochs in played.epochs.items() if epochs > 3}
    assert far == {"t024": 9, "t025": 9, "t026": 27}


def test_a_trial_that_goes_on_keeps_its_gpu_and_the_losers_give_theirs_back() -> None:
    played = play(halving(4, 1, 4, 2), Game(numbered(4), instances=1))
    assert len(played.starts) == 4
    decided = [
        entry.commands
        for entry in played.entries
        if any(isinstance(c, ExtendTrial) for c in entry.commands)
    ]
    assert [[type(command).__name__ for command in said] for said in decided] == [
        ["StopTrial", "StopTrial", "ExtendTrial", "ExtendTrial"],
        ["StopTrial", "ExtendTrial"],
    ]
    assert [t.status for t in played.policy.trials.values()].count("cut") == 3


def test_trials_that_hold_make_room_for_the_rest_of_their_rung() -> None:
    played = play(halving(4, 1, 4, 2), Game(numbered(4), gpus=2, instances=1))
    assert {start.trial for start in played.starts[:4]} == {"t000", "t001", "t002", "t003"}
    assert all(start.start_epoch == 0 for start in played.starts[:4])
    assert {start.until_epoch for start in played.starts[:4]} == {1}


def test_a_trial_that_holds_makes_room_for_one_that_was_lost() -> None:
    """t001 loses its instance, no other is to be had, and t000 waits for it on the last GPU."""
    game = Game(numbered(2), gpus=1, gone={"i001": 30.0}, refused={"i002": 30.5})
    played = play(halving(2, 1, 4, 2), game)
    assert played.policy.ending is EndReason.DONE
    assert sorted(played.epochs.values()) == [1, 4]
    assert [start.trial for start in played.starts[:3]] == ["t000", "t001", "t001"]


def test_a_naive_fleet_shrinks_when_a_rung_is_decided() -> None:
    played = play(halving(8, 1, 8, 2), Game(numbered(8), naive=True))
    releases = [e.event.at for e in played.entries for c in e.commands if isinstance(c, Release)]
    assert releases[0] < releases[-1]


def test_one_trial_at_least_goes_on() -> None:
    assert max(play(halving(2, 1, 27, 3), Game(numbered(2))).epochs.values()) == 27


def test_who_failed_still_counts_in_the_size_of_the_next_rung() -> None:
    def metric(number: int, _epoch: int) -> float:
        return math.nan if number < 4 else number / 10

    played = play(halving(9, 1, 3, 3), Game(numbered(9), metric=metric))
    assert sorted(name for name, epochs in played.epochs.items() if epochs == 3) == [
        "t006",
        "t007",
        "t008",
    ]


def test_a_rung_of_which_all_fail_ends_the_bracket() -> None:
    def metric(number: int, epoch: int) -> float:
        return math.nan if epoch == 3 else float(number)

    played = play(halving(9, 1, 9, 3), Game(numbered(9), metric=metric))
    assert played.policy.ending is EndReason.DONE
    assert sorted(played.epochs.values()) == [1] * 6 + [3] * 3


def test_a_trial_at_its_own_last_epoch_keeps_its_place_and_trains_no_further() -> None:
    game = Game(numbered(6, {5: 1, 4: 2}), metric=final([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    played = play(halving(6, 1, 4, 2), game)
    assert played.epochs == {"t000": 1, "t001": 1, "t002": 1, "t003": 2, "t004": 2, "t005": 1}
    assert {n: t.status for n, t in played.policy.trials.items() if t.status != "cut"} == {
        "t004": "finished",
        "t005": "finished",
    }


def test_a_sampler_that_runs_dry_makes_the_rung_smaller() -> None:
    played = play(halving(27, 1, 9, 3), Game(numbered(6)))
    assert sorted(played.epochs.values()) == [1, 1, 1, 1, 3, 9]


def test_one_bracket_is_all_that_is_asked_for() -> None:
    played = play(halving(4, 1, 4, 2), Game(numbered(30)))
    assert len(played.epochs) == 4
    assert not played.policy.strategy.anytime


def test_another_bracket_begins_while_there_are_trials() -> None:
    played = play(by_name("sha", max_epochs=9), Game(numbered(22)))
    assert played.parts("") == {
        "bracket 0, rung 0": 9,
        "bracket 0, rung 1": 3,
        "bracket 0, rung 2": 1,
        "bracket 1, rung 0": 9,
        "bracket 1, rung 1": 3,
        "bracket 1, rung 2": 1,
        "bracket 2, rung 0": 4,
        "bracket 2, rung 1": 1,
        "bracket 2, rung 2": 1,
    }


def test_brackets_that_are_repeated_use_what_they_are_given() -> None:
    game = Game(numbered(500), limits=Limits(deadline=400.0))
    played = play(by_name("sha"), game)
    assert played.policy.ending is EndReason.DONE
    assert 330.0 < played.bill()[0] <= 400.0
    once = play(by_name("sha", trials=500), game)
    assert once.policy.ending is EndReason.DEADLINE
