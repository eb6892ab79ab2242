from tests.builders import Setting, by_name, offer, play
from tests.contracts.strategy import OrderedContract


class TestRandomSearch(OrderedContract):
    name = "random"


def test_every_trial_is_trained_to_its_end_in_one_group() -> None:
    played = play(Setting(5, caps={2: 4, 3: 40}), by_name("random"))
    assert played.epochs == {"t00": 9, "t01": 9, "t02": 4, "t03": 9, "t04": 9}
    assert {trial.status for trial in played.policy.trials.values()} == {"finished"}
    assert played.parts("") == {"random": 5}


def test_trials_begin_in_the_order_in_which_they_were_given() -> None:
    played = play(Setting(9, offer=offer(2), max_instances=1), by_name("random"))
    assert [start.trial for start in played.starts] == [f"t{n:02d}" for n in range(9)]
