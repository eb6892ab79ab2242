"""File permissions: cloudtune's own files are private, whatever the umask; requested ones aren't.

Records of runs have commands, credentials of clouds on this machine, and the output of training.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

# In the environment of processes that we start: our user's umask.
UMASK_VARIABLE = "CLOUDTUNE_UMASK"
# As a umask: files only for their owner.
_OURS_ALONE = 0o077
# The bits of all that are not the owner.
_OTHERS = 0o077


def keep_private() -> None:
    """Make new files of this process, and of those it starts, private to its user."""
    umask = os.umask(_OURS_ALONE)
    os.environ.setdefault(UMASK_VARIABLE, f"{umask:o}")


def be_as_our_user() -> int:
    """Set our user's umask, for the user's own files; return the previous one."""
    try:
        return os.umask(int(os.environ.get(UMASK_VARIABLE, ""), 8) & 0o777)
    except ValueError:  # it is unchanged
        before = os.umask(_OURS_ALONE)
        os.umask(before)
        return before


@contextlib.contextmanager
def a_guest() -> Iterator[None]:
    """Restore the umask of a calling program after the context."""
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
    """Use the user's umask within the context, for files that the user requested."""
    before = be_as_our_user()
    try:
        yield
    finally:
        os.umask(before)


def close(folder: Path, *, all_in_it: bool = True) -> None:
    """Close a folder of ours, and everything in it, to other users.

    Files of other users and the targets of links are left alone; a missing folder stays missing.
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
    _close_one(str(folder))  # first, so that no one gets past it
    for path, _, files in os.walk(folder) if all_in_it else ():
        for entry in (path, *(os.path.join(path, name) for name in files)):  # noqa: PTH118
            _close_one(entry)


def _close_one(path: str) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        mode = os.lstat(path).st_mode
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)  # noqa: PTH101
