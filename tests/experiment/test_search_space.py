import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.errors import ExperimentError
from cloudtune.experiment.search_space import (
    Categories,
    Constant,
    Domain,
    Grid,
    LogRandInt,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
    parse_domain,
)
from cloudtune.experiment.spaces import sample

DOMAINS: list[tuple[object, Domain]] = [
    ({"uniform": [0.0, 0.99]}, Uniform(0.0, 0.99)),
    ({"loguniform": [1e-4, 1]}, LogUniform(1e-4, 1)),
    ({"quniform": [0, 0.6, 0.1]}, QUniform(0, 0.6, 0.1)),
    ({"qloguniform": [0.1, 0.6, 0.1]}, QLogUniform(0.1, 0.6, 0.1)),
    ({"randint": [8, 65]}, RandInt(8, 65)),
    ({"lograndint": [8, 65]}, LogRandInt(8, 65)),
    ({"choice": [16, "relu", None]}, Categories((16, "relu", None))),
    ({"grid": [True, False]}, Grid((True, False))),
    (5, Constant(5)),
    ("adam", Constant("adam")),
    (False, Constant(False)),
]


def draw(domain: Domain, count: int = 4000) -> list[Any]:
    return [config["x"] for config in sample({"x": domain}, count, seed=1)]


@pytest.mark.parametrize(("written", "domain"), DOMAINS)
def test_what_is_written_is_read(written: object, domain: Domain) -> None:
    assert parse_domain(written) == domain
    assert parse_domain(domain) is domain


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"logunifrm": [1, 2]}, "unknown distribution 'logunifrm'; allowed: uniform, loguniform,"),
        ({"logunifrm": [1, 2]}, "Did you mean 'loguniform'?"),
        ({"uniform": [1, 1]}, "low is 1 and high is 1; write a low that is below the high"),
        ({"uniform": [1]}, "[1] has the wrong length; write uniform: [low, high]"),
        ({"uniform": 3}, "3 is not a list; write uniform: [low, high]"),
        ({"uniform": ["1e-4", 1]}, "low is the text '1e-4'; write a number such as 0.1, without"),
        ({"uniform": [True, 2]}, "low is true; write a number"),
        ({"uniform": [0, math.nan]}, "nan is not a finite number"),
        ({"uniform": [-1e308, 1e308]}, "too wide; narrow it"),
        ({"uniform": [0, 10**5000]}, "a whole number of 16610 bits does not fit into 64 bits"),
        ({"loguniform": [0, 1]}, "low is 0, and a logarithmic scale starts above 0"),
        ({"quniform": [0, 1]}, "write quniform: [low, high, q]"),
        ({"quniform": [0, 1, 0]}, "the step q is 0; write one above 0 such as 0.1"),
        ({"lograndint": [0, 9]}, "such as 1, or use randint"),
        ({"quniform": [0, 1, 0.3]}, "high is 1, not a multiple of the step q = 0.3"),
        ({"randint": [1.0, 8]}, "low is 1.0; write a whole number such as 8"),
        ({"randint": [1, True]}, "high is true; write a whole number"),
        ({"choice": []}, "the list is empty; write at least one value"),
        ({"choice": "abc"}, "'abc' is not a list; write choice: [first, second, ...]"),
        ({"choice": [[object]]}, "is no value here; write text, a number, true, false, null or a"),
        ({"choice": ["\ud800"]}, "has characters that can't be printed"),
        ({"uniform": [0, 1], "q": 2}, "has 2 entries; write one distribution"),
        ([1, 2], "[1, 2] is a list; to choose one of them write {choice: [...]}"),
        (None, "is empty; write a constant or a distribution"),
        (object, "is no value here"),
    ],
)
def test_what_is_wrong_is_said(written: object, message: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        parse_domain(written)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_uniform_covers_its_range_evenly() -> None:
    values = draw(Uniform(2, 4))
    assert all(2 <= value <= 4 for value in values)
    assert statistics.fmean(values) == pytest.approx(3, abs=0.05)


def test_loguniform_gives_each_order_of_magnitude_its_share() -> None:
    values = draw(LogUniform(1e-4, 1))
    assert all(1e-4 <= value <= 1 for value in values)
    assert sum(value < 1e-2 for value in values) / len(values) == pytest.approx(0.5, abs=0.03)


def test_quniform_draws_ends_half_as_often() -> None:
    values = draw(QUniform(0, 0.6, 0.1))
    assert sorted(set(values)) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert values.count(0.0) / values.count(0.3) == pytest.approx(0.5, abs=0.1)


def test_randint_leaves_the_upper_bound_out() -> None:
    assert set(draw(RandInt(8, 11))) == {8, 9, 10}


def test_qloguniform_gives_doublings_equal_shares() -> None:
    values = draw(QLogUniform(0.1, 102.4, 0.1))
    assert values == [round(value, 1) for value in values]
    assert sum(value < 3.2 for value in values) / len(values) == pytest.approx(0.5, abs=0.03)


def test_grids_are_crossed_first_fastest() -> None:
    space: dict[str, Domain] = {"a": Grid((1, 2)), "b": Grid(("x", "y", "z")), "c": Constant(0)}
    pairs = [(config["a"], config["b"]) for config in sample(space, 100, seed=0)]
    assert pairs == [(1, "x"), (2, "x"), (1, "y"), (2, "y"), (1, "z"), (2, "z")]


def test_grid_cycles_beside_drawn_parameters() -> None:
    configs = sample({"a": Grid((1, 2)), "lr": Uniform(0, 1)}, trials=5, seed=0)
    assert [config["a"] for config in configs] == [1, 2, 1, 2, 1]
    assert len({config["lr"] for config in configs}) == 5


def test_draws_are_the_same_on_every_machine() -> None:
    space: dict[str, Domain] = {
        "lr": LogUniform(1e-4, 1),
        "width": RandInt(8, 65),
        "act": Categories(("relu", "tanh")),
    }
    assert sample(space, trials=2, seed=0) == (
        {"lr": pytest.approx(0.012774492886809954), "width": 52, "act": "relu"},
        {"lr": pytest.approx(0.001031682261569716), "width": 55, "act": "tanh"},
    )


def test_seeds_and_names_make_streams_of_their_own() -> None:
    twins: dict[str, Domain] = {"a": Uniform(0, 1), "b": Uniform(0, 1)}
    (first,) = sample(twins, trials=1, seed=0)
    (other,) = sample(twins, trials=1, seed=1)
    assert len({first["a"], first["b"], other["a"], other["b"]}) == 4


domains = st.sampled_from([domain for _, domain in DOMAINS])
spaces = st.dictionaries(st.text(min_size=1, max_size=3), domains, min_size=1, max_size=5)


@given(spaces, domains, st.integers(1, 12), st.integers(0, 9))
def test_added_parameters_keep_earlier_draws(
    space: dict[str, Domain], added: Domain, trials: int, seed: int
) -> None:
    before = sample(space, trials, seed)
    after = sample({**space, "added": added}, trials + 3, seed)
    for old, new in zip(before, after, strict=False):
        assert {**new, **old} == new


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), st.integers(0, 99))
@settings(max_examples=200)
def test_drawn_numbers_never_leave_their_range(one: float, other: float, seed: int) -> None:
    low, high = sorted((one, other))
    if low == high:
        return
    for domain in (Uniform(low, high), LogUniform(low, high)):
        for config in sample({"x": domain}, trials=5, seed=seed):
            value = config["x"]
            assert isinstance(value, float)
            assert low <= value <= high
