"""The users of a cloud on this machine: it isn't idle while there are any, instances or not.

A run takes seconds to get its first instance. From its start to its end it holds a lock in the
cloud's folder, which the system releases when the run's process ends, however it ends.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.file_locks import share_lock, try_lock
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
    with ExitStack() as stack:
        lock = stack.enter_context((folder / LOCK).open("a"))
        if not alone:
            share_lock(lock)
        elif not try_lock(lock):
            raise UsageError(TAKEN)
        cloud = opened()
        unlock = stack.pop_all().close

    def close() -> None:
        unlock()
        cloud.close()

    return replace(cloud, close=close)


def in_use(folder: Path) -> bool:
    """Whether the cloud of a folder is in use."""
    try:
        with (folder / LOCK).open("r") as lock:
            return not try_lock(lock)
    except OSError:  # it never was in use
        return False
