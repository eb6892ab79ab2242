"""Durations and dollars: parsing and formatting."""

import math
import re

from cloudtune.errors import UsageError, quote

# The smallest amount: sums and quotients of such amounts stay finite.
LEAST_DOLLARS = 1e-9
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_UNIT_NAMES = {
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?"
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)\s*", re.IGNORECASE)
_BARE_NUMBER = re.compile(rf"[+-]?{_NUMBER}", re.IGNORECASE)

_AMOUNT = r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?)"
_DOLLARS = re.compile(rf"(?:\$|USD|US\$)?\s*{_AMOUNT}\s*(?:\$|USD)?", re.IGNORECASE)
_OTHER_CURRENCY = re.compile(r"[€£¥₹₩]|\b(?!USD\b)[A-Z]{3}\b", re.IGNORECASE)


def parse_seconds(text: str) -> float:
    """Return the seconds in a duration such as "2h", "1h30m", "1.5 hours" or "90s".

    Units go from large to small, each at most once: d, h, m, s, or their English names.

    Raises:
        UsageError: it isn't a duration, isn't positive, or has no unit.
    """
    given = text.strip()
    if _BARE_NUMBER.fullmatch(given):
        raise UsageError(_needs_unit(given))
    parts = _duration_parts(given)
    if not parts:
        raise UsageError(
            f"{quote(text)} is not a duration; write a positive one such as 90s, 30m, 2h or 1h30m"
        )
    seconds = math.fsum(number * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds < math.inf:
        raise UsageError(f"{quote(text)} is not a positive duration; write one such as 30m or 2h")
    return seconds


def _needs_unit(number: str) -> str:
    if number.startswith("-"):
        return f"'{number}' is not a positive duration; write one such as 30m or 2h"
    shortened = number.removeprefix("+")[:20]
    return (
        f"'{number}' has no unit (seconds, minutes or hours?); "
        f"write {shortened}s, {shortened}m or {shortened}h"
    )


def _duration_parts(text: str) -> list[tuple[float, str]]:
    """Return (number, unit) pairs; empty if the text isn't a duration."""
    parts: list[tuple[float, str]] = []
    position = 0
    while match := _DURATION_PART.match(text, position):
        unit = _UNIT_NAMES.get(match[2].lower())
        if unit is None or (parts and _UNITS[unit] >= _UNITS[parts[-1][1]]):
            return []
        parts.append((float(match[1]), unit))
        position = match.end()
    return parts if position == len(text) else []


def parse_dollars(value: str | float) -> float:
    """Return the US dollars in "$40", "40 USD", "$1,200.50" or a plain number.

    Raises:
        UsageError: it isn't an amount, isn't positive, or is in another currency.
    """
    amount = _amount(value)
    if amount is None:
        raise UsageError(_not_dollars(value))
    return amount


def _amount(value: object) -> float | None:
    if isinstance(value, str):
        match = _DOLLARS.fullmatch(value.strip())
        if match is None or not any(map(str.isdigit, match[1])):
            return None
        value = float(match[1].replace(",", ""))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        amount = float(value)
    except OverflowError:
        return None
    return amount if LEAST_DOLLARS <= amount < math.inf else None


def _not_dollars(value: object) -> str:
    if isinstance(value, str) and _OTHER_CURRENCY.search(value) and re.search("[0-9]", value):
        return f"{quote(value)} is not in US dollars, the only currency here; write it as $40"
    given = quote(value) if isinstance(value, str) else f"'{quote(value)}'"
    return f"{given} is not a positive amount in US dollars; write a positive amount such as $40"


def format_seconds(seconds: float) -> str:
    """Return "1h 10m", "4m 30s" or "12.3s": at most two units, none of them zero."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    digits = 1 if seconds >= 1 else 2
    if (short := round(seconds, digits)) < 60:
        return f"{short:g}s"
    if (whole := round(seconds)) < 3600:
        return _two(whole // 60, "m", whole % 60, "s")
    minutes = round(seconds / 60)
    return _two(minutes // 60, "h", minutes % 60, "m")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit} {small}{small_unit}" if small else f"{large}{large_unit}"


def format_clock(seconds: float) -> str:
    """Return "1:05" or "1:02:05", to the nearest second."""
    sign = "-" if round(seconds) < 0 else ""
    whole = abs(round(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{sign}{hours}:{minute:02}:{second:02}"
    return f"{sign}{minute}:{second:02}"


def format_dollars(dollars: float) -> str:
    """Return "$0.42" or "$1,200.50"; three decimals below a cent, "<$0.001" below a tenth of it."""
    if dollars < 0:
        return f"-{format_dollars(-dollars)}"
    if 0 < dollars < 0.0005:
        return "<$0.001"
    if 0 < (tenths := round(dollars, 3)) < 0.01:
        return f"${tenths:.3f}"
    return f"${dollars:,.2f}"


def format_gpu_hours(hours: float) -> str:
    """Return "1,200.50 GPU-hours"."""
    return f"{hours:,.2f} GPU-hours"


def format_bytes(size: float) -> str:
    """Return "512 B", "3.8 GB": steps of a thousand."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
