"""Runs that heads carry, as far as they are known on this machine: brought here, adopted, alive."""

import json
import time
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.infra.heads.launch import REMOTE, Remote
from cloudtune.infra.heads.store import HeadStore, fetch

# Of a record, what is in the folder of the run itself.
RUN = "run/"
# There once the head has ended that `remote.json` speaks of, and all that it left is here.
OVER = "remote.over"
_LOOK_SECONDS = 2.0
_looked: dict[Path, tuple[float, bool]] = {}


def is_remote(folder: Path) -> bool:
    """Whether a head has carried a run."""
    return Remote.of(folder) is not None


def is_carried(folder: Path) -> bool | None:
    """Whether a head carries a run now; None for one that needs no head.

    What is new of it is brought by the way. Asked more often, it looks every two seconds; once all
    of a head that has ended is here, no more.

    Raises:
        StorageError: its storage can't be reached.
    """
    remote = Remote.of(folder)
    if remote is None:
        return None
    if (folder / OVER).exists():
        return False
    at, alive = _looked.get(folder, (0.0, False))
    if not at or time.monotonic() > at + _LOOK_SECONDS:
        store = HeadStore(remote.storage)
        state = store.state()
        fetch(store, folder, RUN)
        alive = state is not None and state.is_alive(time.time())
        if state is not None and state.attempt == remote.attempt and state.code is not None:
            (folder / OVER).touch()
        _looked[folder] = (time.monotonic(), alive)
    return alive


def adopt(uri: str, runs: Path) -> Path:
    """Make the run that is kept at STORAGE/RUN known in the folder of all runs; return its folder.

    Raises:
        UsageError: no run is there that a head carries.
        StorageError: the storage can't be reached.
    """
    store = HeadStore(uri)
    record = store.read(REMOTE)
    if record is None:
        raise UsageError(f"{uri}: no run that a head carries is kept there; write STORAGE/RUN")
    folder = runs / store.uri.rpartition("/")[2]
    folder.mkdir(parents=True, exist_ok=True)
    Remote(**json.loads(record)).keep(folder)
    fetch(store, folder, RUN)
    return folder
