"""Unix time that isn't affected by clock changes while a process runs, for the limits."""

import time

# It continues while the machine sleeps; only Linux has it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_OFFSET = time.time() - time.clock_gettime(_CLOCK)


def unix_time() -> float:
    """Return the seconds since 1970, by the clock at the start of this process."""
    return _OFFSET + time.clock_gettime(_CLOCK)


def utc_date(at: float | None = None) -> str:
    """Return the date of a Unix time (default: now) in UTC, YYYY-MM-DD, as ledgers write dates."""
    return time.strftime("%Y-%m-%d", time.gmtime(unix_time() if at is None else at))
