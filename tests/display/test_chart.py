from hypothesis import given
from hypothesis import strategies as st

from cloudtune.display.chart import DOLLAR_STEPS, TIME_STEPS, axis


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
