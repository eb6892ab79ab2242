import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.errors import UsageError
from cloudtune.model import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("5m", 300),
        ("1 hour 1 minute 1 second", 3661),
        ("1 Day", 86400),
        ("1e3s", 1000),
        ("0h 5m", 300),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["90", "1.5", "1e3", "+90"])
def test_bare_number_names_the_units(text: str) -> None:
    number = text.removeprefix("+")
    with pytest.raises(UsageError, match="has no unit") as refused:
        units.parse_seconds(text)
    assert str(refused.value).endswith(f"write {number}s, {number}m or {number}h")


@pytest.mark.parametrize("text", ["", "soon", "2 weeks", "30m1h", "2h-5m", "٣h", "nan", "inf"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration; write a positive one such as 90s"):
        units.parse_seconds(text)


@pytest.mark.parametrize("text", ["0s", "0h0m", "1e999h", "-5", "-1.5"])
def test_durations_are_positive_and_finite(text: str) -> None:
    with pytest.raises(UsageError, match="is not a positive duration"):
        units.parse_seconds(text)


@pytest.mark.parametrize(
    ("value", "dollars"),
    [
        ("$40", 40),
        ("40 USD", 40),
        ("US$40", 40),
        ("$1,200.50", 1200.5),
        ("$.5", 0.5),
        ("40", 40),
        (0.25, 0.25),
    ],
)
def test_an_amount_is_read_in_dollars(value: str | float, dollars: float) -> None:
    assert units.parse_dollars(value) == dollars


@pytest.mark.parametrize("value", ["€40", "40 EUR", "£3", "gbp 12"])
def test_other_currencies_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match="is not in US dollars, the only currency here"):
        units.parse_dollars(value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "$", "-3", "$-3", "0", "$0.00", "1,2", "1,2000", "lots", "USD", "nan", "٣"),
        "9" * 400,
        *(0, -3, math.nan, math.inf, -math.inf, 10**400, True, None, []),
    ],
)
def test_what_is_no_positive_amount_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"is not a positive amount .* such as \$40"):
        units.parse_dollars(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.format_seconds, 0.04, "0.04s"),
        (units.format_seconds, 12.34, "12.3s"),
        (units.format_seconds, 59.96, "1m"),
        (units.format_seconds, 65, "1m 5s"),
        (units.format_seconds, 270, "4m 30s"),
        (units.format_seconds, 4205, "1h 10m"),
        (units.format_seconds, 93600, "26h"),
        (units.format_seconds, -270, "-4m 30s"),
        (units.format_clock, 0, "0:00"),
        (units.format_clock, 65, "1:05"),
        (units.format_clock, 3725, "1:02:05"),
        (units.format_clock, 59.6, "1:00"),
        (units.format_clock, -65, "-1:05"),
        (units.format_clock, -0.2, "0:00"),
        (units.format_dollars, 0.4172, "$0.42"),
        (units.format_dollars, 0.004, "$0.004"),
        (units.format_dollars, 0.0001, "<$0.001"),
        (units.format_dollars, 1200.5, "$1,200.50"),
        (units.format_dollars, -0.42, "-$0.42"),
    ],
)
def test_numbers_for_people(show: Callable[[float], str], value: float, text: str) -> None:
    assert show(value) == text


@given(st.floats(min_value=0.01, max_value=1e9))
def test_formatted_seconds_read_back_to_what_was_shown(seconds: float) -> None:
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(
        seconds, rel=0.01, abs=0.0501
    )


@given(st.floats(min_value=0.01, max_value=1e9))
def test_formatted_dollars_read_back_to_the_cent(dollars: float) -> None:
    assert units.parse_dollars(units.format_dollars(dollars)) == pytest.approx(dollars, abs=0.00501)


@given(st.one_of(st.text(), st.from_regex(r"[-+$]?[0-9.,e]{1,8} ?[a-zA-Z$]{0,5}")))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (units.parse_seconds, units.parse_dollars):
        try:
            value = parse(text)
        except UsageError:
            continue
        assert 0 < value < math.inf
