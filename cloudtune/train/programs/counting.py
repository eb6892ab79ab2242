"""Counts the steps and the collectives of a command's process, where it is a hook (`site_hooks`).

Each Python process of a command with several workers has it. See `sync_check`.
"""

import atexit
import contextlib
import os
import struct
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Final

# The variable that names the folder for a file of each process.
FOLDER: Final = "CLOUDTUNE_COUNTS"
COUNTS: Final = struct.Struct("qq")
_LOOK_SECONDS: Final = 0.05


def read_counts(folder: Path) -> tuple[int, int]:
    """Return the steps and the collectives of the process with the most steps in a folder."""
    counts = [(0, 0)]
    for path in folder.glob("*.counts"):
        with contextlib.suppress(OSError, struct.error):
            steps, exchanges = COUNTS.unpack(path.read_bytes())
            counts.append((steps, exchanges))
    return max(counts)


def ended_apart(folder: Path, pid: int) -> bool:
    """Whether a process has ended without ever having joined a process group."""
    return _apart(folder, pid).exists()


def _apart(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.apart"


class _Counter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._exchanges = 0
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Count the steps of torch's optimizers from when the script imports them."""
        while True:
            module = sys.modules.get("torch.optim.optimizer")
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is not None:
                register(self._note_step)
                return
            time.sleep(_LOOK_SECONDS)

    def note_end(self) -> None:
        """Record that this process ends apart from the other workers, if it does."""
        if not self._exchanges and not _groups():
            with contextlib.suppress(OSError):
                _apart(self._path.parent, os.getpid()).touch()

    def _note_step(self, optimizer: Any, *_: object) -> None:
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        steps = max(self._steps.values())
        self._exchanges = max(self._exchanges, _exchanges(steps))
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the disk is full: then nothing is counted
            fresh.write_bytes(COUNTS.pack(steps, self._exchanges))
            fresh.replace(self._path)


def _exchanges(steps: int) -> int:
    """Return the number of this process's collectives; `steps` if no group can tell."""
    count = 0
    for group in _groups():
        try:
            count += group._get_sequence_number_for_group()  # noqa: SLF001  it has no other name
        except RuntimeError:  # a backend that doesn't count
            return steps
    return count


def _groups() -> list[Any]:
    """Return the process groups that this process is in."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return list(getattr(getattr(distributed, "_world", None), "pg_map", {}))


def install() -> None:
    """Count in this process."""
    counter = _Counter(Path(os.environ[FOLDER], f"{os.getpid()}.counts"))
    threading.Thread(target=counter.install, name="cloudtune-counts", daemon=True).start()
    atexit.register(counter.note_end)
