from collections.abc import Mapping, Sequence
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Played, Setting, by_name, offer, play, table
from tests.contracts.strategy import OrderedContract


class TestMedianStopping(OrderedContract):
    name = "median"


def in_turn(rows: Mapping[int, Sequence[float]], **options: int) -> Played:
    """Play rows by hand on one GPU: each trial is over before the next begins."""
    game = Setting(len(rows), metric=table(rows), offer=offer(1), max_instances=1)
    return play(game, by_name("median", **options))


def test_a_trial_below_the_median_of_the_running_averages_is_cut() -> None:
    """At epoch 2 the averages are 0.2, 0.5 and 0.8: a best of 0.5 isn't worse, 0.49 is."""
    rows = {
        0: [0.1, 0.3, 0.4],
        1: [0.4, 0.6, 0.4],
        2: [0.7, 0.9, 0.7],
        3: [0.5, 0.5, 0.5],
        4: [0.5, 0.4, 0.4],
        5: [0.49, 0.4, 0.4],
    }
    played = in_turn(rows, min_epochs=2, max_epochs=3)
    assert played.epochs == {"t00": 3, "t01": 3, "t02": 3, "t03": 3, "t04": 3, "t05": 2}
    assert played.policy.trials["t05"].status == "cut"


def test_nothing_is_cut_before_the_first_rung() -> None:
    rows = {n: [0.9] * 9 for n in range(3)} | {3: [0.1] * 9}
    assert in_turn(rows, min_epochs=5).epochs["t03"] == 5


@given(
    st.lists(
        st.lists(st.integers(0, 9), min_size=4, max_size=4).map(lambda r: [v / 8 for v in r]),
        min_size=1,
        max_size=9,
    )
)
def test_it_is_the_rule_of_the_paper(rows: list[list[float]]) -> None:
    """Trials come one by one, so that the others are those before."""
    expected: dict[str, int] = {}
    for number, row in enumerate(rows):
        last = 4
        for epoch in range(1, 5):
            others = [rows[n][:epoch] for n in range(number) if expected[f"t{n:02d}"] >= epoch]
            averages = [sum(other) / epoch for other in others]
            if epoch < 4 and len(others) >= 3 and max(row[:epoch]) < median(averages):
                last = epoch
                break
        expected[f"t{number:02d}"] = last
    assert in_turn(dict(enumerate(rows)), max_epochs=4).epochs == expected
