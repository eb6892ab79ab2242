"""A process with all that it has started, and one that ends with what has started it."""

import contextlib
import ctypes
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

# From <sys/prctl.h>. The library is loaded here: after a fork of a process with threads, nothing
# may be imported.
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies for any reason.

    To be called after a fork, as by `preexec_fn`. The parent is the thread that forked.
    """
    if psutil.LINUX:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; those that have ended are left out.

    psutil looks at all processes of the machine for that, which takes milliseconds on a large one.
    Linux says which a process has started, if it was built with CONFIG_PROC_CHILDREN.
    """
    if not Path(f"/proc/{pid}/task/{pid}/children").exists():
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(pid)
            return [top, *top.children(recursive=True)]
        return []
    found = []
    for each in [pid, *_descendants(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(each))
    return found


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has just ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text(encoding="ascii").split()):
                yield child
                yield from _descendants(child)
