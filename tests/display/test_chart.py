from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.display.chart import DOLLAR_STEPS, TIME_STEPS, axis, chart
from cloudtune.plans import Estimate, Limits

FRONT = [Estimate(600.0, 9.0), Estimate(900.0, 5.0), Estimate(1500.0, 3.0), Estimate(2400.0, 2.5)]
CHOSEN = FRONT[2]

seconds = st.floats(0.5, 1e7)
dollars = st.floats(0.0, 1e6)
estimates = st.builds(Estimate, seconds, dollars)
limits = st.builds(Limits, st.none() | seconds, st.none() | dollars)


def field(lines: list[str]) -> list[str]:
    """Return the rows of the field alone, without their labels and the axis."""
    begin = lines[10].index("+") + 1
    return [line[begin:] for line in lines[1:10]]


@given(st.lists(estimates, max_size=6), estimates, limits)
def test_any_front_fits_and_shows_the_choice_once(
    front: list[Estimate], chosen: Estimate, within: Limits
) -> None:
    lines = chart(front, chosen, within, width=60, height=9)
    assert len(lines) <= 15
    assert max(map(len, lines[:12])) <= 60 + 16
    rows = field(lines)
    assert len(rows) == 9
    assert all(len(row) <= 60 for row in rows)
    assert sum(row.count("@") for row in rows) == 1
    assert sum(row.count("o") for row in rows) <= len(front)


def test_time_goes_to_the_right_and_cost_up() -> None:
    rows = field(chart(FRONT, CHOSEN, Limits()))
    found = [(row.find(mark), n) for n, row in enumerate(rows) for mark in "o@" if mark in row]
    columns = [column for column, _ in found]
    assert columns == sorted(columns)  # the dearest comes first, and it is the fastest
    assert len(found) >= 3
    assert not any(mark in row for row in rows for mark in ".:-")


def test_both_axes_have_round_values_with_units() -> None:
    text = "\n".join(chart(FRONT, CHOSEN, Limits()))
    assert "$4.00 +" in text
    assert "$8.00 +" in text
    assert "10m" in text
    assert "30m" in text


def test_limits_are_lines_and_what_breaks_them_is_shaded() -> None:
    lines = chart(FRONT, CHOSEN, Limits(deadline=2000.0, budget=6.0))
    rows = field(lines)
    line = next(n for n, row in enumerate(rows) if row.startswith("--"))
    column = rows[-1].index(":")
    assert all(set(row) <= {" ", ".", "o"} for row in rows[:line])
    assert all(row[column] == ":" for row in rows[line + 1 :])
    assert all("." not in row[:column] for row in rows[line:])
    assert any("." in row[column:] for row in rows[line + 1 :])
    assert ": deadline 33m 20s" in lines[-1]
    assert "- budget $6.00" in lines[-1]


def test_a_limit_far_off_is_only_told() -> None:
    lines = chart(FRONT, CHOSEN, Limits(deadline=86400.0))
    assert not any(":" in row or "." in row for row in field(lines))
    assert "deadline 24h: off the right" in lines[-1]


def test_a_limit_that_no_plan_keeps_shades_everything() -> None:
    dear = [Estimate(600.0, 110.0), Estimate(900.0, 100.0)]
    lines = chart(dear, dear[0], Limits(budget=40.0))
    assert all("." in row for row in field(lines))
    assert "budget $40.00: less than all of these" in lines[-1]


def test_a_single_plan_stands_in_the_middle() -> None:
    lines = chart([CHOSEN], CHOSEN, Limits(), width=61, height=9)
    rows = field(lines)
    assert rows[4].index("@") == 30
    assert lines[12:] == ["@ this plan"]


def test_equal_times_stand_in_one_column() -> None:
    one, other = Estimate(60.0, 1.0), Estimate(60.0, 2.0)
    rows = field(chart([one, other], one, Limits()))
    assert {row.find("o") for row in rows if "o" in row} == {
        row.find("@") for row in rows if "@" in row
    }


def test_a_wide_front_gets_a_logarithmic_scale() -> None:
    wide = [Estimate(60.0, 9.0), Estimate(600.0, 8.0), Estimate(6000.0, 7.0)]
    lines = chart(wide, wide[0], Limits())
    assert lines[0] == "Cost against time (time on a log scale)"
    first, middle, last = sorted(
        row.index(mark) for row in field(lines) for mark in "o@" if mark in row
    )
    assert middle - first == pytest.approx(last - middle, abs=1)


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=5), st.none() | st.floats(0.0, 1e6))
def test_an_axis_holds_its_values_and_has_a_few_marks(
    values: list[float], limit: float | None
) -> None:
    for steps in (TIME_STEPS, DOLLAR_STEPS):
        found = axis(values, limit, steps, 5)
        assert all(found.holds(value) for value in values)
        assert 2 <= len(found.ticks) <= 5
        assert all(found.holds(tick) for tick in found.ticks)
        assert list(found.ticks) == sorted(found.ticks)
