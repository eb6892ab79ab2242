from __future__ import annotations

from tests.contracts.strategy import OrderedContract
from tests.strategy_builders import Game, by_name, numbered, play


class TestRandomSearch(OrderedContract):
    name = "random"


def test_every_trial_is_trained_to_its_end_in_one_group() -> None:
    played = play(by_name("random"), Game(numbered(5, {2: 4, 3: 40})))
    assert played.epochs == {"t000": 9, "t001": 9, "t002": 4, "t003": 9, "t004": 9}
    assert {trial.status for trial in played.policy.trials.values()} == {"finished"}
    assert played.parts("") == {"random": 5}


def test_trials_begin_in_the_order_in_which_they_were_given() -> None:
    played = play(by_name("random"), Game(numbered(9), gpus=2, instances=1))
    assert [start.trial for start in played.starts] == [f"t{n:03d}" for n in range(9)]
