"""What else the machine does: for how long a thread has waited for a core."""

from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def waited_seconds() -> float:
    """Return for how long the calling thread has waited for a core in its life.

    That is Linux's own count; 0 where there is none. A thread that sleeps or reads waits for none.
    """
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
