"""A process and all that it has started."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil


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
