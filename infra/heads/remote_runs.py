"""Runs that heads carry, as far as they are known on this machine: brought here, adopted, alive."""

import json
import time
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.infra.heads.launch import REMOTE, Remote
from cloudtune.infra.heads.store import HeadStore, fetch

# Of a record, what is in the folder of the run itself.
RUN = "run/"
# Exists once the head of `remote.json` has ended, and its whole record is here.
OVER = "remote.over"
_LOOK_SECONDS = 2.0
_looked: dict[Path, tuple[float, bool]] = {}


def is_remote(folder: Path) -> bool:
    """Whether a head has carried a run."""
    return Remote.of(folder) is not None


def is_carried(folder: Path) -> bool | None:
    """Whether a head carries a run now; None for one without a head.

    It also fetches new records, at most every two seconds, until the whole record of an ended head
    is here.

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
    """Add the run at STORAGE/RUN to the folder of all runs; return its folder.

    Raises:
        UsageError: there is no run of a head.
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
