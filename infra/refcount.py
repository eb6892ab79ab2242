"""Who uses the cloud of a folder here: it is not idle as long as somebody does, instances or not.

A run takes seconds until it has its first instance. Till then, and to its end, it holds a lock in
that folder, which the system lets go of when the run's process ends, however it ends.
"""

import fcntl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.infra.provider import Cloud

LOCK = "users.lock"
TAKEN = (
    "another run has this machine (`cloudtune status` shows it); wait for its end, or free the "
    "machine with `cloudtune gc` if that run has died"
)


def claim(folder: Path, opened: Callable[[], Cloud], *, alone: bool = False) -> Cloud:
    """Return the cloud that `opened` gives, in use from before that until it is closed.

    Raises:
        UsageError: it is to be used `alone`, and somebody else uses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / LOCK).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
        cloud = opened()
    except BlockingIOError:
        lock.close()
        raise UsageError(TAKEN) from None
    except BaseException:
        lock.close()
        raise

    def close() -> None:
        lock.close()
        cloud.close()

    return replace(cloud, close=close)


def in_use(folder: Path) -> bool:
    """Whether somebody uses the cloud of a folder."""
    try:
        with (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it never was in use
        return False
    return False
