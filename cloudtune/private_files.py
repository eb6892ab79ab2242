"""What cloudtune keeps is its user's alone, whatever the umask; what a user asks for is not.

Records of runs hold commands, credentials of clouds on this machine, and what training printed.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

# In the environment of what we start: the umask that our user has.
UMASK_VARIABLE = "CLOUDTUNE_UMASK"
# As a umask: files for their owner alone.
_OURS_ALONE = 0o077
# The bits of all that are not the owner.
_OTHERS = 0o077


def keep_private() -> None:
    """From now on let files of this process, and of those it starts, be for its user alone."""
    umask = os.umask(_OURS_ALONE)
    os.environ.setdefault(UMASK_VARIABLE, f"{umask:o}")


def be_as_our_user() -> int:
    """Take the umask that our user has, for what is theirs; return the one until now."""
    try:
        return os.umask(int(os.environ.get(UMASK_VARIABLE, ""), 8) & 0o777)
    except ValueError:  # it is unchanged
        before = os.umask(_OURS_ALONE)
        os.umask(before)
        return before


@contextlib.contextmanager
def a_guest() -> Iterator[None]:
    """Leave a program that calls us its own umask, whatever becomes of it within this."""
    before = os.umask(_OURS_ALONE)
    os.umask(before)
    umask = os.environ.get(UMASK_VARIABLE)
    try:
        yield
    finally:
        os.umask(before)
        if umask is None:
            os.environ.pop(UMASK_VARIABLE, None)


@contextlib.contextmanager
def for_others() -> Iterator[None]:
    """Write, within this, files that a user has asked for, with the umask that the user has."""
    before = be_as_our_user()
    try:
        yield
    finally:
        os.umask(before)


def close(folder: Path, *, all_in_it: bool = True) -> None:
    """Take from everybody else a folder of ours, and all in it, if it is open to them.

    What isn't ours is left, and so is what links lead to. A folder that isn't there stays so.
    """
    try:
        status = folder.stat()
    except OSError:
        return
    if (
        folder.is_symlink()
        or status.st_uid != os.geteuid()
        or not status.st_mode & _OTHERS
        or not folder.is_dir()
    ):
        return
    _close_one(str(folder))  # first: no one gets past it
    for path, _, files in os.walk(folder) if all_in_it else ():
        for entry in (path, *(os.path.join(path, name) for name in files)):  # noqa: PTH118
            _close_one(entry)


def _close_one(path: str) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        mode = os.lstat(path).st_mode
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)  # noqa: PTH101
