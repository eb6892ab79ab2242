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
