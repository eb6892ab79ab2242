"""The users of a cloud on this machine: it isn't idle while there are any, instances or not.

A run takes seconds to get its first instance. From its start to its end it holds a lock in the
cloud's folder, which the system releases when the run's process ends, however it ends.
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
    """Return the cloud from `opened`, marked as in use until it is closed.

    Raises:
        UsageError: it should be used `alone`, and is in use.
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
    """Whether the cloud of a folder is in use."""
    try:
        with (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it never was in use
        return False
    return False
