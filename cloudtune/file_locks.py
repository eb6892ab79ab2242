"""Locks on files: the system releases them when their process ends, however it ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Wait for the lock of a file, which is created for this user alone, and hold it."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def share_lock(file: IO[str]) -> None:
    """Wait for the lock of an open file, and hold it beside others until the file is closed."""
    fcntl.flock(file, fcntl.LOCK_SH)


def try_lock(file: IO[str], *, shared: bool = False) -> bool:
    """Take the lock of an open file unless another process has it; return whether it was free."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
