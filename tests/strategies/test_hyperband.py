import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.strategies.hyperband import bracket_shapes
from tests.contracts.strategy import OrderedContract


class TestHyperband(OrderedContract):
    name = "hyperband"


@pytest.mark.parametrize(
    ("arguments", "shapes"),
    [
        (
            (1, 81, 3),  # the paper's
            (
                (81, (1, 3, 9, 27, 81)),
                (34, (3, 9, 27, 81)),
                (15, (9, 27, 81)),
                (8, (27, 81)),
                (5, (81,)),
            ),
        ),
        ((9, 81, 3), ((9, (9, 27, 81)), (5, (27, 81)), (3, (81,)))),
        ((1, 100, 4), ((64, (2, 6, 25, 100)), (22, (6, 25, 100)), (8, (25, 100)), (4, (100,)))),
        ((1, 2, 3), ((1, (2,)),)),
        ((5, 5, 2), ((1, (5,)),)),
        ((9, 4, 2), ((1, (4,)),)),
    ],
)
def test_the_brackets_of_the_paper_and_between_other_epochs(
    arguments: tuple[int, int, int], shapes: tuple[tuple[int, tuple[int, ...]], ...]
) -> None:
    assert bracket_shapes(*arguments) == shapes


@given(first=st.integers(1, 20), last=st.integers(1, 1000), eta=st.integers(2, 6))
def test_rungs_rise_from_the_first_epoch_to_the_last(first: int, last: int, eta: int) -> None:
    shapes = bracket_shapes(first, last, eta)
    assert [len(epochs) for _, epochs in shapes] == list(range(len(shapes), 0, -1))
    for members, epochs in shapes:
        assert members >= 1
        assert epochs[-1] == last
        assert epochs[0] >= min(first, last)
        assert all(one < other for one, other in itertools.pairwise(epochs))
